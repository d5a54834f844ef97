"""``with osf.watch(model, "watch.jsonl"):`` around a training loop: the times of its steps, without a profiler."""

from __future__ import annotations

import atexit
import os
import warnings
from collections.abc import Callable
from itertools import count
from types import TracebackType
from typing import Any

from osfmodel.entities.errors import UsageError
from osfmodel.runtime.watching.hooks import ModelHooks
from osfmodel.runtime.watching.sinks import opened
from osfmodel.runtime.watching.steps import MarkedStep, StepRecorder
from osfmodel.runtime.watching.writer import RecordWriter, exchange_of

EVERY = 10
"""Steps in a window: so often times are exchanged and written."""
CLOSING = 5.0
"""Seconds at the end of a watch to wait for the last times of other ranks."""
HURRY = 1.0
"""Seconds to wait for other ranks after an exception: they may never come."""
NO_STEP = "no step ended: steps end with a torch.optim optimizer of the model, or call .step() on this"
_NUMBERS = count()

Target = str | os.PathLike[str] | Callable[[dict[str, Any]], object]


def watch(model: Any, *targets: Target, every: int = EVERY, start: int = 0) -> Watch:
    """Watch the steps of a model from now on: step time, exposed communication and the late rank.

    model:   as the loop calls it: the DDP, FSDP2 or compiled module, or the plain one inside of DDP
    targets: files of JSON lines, ``"tensorboard"`` or ``"tensorboard:FOLDER"``, ``"wandb"``, ``"mlflow"``, functions
             of a record. Rank 0 writes; a file with ``{rank}`` in its name, and a function, are for every rank.
    every:   steps after which ranks exchange their times, and records are written
    start:   number of the first step; above 0, files are continued and not begun anew

    Call it on every rank, after ``init_process_group``. A step ends with the step of a ``torch.optim`` optimizer of the
    model, or where the loop calls ``.step()``. Times are in seconds. Use the result as a context, or call ``.close()``.

    Raises UsageError for what is not a module with trainable parameters on a CPU or GPU, for ``every`` below 1, and
    for a target whose package is not installed; DataError for a file that cannot be written.
    """
    return Watch(model, targets, every, start)


class Watch:
    """A watched model. ``records`` are its latest steps, as they are written."""

    def __init__(self, model: Any, targets: tuple[Target, ...] = (), every: int = EVERY, start: int = 0) -> None:
        for name, value, least in (("every", every, 1), ("start", start, 0)):
            if value < least:
                raise UsageError(f"{name}={value}: give {least} or more")
        device = _device(model)
        exchange = exchange_of(next(_NUMBERS))
        rank = _rank()
        self.every = every
        self.steps: list[MarkedStep] = []
        self.recorder = StepRecorder(device, start, self._ended, exchange is None)
        found = [opened(target, rank, start > 0) for target in targets]
        self.writer = RecordWriter([sink for sink in found if sink is not None], exchange)
        self.hooks: ModelHooks | None = ModelHooks(model, self.recorder)
        atexit.register(self.close)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        self._close(CLOSING if kind is None else HURRY)
        if kind is None:
            self._warn()

    def step(self) -> None:
        """End a step here. Not needed if a ``torch.optim`` optimizer of the model steps; from then on needed."""
        if self.hooks is not None:
            self.recorder.step()

    def close(self) -> None:
        """Remove all hooks, and write what is left; waits at most some seconds for other ranks."""
        self._close(CLOSING)
        self._warn()

    @property
    def records(self) -> tuple[dict[str, Any], ...]:
        """The records written so far, the latest 10,000 of them."""
        return tuple(self.writer.records)

    def _close(self, patience: float) -> None:
        if self.hooks is None:
            return
        self.hooks.close()
        self.hooks = None
        atexit.unregister(self.close)
        self.recorder.finish()
        if not self.recorder.ended_any and self.recorder.forwards:
            self.writer.notes.append(NO_STEP)
        self._hand_over()
        self.writer.close(patience)

    def _ended(self, step: MarkedStep) -> None:
        self.steps.append(step)
        if len(self.steps) >= self.every:
            self._hand_over()
            self._warn()

    def _warn(self) -> None:
        while self.writer.notes:
            warnings.warn(f"osf.watch: {self.writer.notes.popleft()}", RuntimeWarning, stacklevel=2)

    def _hand_over(self) -> None:
        steps, self.steps = self.steps, []
        if steps:
            self.writer.put(steps)


def _device(model: Any) -> Any:
    """The device of a model. Raises UsageError for what cannot be watched."""
    import torch

    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"a {type(model).__name__} cannot be watched: give a torch.nn.Module")
    device = next((tensor.device for tensor in model.parameters() if tensor.requires_grad), None)
    if device is None:
        raise UsageError(f"{type(model).__name__} has no trainable parameters: there are no steps to watch")
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"cannot watch a model on {device.type!r}: osfmodel reads the clocks of cpu and cuda")
    return device


def _rank() -> int:
    import torch.distributed as dist

    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
