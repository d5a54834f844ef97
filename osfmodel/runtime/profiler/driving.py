"""Train steps of our own around a model, to profile it: one workload per batch size, and time by batch size.

On PyTorch's meta device, where tensors have shapes and no data, operations are counted instead, without weights and
without a GPU, and take their time from a GPU's data sheet as for workloads in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

from osfmodel.counting.library.counted import model_of
from osfmodel.counting.library.counter import Counter
from osfmodel.counting.modules import Model
from osfmodel.counting.roofline import ADAM_BYTES, workload_of
from osfmodel.counting.training import TrainingSetup
from osfmodel.entities.errors import DataError, OsfError, UsageError
from osfmodel.entities.measurement import Source
from osfmodel.entities.workload import Layer, Workload
from osfmodel.runtime.profiler import WARM_UP, Profile, first_size
from osfmodel.runtime.profiler.conditions import Wanted
from osfmodel.runtime.training.factories import Maker, Training, mapped, output_of

RATE = 1e-4
"""Learning rate of the stand-in optimizer: small, so that random weights stay finite. Times do not depend on it."""
DTYPES = ("float32", "bfloat16")


class Driving(NamedTuple):
    """Settings of the training: ``autocast`` computes in ``dtype`` but keeps parameters and gradients as they are."""

    steps: int = 20
    warm_up: int = WARM_UP
    dtype: str = "float32"
    device: str = "cpu"
    autocast: bool = False

    @property
    def words(self) -> str:
        """The type of computation, in words."""
        return f"autocast to {self.dtype}" if self.autocast else self.dtype

    @property
    def stored(self) -> Any:
        """torch's type for parameters and batches; None to keep theirs."""
        import torch

        return None if self.autocast or self.dtype == "float32" else getattr(torch, self.dtype)


class Measured(NamedTuple):
    """A workload, remarks about it, and whether its steps were cut short."""

    workload: Workload
    warnings: tuple[str, ...]
    interrupted: bool = False


def measure(
    name: str, make: Maker, batch_size: int | None, driving: Driving, tell: Callable[[int, int], None]
) -> Measured:
    """Profile one training. ``tell`` is called with the number of the iteration and of all iterations.

    Interrupted (Ctrl-C) after the first steps it makes a profile of the steps so far. Raises UsageError for a device
    that is not here, DataError for a model that does not train.
    """
    training = placed(make(batch_size), driving)
    optimizer = training.optimizer or default_optimizer(training.model)
    size = batch_size or first_size(training.batch)
    wanted = Wanted(name, size, driving.warm_up, driving.steps, _remark(driving, training.batch))
    watched = Profile(training.model, wanted)
    interrupted = False
    with watched:
        try:
            _train(training, optimizer, watched, driving, tell)
        except KeyboardInterrupt:
            interrupted = True
    return _measured(watched, interrupted)


def _measured(watched: Profile, interrupted: bool) -> Measured:
    try:
        workload, warnings = watched.workload, watched.warnings
    except DataError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    return Measured(workload, tuple(warnings), interrupted)


def _train(
    training: Training, optimizer: Any, watched: Profile, driving: Driving, tell: Callable[[int, int], None]
) -> None:
    count = driving.warm_up + 2 * driving.steps
    training.model.train()
    for number in range(count):
        tell(number + 1, count)
        optimizer.zero_grad()
        loss = loss_of(training, driving)
        if number == 0:
            require_loss(loss)
        loss.backward()
        optimizer.step()
        watched.step()


def loss_of(training: Training, driving: Driving) -> Any:
    """The loss of one forward. Raises DataError where it fails."""
    model, batch = training.model, training.batch
    try:
        with _precision(driving):
            if isinstance(batch, Mapping):
                return training.loss(model(**batch))
            if isinstance(batch, tuple | list):
                inputs, targets = batch
                return training.loss(output_of(model, inputs), targets)
            return training.loss(model(batch))
    except (OsfError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise DataError(f"the forward failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}") from error


def _precision(driving: Driving) -> AbstractContextManager[Any]:
    import torch

    if not driving.autocast:
        return nullcontext()
    kind = torch.device(driving.device).type
    context: AbstractContextManager[Any] = torch.autocast(kind, getattr(torch, driving.dtype))
    return context


def require_loss(loss: Any) -> None:
    """Raise DataError unless the loss is one element with a gradient."""
    import torch

    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise DataError(f"the loss function returned {type(loss).__name__}, not a tensor of one element")
    if not loss.requires_grad:
        raise DataError("the loss does not depend on any trainable parameter: it has no gradient")


def placed(training: Training, driving: Driving) -> Training:
    """Model and batch on the device and in the dtype asked for. Raises UsageError for a device that is not here."""
    device, dtype = device_of(driving.device), driving.stored

    def moved(tensor: Any) -> Any:
        return tensor.to(device, dtype) if tensor.is_floating_point() else tensor.to(device)

    training.model.to(device, dtype)
    return training._replace(batch=mapped(training.batch, moved))


def default_device() -> str:
    """The GPU, if there is one, else the CPU."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def device_of(text: str) -> Any:
    """A device by name. Raises UsageError for an unknown one."""
    import torch

    try:
        device = torch.device(text)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise UsageError(f"--device {text}: {' '.join(str(error).split())[:120]}") from None
    return device


def default_optimizer(model: Any) -> Any:
    """SGD with momentum, where the factory gives no optimizer. Raises UsageError if all is frozen."""
    import torch

    trained = [tensor for tensor in model.parameters() if tensor.requires_grad]
    if not trained:
        raise UsageError(f"{type(model).__name__} has no trainable parameters: there is nothing to communicate")
    return torch.optim.SGD(trained, lr=RATE, momentum=0.9)


def _remark(driving: Driving, batch: Any) -> str:
    shapes: list[str] = []
    mapped(batch, lambda tensor: shapes.append("x".join(map(str, tensor.shape)) or "1"))
    return f"{driving.words}, batch of {', '.join(shapes)}"


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
    how = f"counted on the meta device and from data sheets, not measured: {driving.words}, batch {size}"
    source = Source("a model's operations and the GPU's data sheet", f"{how}, update by {type(optimizer).__name__}",
                    gpu=made.source.gpu)  # fmt: skip
    workload = replace(made, batch_size=size, update_time=update, state_bytes=state, source=source)
    more = f" and {len(unused) - NAMED} more" if len(unused) > NAMED else ""
    without = f"without a gradient, and left out: {', '.join(unused[:NAMED])}{more}"
    return Measured(workload, (without,) if unused else ())


def _made(make: Maker, batch_size: int | None, driving: Driving) -> tuple[Training, Any]:
    """A training on the meta device, in its type, and its optimizer."""
    import torch

    with torch.device(META):
        try:
            training = make(batch_size)
        except DataError as error:
            raise DataError(f"{error}; {REMEDY}") from error
    dtype = driving.stored
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
