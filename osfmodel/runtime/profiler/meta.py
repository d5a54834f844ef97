"""Profile a model without weights and without a GPU: count its operations on PyTorch's meta device, where tensors have
shapes and no data, and take their time from a GPU's data sheet as for workloads in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from osfmodel.counting.library.counted import model_of
from osfmodel.counting.library.counter import Counter
from osfmodel.counting.modules import Model
from osfmodel.counting.roofline import ADAM_BYTES, workload_of
from osfmodel.counting.training import TrainingSetup
from osfmodel.entities.errors import DataError, OsfError, UsageError
from osfmodel.entities.measurement import Source
from osfmodel.entities.workload import Layer, Workload
from osfmodel.runtime.profiler import first_size
from osfmodel.runtime.profiler.driving import Driving, Measured, default_optimizer, loss_of, require_loss
from osfmodel.runtime.training.factories import Maker, Training, mapped

META = "meta"
"""Name of the device."""
REMEDY = (
    "tensors on --device meta have shapes and no data: leave out .to(device), .item(), branches on values and loaders "
    "of data, or profile on a device that is here"
)
NAMED = 5
"""Parameters named in a warning."""


def count(name: str, make: Maker, batch_size: int | None, driving: Driving, gpu: str) -> Measured:
    """The workload of a training on a GPU of ``GPUS``, counted in one forward; times are learned, not measured.

    ``driving`` says the type of computation, and with ``autocast`` that parameters stay as they are. Raises UsageError
    for a type that the GPU has no matrix units for, DataError for a model that needs data or a real device.
    """
    import torch

    setting = TrainingSetup(gpu, driving.dtype)
    training, optimizer = _made(make, batch_size, driving)
    tensors = dict(training.model.named_parameters())
    frozen = [one for one, tensor in tensors.items() if not tensor.requires_grad]
    if frozen:
        raise UsageError(f"{frozen[0]!r} is frozen, and --device meta counts whole backwards: profile on a device")
    training.model.train()
    counter = Counter(training.model)
    with _failing("the training failed"):
        with torch.device(META), counter.counting():
            loss = loss_of(training, Driving())
        require_loss(loss)
        loss.backward()
    unused = [one for one, tensor in tensors.items() if tensor.grad is None]
    if len(unused) == len(tensors):
        raise DataError("no parameter has a gradient: there is nothing to communicate")
    shapes = {one: tuple(tensor.shape) for one, tensor in tensors.items() if one not in unused}
    model = model_of(name, counter, shapes, _tokens(training))
    with _failing("the update failed; without its optimizer the factory is updated by SGD"):
        optimizer.step()
    made = _workload(model, setting, tensors)
    weights = sum(layer.gradient_bytes for layer in made.layers)
    state = _state_bytes(optimizer)
    update = made.update_time * (3 * weights + 2 * state) / (ADAM_BYTES * model.parameters)
    size = batch_size or first_size(training.batch)
    kind = f"autocast to {driving.dtype}" if driving.autocast else driving.dtype
    how = f"counted on the meta device and from data sheets, not measured: {kind}, batch {size}"
    source = Source("a model's operations and the GPU's data sheet", f"{how}, update by {type(optimizer).__name__}",
                    gpu=made.source.gpu)  # fmt: skip
    workload = replace(made, batch_size=size, update_time=update, state_bytes=state, source=source)
    return Measured(workload, tuple(_warnings(unused)))


def _warnings(unused: list[str]) -> Iterator[str]:
    if unused:
        more = f" and {len(unused) - NAMED} more" if len(unused) > NAMED else ""
        yield f"without a gradient, and left out: {', '.join(unused[:NAMED])}{more}"


def _made(make: Maker, batch_size: int | None, driving: Driving) -> tuple[Training, Any]:
    """A training on the meta device, in its type, and its optimizer."""
    import torch

    with torch.device(META):
        try:
            training = make(batch_size)
        except DataError as error:
            raise DataError(f"{error}; {REMEDY}") from error
    dtype = None if driving.autocast or driving.dtype == "float32" else getattr(torch, driving.dtype)
    moved = _to_meta(training.model)
    training.model.to(dtype)
    if isinstance(training.loss, torch.nn.Module):
        training.loss.to(META)
    batch = mapped(training.batch, lambda one: one.to(META, dtype if one.is_floating_point() else None))
    optimizer = training.optimizer or default_optimizer(training.model)
    for group in optimizer.param_groups:
        group["params"] = [moved.get(id(tensor), tensor) for tensor in group["params"]]
    return training._replace(batch=batch), optimizer


def _to_meta(model: Any) -> dict[int, Any]:
    """Replace tensors with data by such on the meta device, one that is shared by one; {id: its replacement}."""
    import torch

    made: dict[int, Any] = {}
    kept = []
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is None or tensor.device.type == META:
                    continue
                kept.append(tensor)  # so that no other gets its id
                if id(tensor) not in made:
                    new = tensor.detach().to(META)
                    parameter = isinstance(tensor, torch.nn.Parameter)
                    made[id(tensor)] = torch.nn.Parameter(new, tensor.requires_grad) if parameter else new
                table[name] = made[id(tensor)]
    return made


@contextmanager
def _failing(text: str) -> Iterator[None]:
    """A context whose errors of PyTorch or of the model become one line with a remedy."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{error}; {REMEDY}" if error.__cause__ else str(error)) from error
    except (OsfError, KeyboardInterrupt):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"{text}: {type(error).__name__}: {reason}; {REMEDY}") from error


def _state_bytes(optimizer: Any) -> int:
    """Bytes of what an optimizer keeps for each parameter."""
    values = [value for state in optimizer.state.values() for value in state.values() if hasattr(value, "ndim")]
    return sum(value.numel() * value.element_size() for value in values if value.ndim)


def _tokens(training: Training) -> int:
    """Tokens of a sample; 0 where there are none."""
    tokens = training.batch.get("input_ids") if isinstance(training.batch, Mapping) else None
    return 0 if tokens is None else tokens.shape[-1]


def _workload(model: Model, setting: TrainingSetup, tensors: Mapping[str, Any]) -> Workload:
    """The workload in the types of its parameters."""
    made = workload_of(model, setting, model.name)
    return replace(made, layers=tuple(_typed(layer, tensors.get(layer.name)) for layer in made.layers))


def _typed(layer: Layer, tensor: Any) -> Layer:
    if tensor is None:
        return layer
    size = tensor.numel() * tensor.element_size()
    return replace(layer, gradient_bytes=size, dtype=str(tensor.dtype).removeprefix("torch."))
