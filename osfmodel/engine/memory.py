"""Memory of a training step, by owner over time, and its peak: reconstructed after LaySA (IEEE Access'21).

Only LaySA's abstract is public; what is here follows from how PyTorch, DDP and this package's executor hold memory.
Levels are of live bytes, as ``torch.cuda.max_memory_allocated`` and torch's MemTracker count them: what an allocator
holds beyond that, a device's context and the buffers of a communication library are not in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

from osfmodel.cost.pricing import Pricing
from osfmodel.engine.alike import Outline, computed_alike, form_of, kept, outline_of, rules_of
from osfmodel.engine.levels import Footprint, Level, Memory, curve, highest, times_of
from osfmodel.engine.optimizers import require_mirrorable, state_bytes
from osfmodel.engine.program import Program
from osfmodel.engine.run import issued_run
from osfmodel.engine.strategies import lower, strategy_of
from osfmodel.engine.strategies.holdings import STATE, Holdings
from osfmodel.entities.errors import DataError, UsageError, require_count
from osfmodel.entities.executors import EXECUTORS, KEEPERS, RUNTIME
from osfmodel.entities.lookup import require
from osfmodel.entities.plan import Plan
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.workload import Workload

__all__ = ["Level", "Memory", "memory_of"]


TENSORS = 3
"""Tensors of the layer that keeps most, usually a head: logits, their copy, and what the loss keeps. No other tensor of
activations is taken to be larger."""


def caveat(communicator: int) -> str:
    """A caveat for every prediction of memory."""
    library = "" if communicator else ", the library's buffers"
    return f"live bytes; the device's context{library} and fragmentation come on top"


def memory_of(
    workload: Workload,
    plan: Plan,
    timeline: Timeline,
    workers: int,
    keeper: str = RUNTIME.name,
    optimizer: str | None = None,
    communicator: int = 0,
) -> Memory:
    """The memory of a step of ``workload`` under ``plan``, with the times of ``timeline``.

    workers:   number of ranks whose entries are gathered for sparse buckets
    keeper:    one of KEEPERS
    optimizer: one of OPTIMIZERS, in place of the one that was profiled
    communicator: bytes that the library keeps for each communicator, of which each channel of the plan is one

    Raises DataError for a workload that does not say what it keeps, UsageError for an unknown keeper or optimizer, and
    for one that cannot run the plan.
    """
    require_known(workload)
    return memory_as_known(workload, plan, timeline, workers, keeper, optimizer, communicator)


def memory_as_known(
    workload: Workload,
    plan: Plan,
    timeline: Timeline,
    workers: int,
    keeper: str = RUNTIME.name,
    optimizer: str | None = None,
    communicator: int = 0,
) -> Memory:
    """The memory of a step as :func:`memory_of`, without activations for a workload that does not say what it keeps."""
    bare = _bare(workload, plan, timeline, workers)
    return curve(*_executed(_holdings(workload, plan, bare, workers, keeper, optimizer, communicator), timeline))


def peak_as_known(
    workload: Workload,
    plan: Plan,
    timeline: Timeline,
    workers: int,
    keeper: str = RUNTIME.name,
    optimizer: str | None = None,
    communicator: int = 0,
) -> Footprint:
    """The peak of :func:`memory_as_known`, in less time, above all for steps that differ in batch and prices only."""
    asked = (workers, keeper, optimizer, communicator)
    make, bare = partial(_holdings, workload, plan), partial(_bare, workload, plan, timeline, workers)
    key = (form_of(workload), rules_of(plan), *asked)
    outline = kept(_outlines, key, lambda: outline_of(make(computed_alike(workload, plan, bare), *asked)))
    return highest(*_executed(make(bare(), *asked), timeline)) if outline is None else outline.peak(workload, plan)


def reserved_as_known(
    workload: Workload,
    plan: Plan,
    timeline: Timeline,
    workers: int,
    keeper: str = RUNTIME.name,
    optimizer: str | None = None,
    expandable: bool = False,
) -> int:
    """Bytes that PyTorch's caching allocator reserves for the steps of :func:`memory_as_known`; no library's buffers.

    expandable: whether its segments grow (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)
    """
    active = tuple([(layer.activation_bytes, layer.peak_bytes) for layer in workload.layers])
    key = (form_of(workload), active, rules_of(plan), workers, keeper, optimizer, expandable)

    def make() -> int:
        from osfmodel.engine.caching import reserved_bytes  # not loaded for other questions

        single, others = _alone(workload)
        holdings = _holdings(single, plan, _bare(single, plan, timeline, workers), workers, keeper, optimizer, 0)
        state = holdings.lasting()[STATE]
        copies = workload.gradient_bytes if workload.weight_bytes is not None else 0
        early = state * copies // max(copies, 1, state_bytes(workload, optimizer))
        sizes = zip(workload.gradients.names, workload.gradients.sizes, strict=True)
        made = {name: (state - early) * size // max(1, workload.gradient_bytes) for name, size in sizes}
        program, starts, ends, finish = _executed(holdings, timeline)
        largest = max([one.activation_bytes or 0 for one in workload.layers]) // TENSORS
        return reserved_bytes(program, (starts, ends, finish), made, early + others, largest, expandable)

    return kept(_reserved, key, make)


def _alone(workload: Workload) -> tuple[Workload, int]:
    """A workload without what is there throughout backward beside its own activations, and the bytes of that.

    In a pipeline that is what other micro-batches keep.
    """
    there = accumulate(one.activation_bytes or 0 for one in workload.layers)
    beside = [one.peak_bytes - own for one, own in zip(workload.layers, there, strict=True) if one.peak_bytes]
    others = max(0, min(beside, default=0))
    layers = tuple(
        one if one.peak_bytes is None else replace(one, peak_bytes=max(0, one.peak_bytes - others))
        for one in workload.layers
    )
    return replace(workload, layers=layers), others


_outlines: dict[Any, Outline | None] = {}
_reserved: dict[Any, int] = {}


def _executed(holdings: Holdings, timeline: Timeline) -> tuple[Program, Sequence[float], Sequence[float], float]:
    """The program with its holds, when its operations begin and end, and the end of the step."""
    program, run = holdings.program(), issued_run(timeline)
    starts, ends = run.apart() if run else times_of(program, timeline)
    return program, starts, ends, timeline.iteration_time


def _bare(workload: Workload, plan: Plan, timeline: Timeline, workers: int) -> Program:
    """A program with each layer apart: that of the timeline, if it is one."""
    run, strategy = issued_run(timeline), strategy_of(plan)
    if run is not None and strategy.apart is None:
        return run.program
    return (strategy.apart or lower)(workload, plan, Pricing.free(workers))


def _holdings(
    workload: Workload,
    plan: Plan,
    bare: Program,
    workers: int,
    keeper: str,
    optimizer: str | None,
    communicator: int,
) -> Holdings:
    """The bytes held during a step of which ``bare`` is the program."""
    require_count(workers, "the number of workers", least=1)
    storage = require(keeper, KEEPERS, "keeper")
    if not EXECUTORS[keeper].carries(plan.plain):
        raise UsageError(f"{EXECUTORS[keeper].called} cannot run this plan: only {RUNTIME.called} can")
    require_count(communicator, "bytes of a communicator")
    require_mirrorable(plan.mirror, optimizer)
    return strategy_of(plan).holdings(bare, workload, plan, workers, storage, optimizer, communicator)


def known(workload: Workload) -> bool:
    """Whether ``workload`` says what its layers keep in memory."""
    return any(layer.peak_bytes is not None for layer in workload.layers)


def require_known(workload: Workload) -> None:
    """Raise DataError unless ``workload`` has memory sizes."""
    if not known(workload):
        raise DataError(
            f"workload {workload.name!r} does not say what its layers keep in memory (peak_bytes): make it with "
            "osf profile, which measures that"
        )
