"""Lightning's metrics.csv as CSVLogger wrote it with lightning 2.6.6: a row for each call that logs."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence


def metrics(rows: Sequence[Mapping[str, object]]) -> str:
    """The file: columns in alphabetical order, empty where a row has none."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, sorted({name for row in rows for name in row}))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def throughput(
    step_time: float = 0.5, lines: int = 12, every: int = 4, accumulate: int = 1, world: int = 2, batch: int = 8
) -> str:
    """ThroughputMonitor's rows, slow in the first and in one of validation, each followed by one of the loss."""
    rows: list[Mapping[str, object]] = []
    for line in range(1, lines + 1):
        steps = line * every
        batches, time = steps * accumulate, 30 + steps * step_time
        row = {"epoch": 0, "step": steps - 1, "train/time": time, "train/batches": batches,
               "train/samples": batches * batch}  # fmt: skip
        if line > 2:
            rate = batch * accumulate / step_time
            row["train/device/samples_per_sec"] = rate
            row["train/device/batches_per_sec"] = accumulate / step_time
            if world > 1:
                row["train/samples_per_sec"] = rate * world
        rows += [row, {"epoch": 0, "step": steps - 1, "train_loss_step": 1 / line}]
    rows.insert(7, {"step": 1, "validate/time": 0.04, "validate/batches": 4, "validate/samples": 256})
    return metrics(rows)


def logged(name: str, values: Sequence[float]) -> str:
    """The rows of a module that logs one figure a step."""
    return metrics([{"epoch": 0, "step": step, name: value} for step, value in enumerate(values)])


def without_times() -> str:
    """The rows of losses and of DeviceStatsMonitor."""
    usage = {"step": 1, "DeviceStatsMonitor.on_train_batch_end/allocated_bytes.all.current": 4096}
    return metrics([usage, {"epoch": 0, "step": 1, "train_loss_step": 0.5}])
