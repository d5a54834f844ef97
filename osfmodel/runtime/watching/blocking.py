"""Calls in which a training process waits for communication; while a model is watched, each is timed."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any, NamedTuple

from osfmodel.runtime.watching.steps import StepRecorder


class BlockingCalls(NamedTuple):
    """Functions that block the thread, or on a GPU the stream, that calls them.

    module, owner: place of the functions: a class of a module, or with "" the module itself
    of_stream: whether the first argument is the stream that waits, whatever the current one is
    """

    module: str
    owner: str
    names: tuple[str, ...]
    of_stream: bool = False


C10D = "torch._C._distributed_c10d"
COLLECTIVES = (
    "allreduce", "allreduce_coalesced", "allgather", "allgather_coalesced", "_allgather_base", "reduce",
    "reduce_scatter", "_reduce_scatter_base", "broadcast", "alltoall", "alltoall_base", "barrier",
)  # fmt: skip
"""Collectives of a process group, which with NCCL may run on the stream that calls them."""
BLOCKING: tuple[BlockingCalls, ...] = (
    BlockingCalls(C10D, "Work", ("wait",)),
    BlockingCalls(C10D, "ProcessGroup", COLLECTIVES),
    BlockingCalls("torch.distributed", "", ("_broadcast_coalesced",)),  # the buffers of DDP
    BlockingCalls("torch.distributed._functional_collectives", "", ("wait_tensor",)),  # of DTensor
    BlockingCalls("torch.cuda", "Stream", ("wait_event", "wait_stream"), of_stream=True),  # FSDP2's waits
)
"""Calls that are timed. DDP's waits for its buckets are none of them: they happen in C++, at the end of backward."""

RECORDERS: list[StepRecorder] = []
"""Recorders to tell of waits; while there are any, the calls of BLOCKING are replaced."""
_PLAIN: list[tuple[Any, str, Any]] = []


def tell(recorder: StepRecorder) -> None:
    """Tell ``recorder`` of the waits from now on. There is one replacement, however many models are watched."""
    if not RECORDERS:
        for row in BLOCKING:
            _replace(row)
    RECORDERS.append(recorder)


def tell_no_more(recorder: StepRecorder) -> None:
    """Undo :func:`tell`; with the last recorder, put the calls back as they were."""
    if recorder in RECORDERS:
        RECORDERS.remove(recorder)
    if not RECORDERS:
        for owner, name, plain in _PLAIN:
            setattr(owner, name, plain)
        _PLAIN.clear()


def _replace(row: BlockingCalls) -> None:
    try:
        module = import_module(row.module)
    except ImportError:
        return  # this PyTorch has no torch.distributed
    owner = getattr(module, row.owner, None) if row.owner else module
    for name in row.names:
        plain = getattr(owner, name, None)
        if plain is not None:
            _PLAIN.append((owner, name, vars(owner).get(name, plain)))
            setattr(owner, name, _timed(plain, row.of_stream))


def _timed(plain: Callable[..., Any], of_stream: bool) -> Callable[..., Any]:
    @wraps(plain)
    def call(*given: Any, **named: Any) -> Any:
        import torch

        if torch.compiler.is_compiling():
            return plain(*given, **named)
        told = [one for one in RECORDERS if one.waits_here() and (not of_stream or given[0] == one.place)]
        begun = [one.mark() for one in told]
        try:
            return plain(*given, **named)
        finally:
            for recorder, mark in zip(told, begun, strict=True):
                recorder.end_wait(mark)

    return call
