"""Subjects of training: a replay of a workload, or a user's model."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from itertools import zip_longest
from typing import Any

from osfmodel.entities.errors import JobError, UsageError
from osfmodel.entities.plan import Plan
from osfmodel.entities.records import dataclass, field, replace
from osfmodel.entities.workload import Layer, Workload
from osfmodel.runtime.executor.admission import require_plain_model
from osfmodel.runtime.training.factories import from_factory, mapped, output_of
from osfmodel.runtime.training.replayed_model import (
    executed_step,
    hooks_count,
    overlapping_step,
    replay_layers,
    replay_model,
    replay_optimizer,
    replay_step,
)

LEARNING_RATE, MOMENTUM = 0.01, 0.9
"""Settings of the SGD that trains a model: real updates, whatever the model."""
SEED = 1


Beginner = Callable[[Plan | None, Any], Callable[[Any], Any]]


@dataclass(frozen=True, slots=True)
class TrainingSubject:
    """A model and how to train it.

    optimizer: the one that updates it
    begin:  (plan, optimizer) -> step. Resets the model; step(wrapped model) runs one iteration and returns its loss.
            plan: determines when updates run (None: at the end). optimizer: Horovod's, used instead of this one and
            awaited before the update; None otherwise
    names:  the layer of the workload behind each parameter that has a gradient, in the order of model.parameters()
    real:   whether it is a user's model
    notes:  caveats
    """

    model: Any = field(repr=False)
    optimizer: Any = field(repr=False)
    workload: Workload
    begin: Beginner = field(repr=False)
    names: list[str] = field(repr=False)
    real: bool = False
    notes: tuple[str, ...] = ()

    def given(self, plan: Plan) -> Plan:
        """The plan for an executor: a replay recomputes segments itself, since it has no modules for them."""
        return plan if self.real else replace(plan, recompute=())


def replayed(workload: Workload, device: str) -> TrainingSubject:
    """A replay of ``workload``. Raises UsageError or DataError if torch has no such tensors."""
    model, pace = replay_model(workload, device)
    optimizer = replay_optimizer(model, workload, pace) if workload.gradients else None

    def begin(plan: Plan | None, other: Any) -> Callable[[Any], Any]:
        pace.counts = plan is not None and hooks_count(plan)
        model.recompute(() if plan is None else plan.recompute)
        if plan is not None and plan.forward_overlap:
            return overlapping_step(pace, optimizer, device)
        if plan is not None and (plan.sparse or plan.release):
            return executed_step(pace, optimizer, device)
        return replay_step(workload, pace, device, other)

    return TrainingSubject(model, optimizer, workload, begin, replay_layers(workload))


def trained(factory: str, device: str, workload: Workload | None = None) -> TrainingSubject:
    """The model of ``PACKAGE.MODULE:FACTORY`` with its profiled workload, or else a rough one.

    The factory is one of ``osf profile`` (``runtime.subjects``). Raises UsageError where there is none of that name,
    DataError where it fails or returns something else, JobError where a step fails, UsageError for a wrapped model and
    for one that is not the same on all ranks.
    """
    import torch

    torch.manual_seed(SEED)
    model, batch, loss, optimizer = from_factory(factory)(None)
    require_plain_model(model, "return the bare model, which is wrapped here")
    model, batch = model.to(device), mapped(batch, lambda tensor: tensor.to(device))
    _share(model)
    found = [(name, tensor) for name, tensor in model.named_parameters() if tensor.requires_grad]
    if not found:
        raise UsageError(f"{factory} returns a model without a parameter that needs a gradient")
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    begin = _beginner(model, lambda wrapped: loss_of(wrapped, batch, loss), optimizer)
    known = workload or _observed(factory, model, begin)
    return TrainingSubject(model, optimizer, known, begin, [name for name, _ in found], True, _notes(model))


def loss_of(model: Any, batch: Any, loss: Callable[..., Any]) -> Any:
    """The loss of ``model``, wrapped by DDP or not, on a batch."""
    if isinstance(batch, tuple | list):
        inputs, targets = batch
        return loss(output_of(model, inputs), targets)
    return loss(output_of(model, batch))


def _share(model: Any) -> None:
    """Give all ranks rank 0's parameters and buffers, as DDP would once for each time that it wraps the model.

    Raises UsageError where they are not the same on all ranks, of which torch makes a crash or wrong numbers.
    """
    import torch.distributed as dist

    if not dist.is_initialized():
        return
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, _tensors(model))
    for rank, tensors in enumerate(found):
        if tensors != found[0]:
            difference = next(pair for pair in zip_longest(tensors, found[0]) if pair[0] != pair[1])
            mine, first = (words or "nothing" for words in difference)
            raise UsageError(
                f"rank {rank} has a model different from rank 0's: {mine} where rank 0 has {first}; build the same "
                "model on every rank"
            )
    for value in model.state_dict().values():
        dist.broadcast(value, 0)


def _tensors(model: Any) -> list[str]:
    """Properties that must be alike on all ranks."""
    parameters = [
        f"parameter {name} {_shape(tensor)}{'' if tensor.requires_grad else ' (frozen)'}"
        for name, tensor in model.named_parameters()
    ]
    return parameters + [f"buffer {name} {_shape(tensor)}" for name, tensor in model.named_buffers()]


def _shape(tensor: Any) -> str:
    return f"of {'x'.join(map(str, tensor.shape)) or '1'} {str(tensor.dtype).removeprefix('torch.')}"


def _beginner(model: Any, loss: Callable[[Any], Any], optimizer: Any) -> Beginner:
    """A function that starts a run with parameters, buffers, optimizer and random numbers as at first."""
    import torch

    first = deepcopy(model.state_dict())
    settings = deepcopy(optimizer.state_dict())

    def begin(_: Plan | None, other: Any) -> Callable[[Any], Any]:
        chosen = optimizer if other is None else other
        model.load_state_dict(first)
        chosen.load_state_dict(deepcopy(settings))
        torch.manual_seed(SEED)

        def step(wrapped: Any) -> Any:
            for group in chosen.param_groups:  # Horovod's zero_grad takes no argument
                for tensor in group["params"]:
                    tensor.grad = None
            value = loss(wrapped)
            value.backward()
            chosen.step()
            return value.detach()

        return step

    return begin


def _notes(model: Any) -> tuple[str, ...]:
    if any(type(module).__name__ == "OptimizedModule" for module in model.modules()):
        return ("the model is compiled: gradients of a compiled graph become ready together, not layer by layer",)
    return ()


def _observed(factory: str, model: Any, begin: Beginner) -> Workload:
    """A rough profile: the order in which gradients become ready, and when, in the last of three steps."""
    ready: dict[str, float] = {}
    step, hooks = begin(None, None), []

    def hook(name: str) -> Callable[[Any], None]:
        return lambda tensor: ready.__setitem__(name, time.perf_counter())

    for name, tensor in model.named_parameters():
        if tensor.requires_grad:
            hooks.append(tensor.register_post_accumulate_grad_hook(hook(name)))
    try:
        for _ in range(3):
            ready.clear()
            start = time.perf_counter()
            step(model)
    except Exception as error:
        raise JobError(f"{factory}: a step without DDP failed: {type(error).__name__}: {error}") from None
    finally:
        for handle in hooks:
            handle.remove()
    return _workload(factory, model, ready, start)


def _workload(factory: str, model: Any, ready: dict[str, float], start: float) -> Workload:
    """A rough workload: everything before the first gradient counts as forward, since nothing here tells them apart."""
    tensors = dict(model.named_parameters())
    layers, before = [], start
    for position, (name, moment) in enumerate(ready.items()):
        size = tensors[name].numel() * tensors[name].element_size()
        spent, before = moment - before, moment
        kind, shape = str(tensors[name].dtype).removeprefix("torch."), tuple(tensors[name].shape)
        layers.append(Layer(name, 0 if position else spent, spent if position else 0, size, kind, shape=shape))
    if not layers:
        raise UsageError(
            f"{factory}: no parameter got a gradient from the loss: check that the loss depends on the "
            "model's trainable parameters"
        )
    return Workload(factory, tuple(reversed(layers)))


def agreed(subject: TrainingSubject) -> TrainingSubject:
    """The subject with rank 0's workload on every rank: each may have observed its own."""
    import torch.distributed as dist

    found = [subject.workload]
    dist.broadcast_object_list(found, 0)
    return replace(subject, workload=found[0])
