"""osfmodel: ``osf scale`` with the words of the run, as it comes, and learned without the run's source.

Efficiencies that come with osfmodel were learned from the runs on the fewest GPUs of these sources, and its constants
were chosen with all of them in view. Learned anew without the source, step times do not know it; the margin of
bands, which is in profiles/counted-bands.json, still does.
"""

from unittest.mock import patch

import make_efficiency as learning
from rows import PeerRow

from adapters import Answer, Peer, UnsaidError
from osfmodel import __version__
from osfmodel.cost.clusters import load_cluster
from osfmodel.counting import load_workload, roofline
from osfmodel.counting import words as counting_words
from osfmodel.counting.groups import Parallelism
from osfmodel.entities.errors import UsageError
from osfmodel.planning.scaling.replicas import replica_workload
from osfmodel.planning.scaling.scale import ScaleOptions, scale
from osfmodel.planning.what_if import WhatIf


def _ask(row: PeerRow) -> Answer:
    one = row.stated
    try:
        cluster = load_cluster(one.cluster)
        alone = one.groups == Parallelism()
        workload = load_workload(one.words) if alone else replica_workload(one.words, cluster, one.groups)
        options = ScaleOptions((one.plan,), learning.ROOM, WhatIf(accumulate=one.micro_batches), groups=one.groups)
        point = scale(workload, cluster, [one.gpus], options).points[0]
    except UsageError as error:
        raise UnsaidError(str(error)) from None
    band, peak = point.band, point.best.peak
    held = getattr(point.best, "reserved", None) if row.reserved else None
    memory = held or (peak.bytes if peak else None)
    return Answer(point.time, memory, (band.low, band.high) if band else None)


def _ask_held_out(row: PeerRow) -> Answer:
    learned = learning.without(learning.source_of, row.source)
    learned = learned._replace(doubts=learning.doubts_without(row.source))
    counting_words.at_samples.cache_clear()
    with patch.object(roofline, "learned", lambda: learned):
        found = _ask(row)
    counting_words.at_samples.cache_clear()
    return found


AS_IT_COMES = Peer(lambda: __version__, _ask, "`osf scale` in words, as it comes", "live bytes")
HELD_OUT = Peer(lambda: __version__, _ask_held_out, "the same, learned without the run's source")
