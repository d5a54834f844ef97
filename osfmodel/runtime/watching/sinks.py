"""Places that records of steps are written to: JSON lines, TensorBoard, W&B, MLflow, functions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from statistics import fmean
from typing import Any, NamedTuple, Protocol

from osfmodel.entities.errors import DataError, UsageError

PREFIX = "osf/"
"""Prefix of our metrics among those of a training."""
NOT_AVERAGED = ("step", "late_rank")
"""Keys of a record whose mean over steps says nothing."""
Records = Sequence[dict[str, Any]]


class RecordSink(Protocol):
    """A place for records of steps."""

    def write(self, records: Records) -> None:
        """Write the records of some steps, in order."""

    def close(self) -> None:
        """Write what is left, and let go of what this sink opened."""


class Service(NamedTuple):
    """A tracker of experiments: the package that it needs, and how it is opened with what follows its name."""

    package: str
    open: Callable[[str], RecordSink]


class JsonLines:
    """A file with one JSON object a step."""

    def __init__(self, path: str | os.PathLike[str], go_on: bool) -> None:
        try:
            self.file = open(path, "a" if go_on else "w", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise DataError(f"{os.fspath(path)}: cannot write the times of steps there: {error.strerror}") from None

    def write(self, records: Records) -> None:
        """Append a line for each step."""
        self.file.writelines(json.dumps(record) + "\n" for record in records)
        self.file.flush()

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class Called:
    """A user's function, called with each record."""

    def __init__(self, function: Callable[[dict[str, Any]], object]) -> None:
        self.function = function

    def write(self, records: Records) -> None:
        """Call the function."""
        for record in records:
            self.function(record)

    def close(self) -> None:
        """No-op: nothing was opened."""


class TensorBoard:
    """Scalars of a TensorBoard folder, one a step."""

    def __init__(self, folder: str) -> None:
        self.writer = import_module("torch.utils.tensorboard").SummaryWriter(folder or None)

    def write(self, records: Records) -> None:
        """Add the scalars of each step."""
        for record in records:
            for name, value in numbers(record).items():
                self.writer.add_scalar(PREFIX + name, value, record["step"])

    def close(self) -> None:
        """Close the writer."""
        self.writer.close()


class WeightsAndBiases:
    """Means over the steps of a window, beside what the training logs next: W&B takes no earlier step than the last."""

    def __init__(self, _: str) -> None:
        self.wandb = import_module("wandb")
        if self.wandb.run is None:
            raise UsageError("no W&B run is under way: call wandb.init before osf.watch")

    def write(self, records: Records) -> None:
        """Add the means to the row that the training logs next."""
        self.wandb.log({PREFIX + name: value for name, value in means(records).items()}, commit=False)

    def close(self) -> None:
        """No-op: the run is the training's."""


class MlFlow:
    """Means over the steps of a window, as metrics of the active MLflow run."""

    def __init__(self, _: str) -> None:
        mlflow = import_module("mlflow")
        run = mlflow.active_run()
        if run is None:
            raise UsageError("no MLflow run is under way: call mlflow.start_run before osf.watch")
        self.log, self.run = mlflow.log_metrics, run.info.run_id

    def write(self, records: Records) -> None:
        """Log the means, at the last step of the window."""
        found = {PREFIX + name: value for name, value in means(records).items()}
        self.log(found, step=records[-1]["step"], run_id=self.run, synchronous=False)

    def close(self) -> None:
        """No-op: the run is the training's."""


SERVICES = {
    "tensorboard": Service("tensorboard", TensorBoard),
    "wandb": Service("wandb", WeightsAndBiases),
    "mlflow": Service("mlflow", MlFlow),
}
"""Trackers by the names that ``osf.watch`` takes; what follows a colon is the folder."""


def opened(target: Any, rank: int, go_on: bool) -> RecordSink | None:
    """The sink for a target of ``osf.watch``; None on ranks that do not write it.

    Rank 0 writes; a file with ``{rank}`` in its name, and a function, are for every rank. ``go_on``: whether to append
    to a file that is there. Raises UsageError for what is no target, or needs a package that is not installed,
    DataError for a file that cannot be written.
    """
    if callable(target):
        return Called(target)
    if not isinstance(target, str | os.PathLike):
        raise UsageError(
            f"a {type(target).__name__} is no place for the times of steps: give a file's name, a function, or one of "
            f"{', '.join(SERVICES)}"
        )
    name = os.fspath(target)
    if "{rank}" in name:
        return JsonLines(name.replace("{rank}", str(rank)), go_on)
    if rank:
        return None
    service, _, folder = name.partition(":")
    if service not in SERVICES:
        return JsonLines(name, go_on)
    try:
        return SERVICES[service].open(folder)
    except ImportError:
        package = SERVICES[service].package
        raise UsageError(f"{package} is not installed: pip install {package}, or watch into a .jsonl file") from None


def numbers(record: dict[str, Any]) -> dict[str, float]:
    """The numbers of a record, but for its step."""
    return {name: value for name, value in record.items() if name != "step" and value is not None}


def means(records: Records) -> dict[str, float]:
    """Means over the steps; of the late rank, which is one for a window, the last."""
    names = dict.fromkeys(name for record in records for name in record if name not in NOT_AVERAGED)
    found = {name: fmean(record[name] for record in records if name in record) for name in names}
    late = records[-1].get("late_rank")
    return found if late is None else found | {"late_rank": float(late)}
