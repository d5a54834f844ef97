"""The iteration as a Chrome trace, which ui.perfetto.dev and chrome://tracing open.

Format: "Trace Event Format", object form. One process per plan and per measured step, one thread per stream; each bar
is a complete event (``ph`` X) with times in microseconds; ``args`` hold bytes, bucket and layers.
"""

from __future__ import annotations

import gzip
import math
from typing import Any

from osfmodel.entities.files import documents
from osfmodel.show.report.gantt import Bar, Gantt
from osfmodel.show.report.pictures import Pictures

MICROSECONDS = 1e6
NANOSECONDS = 1e9
THREADS = 1000
"""Thread numbers reserved for each process, so that they are unique; Perfetto takes 0 for the process itself."""


def encoded(pictures: Pictures, packed: bool, version: str) -> bytes:
    """The trace as JSON, ``packed`` with gzip or not; the same bytes for the same pictures."""
    text = documents.encode(document(pictures, version)).encode()
    return gzip.compress(text, mtime=0) if packed else text


def document(pictures: Pictures, version: str) -> dict[str, Any]:
    """The JSON-ready trace: the default's process first, measured steps behind the predictions."""
    events: list[dict[str, Any]] = []
    for number, gantt in enumerate((*pictures.predicted, *pictures.measured), start=1):
        events += _process(gantt, number)
    report = pictures.report
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "written_by": f"osfmodel {version}",
            "workload": report.workload.name,
            "cluster": report.comparison.cluster.name,
            "workers": report.comparison.workers,
            "options": dict(report.inputs),
        },
    }


def _process(gantt: Gantt, pid: int) -> list[dict[str, Any]]:
    kind = "measured" if gantt.measured else "predicted"
    events = [
        _about("process_name", pid, 0, name=f"{kind}: {gantt.name}, {gantt.shown(gantt.end)}"),
        _about("process_labels", pid, 0, labels=kind),
        _about("process_sort_index", pid, 0, sort_index=pid),
    ]
    for tid, lane in enumerate(gantt.lanes, start=THREADS * pid):
        events.append(_about("thread_name", pid, tid, name=lane.name))
        events.append(_about("thread_sort_index", pid, tid, sort_index=tid))
        events += [_event(bar, pid, tid) for bar in lane.bars]
    return events


def _about(what: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _event(bar: Bar, pid: int, tid: int) -> dict[str, Any]:
    start, end = round(bar.start * NANOSECONDS), round(bar.end * NANOSECONDS)
    return {
        "name": _name(bar),
        "cat": bar.kind,
        "ph": "X",
        "ts": _microseconds(start),
        "dur": _microseconds(end - start),
        "pid": pid,
        "tid": tid,
        "args": _args(bar),
    }


def _microseconds(nanoseconds: int) -> float:
    """The smallest number of microseconds that is not rounded down: Perfetto cuts off fractions of a nanosecond."""
    found = nanoseconds / 1000
    return found if found * 1000 >= nanoseconds else math.nextafter(found, math.inf)


def _name(bar: Bar) -> str:
    if not bar.sends:
        return f"{bar.kind} {bar.layers[0]}" if bar.layers else bar.kind
    return bar.kind if bar.bucket is None else f"{bar.kind} {bar.bucket + 1}"


def _args(bar: Bar) -> dict[str, Any]:
    """The known properties of a bar; times in microseconds, like the trace's own."""
    known: dict[str, Any] = {"bytes": bar.bytes, "layers": list(bar.layers) or None}
    if bar.sends:
        known["bucket"] = None if bar.bucket is None else bar.bucket + 1
        known["ready_us"] = None if bar.ready is None else bar.ready * MICROSECONDS
        known["exposed_us"] = bar.exposed_time * MICROSECONDS
        known["bytes_per_s"] = bar.rate
    return {name: value for name, value in known.items() if value is not None}
