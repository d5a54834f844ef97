"""The causes of a slow job and the gain from each remedy: diagnosis looks back, remedies look ahead."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from osfmodel.diagnosis import Explanation
from osfmodel.diagnosis.explain_trace import replayed_trace
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.trace import Trace
from osfmodel.entities.workload import Workload
from osfmodel.planning.remedies import remedies


def explain(
    trace: Trace | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    cluster: Cluster | None = None,
    workload: Workload | None = None,
    steps: Sequence[int] = (),
) -> Explanation:
    """Explain why a job is slow and what would help, from a Trace or its ranks' files (or folders or tars of them).

    Like :func:`osfmodel.diagnosis.explain_trace.explain_trace`, with remedies: their workload, buckets and prices are
    the trace's own unless given.
    Raises DataError also for files that are not traces.
    """
    if not isinstance(trace, Trace):
        from osfmodel.formats import load_trace

        paths = [trace] if isinstance(trace, str | os.PathLike) else list(trace)
        trace = load_trace([Path(path) for path in paths])
    found, replays = replayed_trace(trace, cluster, steps)
    helping, said = remedies(trace, found, replays, cluster, workload)
    return replace(found, remedies=helping, remarks=(*found.remarks, *said))
