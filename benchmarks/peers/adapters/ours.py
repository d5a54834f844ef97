"""osfmodel: ``osf scale`` with the words of the run, as it comes, and learned without the run's source.

Efficiencies that come with osfmodel were learned from the runs on the fewest GPUs of these sources, and its constants
were chosen with all of them in view. Learned anew without the source, step times do not know it; bands of
communication on several nodes, which are in profiles/bands.json, still do.
"""

from functools import lru_cache
from unittest.mock import patch

import make_efficiency as learning
from rows import PeerRow

from adapters import Answer, Peer, UnsaidError
from osfmodel import __version__
from osfmodel.cost.clusters import load_cluster
from osfmodel.counting import load_workload, roofline
from osfmodel.counting import words as counting_words
from osfmodel.counting.groups import Parallelism
from osfmodel.counting.stacks import Learned
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


@lru_cache(maxsize=32)
def _without(source: str) -> Learned:
    return learning.learn(lambda row: row.source != source)


@lru_cache(maxsize=32)
def _misses(source: str) -> tuple[tuple[learning.Row, float], ...]:
    """The source's runs, with ln(predicted / measured), learned without it."""
    found = _without(source)
    return tuple((row, row.missed(found)) for row in learning.rows() if row.source == source)


@lru_cache(maxsize=32)
def _held_out(source: str) -> Learned:
    """Learned without the source, and doubts from how other sources are missed that were left out in turn."""
    others = dict.fromkeys(row.source for row in learning.rows() if row.source != source)
    missed = [one for other in others for one in _misses(other)]
    kinds = dict.fromkeys(learning.kind_of(row) for row, _ in missed)
    doubts = {kind: learning.doubt_of(one for one in missed if learning.kind_of(one[0]) == kind) for kind in kinds}
    return _without(source)._replace(doubts={**doubts, "any": learning.doubt_of(missed)})


def _ask_held_out(row: PeerRow) -> Answer:
    learned = _held_out(row.source)
    counting_words.at_samples.cache_clear()
    with patch.object(roofline, "learned", lambda: learned):
        found = _ask(row)
    counting_words.at_samples.cache_clear()
    return found


AS_IT_COMES = Peer(lambda: __version__, _ask, "`osf scale` in words, as it comes", "live bytes")
HELD_OUT = Peer(lambda: __version__, _ask_held_out, "the same, learned without the run's source")
