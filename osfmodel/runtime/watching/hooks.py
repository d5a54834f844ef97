"""Hooks of a watched model and of its optimizers, which tell a recorder where forward, backward and update are.

Calls in which a training process waits for communication are timed while a model is watched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from functools import wraps
from importlib import import_module
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from osfmodel.runtime.profiler.recording import Mark
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


class WatchingHook:
    """A hook that compiled graphs leave out and that copies of the model, deep or pickled, do not have."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *given: Any, **named: Any) -> Any:
        import torch

        return None if torch.compiler.is_compiling() else self._call(*given, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")  # takes anything, returns None, and loads without this package


class BackwardEnds:
    """The end of the backward of one forward: at first of its computation, then of what DDP does after it."""

    __slots__ = ("begun", "recorder", "to_reduce")

    def __init__(self, recorder: StepRecorder, to_reduce: bool) -> None:
        self.recorder, self.to_reduce = recorder, to_reduce
        self.begun: Mark | None = None

    def begin(self, *_: Any) -> None:
        """Note the first gradient that reaches an output, and wait for the end."""
        if self.begun is None:
            self.begun = self.recorder.mark()
            _queue(self._computed)

    def _computed(self) -> None:
        begun, self.begun = self.begun, None
        if begun is not None:
            ended = self.recorder.end_backward(begun, self.to_reduce)
            _queue(ended)  # behind what DDP does when its last bucket is full


def _queue(call: Callable[[], None]) -> None:
    from torch.autograd import Variable

    Variable._execution_engine.queue_callback(call)


class ModelHooks:
    """The hooks of one model; :meth:`close` leaves everything as it was."""

    def __init__(self, model: Any, recorder: StepRecorder) -> None:
        self.model, self.recorder = model, recorder
        self.inside = _replicas(model)
        self.forwards: list[Mark] = []
        self.updates: dict[int, Mark] = {}
        self.ours: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
        self.leaving = ExitStack()
        self._watch_forward()
        self._watch_optimizers()
        tell(recorder)
        self.leaving.callback(tell_no_more, recorder)

    def close(self) -> None:
        """Remove all hooks."""
        self.leaving.close()

    def _watch_forward(self) -> None:
        plain = getattr(self.model, "_compiled_call_impl", None)
        if plain is not None:  # a compiled module does not call hooks, or has them in its graph
            self.model._compiled_call_impl = self._around(plain)
            self.leaving.callback(setattr, self.model, "_compiled_call_impl", plain)
            return
        for handle in (
            self.model.register_forward_pre_hook(WatchingHook(lambda *_: self._begin_forward()), prepend=True),
            self.model.register_forward_hook(WatchingHook(lambda *given: self._end_forward(given[-1]))),
        ):
            self.leaving.callback(handle.remove)

    def _around(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(plain)
        def call(*given: Any, **named: Any) -> Any:
            self._begin_forward()
            output = plain(*given, **named)
            self._end_forward(output)
            return output

        return call

    def _begin_forward(self) -> None:
        import torch

        if torch.is_grad_enabled():
            self.forwards.append(self.recorder.begin_forward())

    def _end_forward(self, output: Any) -> None:
        import torch

        if not self.forwards or not torch.is_grad_enabled():
            return
        begun = self.forwards.pop()
        self.forwards.clear()  # of forwards that failed
        to_reduce = self._to_reduce()
        self.recorder.end_forward(begun, to_reduce)
        ends = BackwardEnds(self.recorder, to_reduce)
        for node in dict.fromkeys(tensor.grad_fn for tensor in tensors_of(output)):
            if node is not None:
                node.register_prehook(ends.begin)

    def _to_reduce(self) -> bool:
        """Whether DDP will reduce the gradients of the forward that ends: not under ``no_sync``."""
        from torch.nn.parallel import DistributedDataParallel

        around = getattr(DistributedDataParallel, "_active_ddp_module", None)  # of a model that is wrapped
        replicas = self.inside if around is None else [around, *self.inside]
        return any(one.require_backward_grad_sync and one.process_group.size() > 1 for one in replicas)

    def _watch_optimizers(self) -> None:
        from torch.optim import optimizer

        for handle in (
            optimizer.register_optimizer_step_pre_hook(WatchingHook(lambda one, *_: self._begin_update(one))),
            optimizer.register_optimizer_step_post_hook(WatchingHook(lambda one, *_: self._end_update(one))),
        ):
            self.leaving.callback(handle.remove)

    def _begin_update(self, optimizer: Any) -> None:
        if self._is_ours(optimizer):
            self.updates[id(optimizer)] = self.recorder.begin_update(id(optimizer))

    def _end_update(self, optimizer: Any) -> None:
        if self._is_ours(optimizer):
            self.recorder.end_update(id(optimizer), self.updates.pop(id(optimizer), None))

    def _is_ours(self, optimizer: Any) -> bool:
        if optimizer not in self.ours:
            mine = {id(tensor) for tensor in self.model.parameters()}
            self.ours[optimizer] = any(id(one) in mine for group in optimizer.param_groups for one in group["params"])
        return self.ours[optimizer]


def _replicas(model: Any) -> list[Any]:
    """The DDP modules in a model, itself among them."""
    from torch.nn.parallel import DistributedDataParallel

    return [module for module in model.modules() if isinstance(module, DistributedDataParallel)]


def tensors_of(output: Any) -> Iterator[Any]:
    """The tensors in an output of a model: in tuples, lists, dicts, and the fields of other objects."""
    import torch
    from torch.utils._pytree import tree_leaves

    for leaf in tree_leaves(output):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif hasattr(leaf, "__dict__"):
            yield from (value for value in vars(leaf).values() if isinstance(value, torch.Tensor))
