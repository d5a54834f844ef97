"""Train steps of our own around a model, to profile it: one workload per batch size, and time by batch size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

from osfmodel.entities.display import show_time
from osfmodel.entities.errors import DataError, OsfError, UsageError
from osfmodel.entities.workload import Workload
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
    import torch

    device = device_of(driving.device)
    dtype = None if driving.autocast or driving.dtype == "float32" else getattr(torch, driving.dtype)

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
    how = f"autocast to {driving.dtype}" if driving.autocast else driving.dtype
    return f"{how}, batch of {', '.join(shapes)}"


class BatchFit(NamedTuple):
    """Seconds of forward and backward as a line over samples, by least squares."""

    fixed: float
    per_sample: float
    worst: float
    sizes: tuple[int, ...]

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.sizes))
        sign = "-" if self.fixed < 0 else ""
        exact = ", which two sizes fit exactly" if len(self.sizes) == 2 else f", worst residual {self.worst:.1%}"
        return (
            f"forward and backward at batch {sizes}: {sign}{show_time(abs(self.fixed))} + "
            f"{show_time(self.per_sample)} per sample{exact}"
        )


def batch_fit(workloads: Sequence[Workload]) -> BatchFit | None:
    """The growth of forward and backward with the batch; None for fewer than two batch sizes."""
    import numpy as np

    points = {w.batch_size: w.forward_time + w.backward_time for w in workloads if w.batch_size is not None}
    if len(points) < 2:
        return None
    sizes, times = np.array(list(points), dtype=float), np.array(list(points.values()))
    per_sample, fixed = np.polyfit(sizes, times, 1)
    worst = float(np.max(np.abs(fixed + per_sample * sizes - times) / times))
    return BatchFit(float(fixed), max(0.0, float(per_sample)), worst, tuple(int(size) for size in points))


def with_fit(workload: Workload, fit: BatchFit) -> Workload:
    """The workload with the growth of its time with the batch in its conditions."""
    return replace(workload, source=replace(workload.source, conditions=f"{workload.source.conditions}; {fit}"))
