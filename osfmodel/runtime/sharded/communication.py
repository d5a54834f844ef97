"""The collectives of a model under ``fully_shard``: what was sent, and how the host waits for it.

FSDP2 launches its collectives in two ways over gloo, which has no streams:

* blocking, as it does by default: the thread that launches a collective waits until it has ended;
* asynchronous: all-gathers in the background (``_set_unshard_async_op``), which need lists of modules to gather ahead;
  and reduce-scatters as well, by a communication of our own (``set_custom_reduce_scatter``). Before gradients are
  copied into its buffer it waits until fewer than ``inputs`` reduce-scatters are under way, as the compute stream does
  on a GPU. A process group with one thread runs them one at a time, in the order of launch, as NCCL does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple


class SentCollective(NamedTuple):
    """A collective: its kind, the bytes of the whole vector, and the type of its elements."""

    kind: str
    bytes: int
    dtype: str


class ShardedCommunication:
    """The collectives of one model, in the order of launch in ``sent``, which the caller clears.

    asynchronous: whether they run in the background
    inputs:       reduce-scatters whose inputs are in memory at once
    waiting:      a context for each wait, as of the stand-in for computation in a replay

    While ``silent`` is set nothing is sent, and zeros stand for what others would have sent.
    """

    def __init__(self, asynchronous: bool, inputs: int, waiting: Callable[[], AbstractContextManager[None]]) -> None:
        self.sent: list[SentCollective] = []
        self.silent = False
        self.asynchronous, self.inputs, self.waiting = asynchronous, inputs, waiting
        self._under_way: deque[tuple[Any, Any]] = deque()

    def use(self, model: Any) -> None:
        """Let all groups of ``model`` communicate by this."""
        from torch.distributed.fsdp import FSDPModule

        gather, reduce = _all_gather(self), _reduce_scatter(self)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_custom_all_gather(gather)
                module.set_custom_reduce_scatter(reduce)
        model._set_unshard_async_op(self.asynchronous)

    def note(self, kind: str, whole: Any) -> None:
        """Record a collective of this vector."""
        self.sent.append(
            SentCollective(kind, whole.numel() * whole.element_size(), str(whole.dtype).removeprefix("torch."))
        )

    def admit(self, left: int) -> None:
        """Wait until at most ``left`` reduce-scatters are under way."""
        while len(self._under_way) > left:
            work, _ = self._under_way.popleft()
            with self.waiting():
                work.wait()

    def follow(self, work: Any, kept: Any) -> None:
        """A reduce-scatter is under way; its input is kept until it has ended."""
        self._under_way.append((work, kept))

    def finish(self) -> None:
        """Wait for all reduce-scatters, before the update."""
        self.admit(0)

    @contextmanager
    def noting_all_reduces(self) -> Iterator[None]:
        """A context in which all-reduces are recorded, for which FSDP2 takes no communication of others."""
        import torch.distributed as dist

        original = dist.all_reduce

        def noted(tensor: Any, *given: Any, **named: Any) -> Any:
            self.note("all_reduce", tensor)
            if self.silent:
                return None
            with self.waiting():
                return original(tensor, *given, **named)

        dist.all_reduce = noted
        try:
            yield
        finally:
            dist.all_reduce = original


def _all_gather(communication: ShardedCommunication) -> Any:
    import torch
    import torch.distributed as dist

    class Gathering(dist.Work):  # type: ignore[misc]
        """An all-gather in the background."""

        def __init__(self, work: Any) -> None:
            super().__init__()
            self.work = work

        def wait(self, *limit: Any) -> bool:
            with communication.waiting():
                return bool(self.work.wait(*limit))

    class ShardedAllGather:
        def allocate(self, size: Any, *, dtype: Any, device: Any) -> Any:
            return (torch.zeros if communication.silent else torch.empty)(*size, dtype=dtype, device=device)

        def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, async_op: bool = False) -> Any:
            communication.note("all_gather", output_tensor)
            if communication.silent:
                return None
            if async_op:
                return Gathering(_call("all_gather")(output_tensor, input_tensor, group=group, async_op=True))
            with communication.waiting():
                return _call("all_gather")(output_tensor, input_tensor, group=group)

    return ShardedAllGather()


def _reduce_scatter(communication: ShardedCommunication) -> Any:
    import torch

    class ShardedReduceScatter:
        """FSDP2 asks it for an input, then for an output, and then calls it."""

        input_next = True

        def allocate(self, size: Any, *, dtype: Any, device: Any) -> Any:
            if self.input_next:
                communication.admit(communication.inputs - 1)
            self.input_next = not self.input_next
            return (torch.zeros if communication.silent else torch.empty)(*size, dtype=dtype, device=device)

        def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False) -> Any:
            communication.note("reduce_scatter", input_tensor)
            if communication.silent:
                return None
            call = _call("reduce_scatter")
            if communication.asynchronous:
                work = call(output_tensor, input_tensor, op=op, group=group, async_op=True)
                communication.follow(work, input_tensor)
                return work
            with communication.waiting():
                return call(output_tensor, input_tensor, op=op, group=group)

    return ShardedReduceScatter()


def _call(kind: str) -> Any:
    """The function of torch.distributed, by its name in this version."""
    import torch.distributed as dist

    older = {"all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor"}
    return getattr(dist, f"{kind}_single", None) or getattr(dist, older[kind])
