"""Hugging Face's trainer_state.json: the seconds of the whole training, its steps and samples per second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from osfmodel.entities.errors import DataError
from osfmodel.formats.source_text import Text, parse
from osfmodel.formats.trainers.steps import LoggedRun


def sniff(head: str) -> bool:
    """Whether it is a JSON object with a history of logs and a global step."""
    return head.lstrip().startswith("{") and '"log_history"' in head and '"global_step"' in head


def log(text: Text) -> LoggedRun:
    """The mean step of the whole training, evaluations included. Raises DataError."""
    document = parse(text)
    history = document.get("log_history")
    if not isinstance(history, list):
        raise DataError("log_history is not a list")
    last: Mapping[str, Any] = next(
        (one for one in reversed(history) if isinstance(one, dict) and "train_runtime" in one), {}
    )
    runtime, steps = _number(last, "train_runtime"), _number(last if "step" in last else document, _key(last))
    if not (runtime and steps):
        raise DataError("has no train_runtime with its steps: it is written when the training ends")
    seconds = runtime / steps
    rate = _number(last, "train_samples_per_second")
    batch = round(rate * seconds) or None if rate else None
    return LoggedRun("trainer", (seconds,), "s", (seconds,), batch)


def _key(last: Mapping[str, Any]) -> str:
    return "step" if "step" in last else "global_step"


def _number(row: Mapping[str, Any], key: str) -> float:
    """A number above 0 and below 10^15; 0.0 for one that is not there. Raises DataError for anything else."""
    value = row.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise DataError(f"{key} is {str(value)[:40]}: a number is needed")
    return float(value)
