"""The source of what is read from a trace: its device, library, steps, and how much of a job it shows."""

from __future__ import annotations

from dataclasses import replace

from osfmodel.entities.source import NO_GPU, Source, imported
from osfmodel.entities.trace import Trace
from osfmodel.formats.traces.usual import usual_steps


def source_of(trace: Trace, said: str) -> Source:
    """The source of a noun of the trace; ``said`` is about that noun alone."""
    rank = trace.pace
    steps = usual_steps(trace)
    device = rank.device or "device not stated"
    who = f"rank {rank.rank}, {len(steps)} of {len(rank.steps)} steps" + (
        f", {steps[0].micro_batches} micro-batches" if steps[0].micro_batches > 1 else ""
    )
    backend = rank.backend or "no collectives"
    conditions = f"{device}, {backend}, {trace.workers or 1} workers; {who}, under the profiler; {said}"
    first = trace.ranks[0]
    source = imported(printable(first.file.rpartition("/")[2]), printable(conditions), first.checksum)
    return replace(source, gpu=NO_GPU if rank.device == "cpu" else printable(rank.device or source.gpu))


def printable(text: str) -> str:
    """The text with a question mark for each sign that cannot be printed."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)
