"""Results of ``osf predict``, ``osf tune`` and ``osf scale`` as ``osf compare`` sees them: step times without noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from osfmodel.diagnosis.comparing.readings import EXACT, Reading, Timed
from osfmodel.diagnosis.comparing.statistics import StepSeries
from osfmodel.entities.errors import DataError


def prediction_reading(document: Mapping[str, Any], name: str) -> Reading:
    """The step times in a result of ``osf predict``, ``osf tune`` or ``osf scale``. Raises DataError."""
    rows = [*_predicted(document), *_tuned(document), *_scaled(document)]
    facts = {key: str(document[key]) for key in ("workload", "cluster") if isinstance(document.get(key), str)}
    return Reading(name, "prediction", tuple(rows), facts=facts)


def holds_prediction(document: Mapping[str, Any]) -> bool:
    """Whether it is a result of ``osf predict``, ``osf tune`` or ``osf scale``."""
    return any(key in document for key in ("predictions", "sweep", "default_iteration_time_s", "points"))


def _predicted(document: Mapping[str, Any]) -> Iterator[Timed]:
    for entry in _rows(document, "sweep") or [document]:
        for row in _rows(entry, "predictions"):
            time, compute = _time(row, "iteration_time_s"), _time(entry, "compute_time_s")
            exposed = _time(row, "exposed_communication_s")
            parts = {
                "compute": compute,
                "exposed communication": exposed,
                "effects of communication on computation": max(0.0, time - compute - exposed),
            }
            label = f"{row.get('plan', 'plan')}, {entry.get('workers')} workers"
            yield _exact(label, time, parts, _band(row, "error_band"))


def _tuned(document: Mapping[str, Any]) -> Iterator[Timed]:
    rows = [one for one in [document, *_rows(document, "sweep")] if "default_iteration_time_s" in one]
    for row in rows:
        for which in ("default", "tuned"):
            label = f"{document.get('target', 'target')} {which}, {row.get('workers')} workers"
            yield _exact(label, _time(row, f"{which}_iteration_time_s"), band=_band(row, f"{which}_error_band"))


def _scaled(document: Mapping[str, Any]) -> Iterator[Timed]:
    for row in _rows(document, "points"):
        if row.get("step_time_s") is not None:
            label = f"{row.get('strategy')}, {row.get('workers')} workers"
            yield _exact(label, _time(row, "step_time_s"), band=_band(row, "error_band"))


def _exact(
    label: str, time: float, parts: Mapping[str, float] | None = None, band: tuple[float, float] | None = None
) -> Timed:
    return Timed(label, (StepSeries((time,), 0.0),), EXACT, parts or {}, band=band)


def _band(row: Mapping[str, Any], key: str) -> tuple[float, float] | None:
    band = row.get(key)
    return (_time(band, "low_s"), _time(band, "high_s")) if isinstance(band, dict) else None


def _rows(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The list of objects under ``key``; [] without one. Raises DataError for anything else."""
    rows = document.get(key, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{key} is not a list of objects")
    return rows


def _time(row: Mapping[str, Any], key: str) -> float:
    """The number of seconds under ``key``. Raises DataError for anything else."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{key} is {value!r:.40}: a number of seconds is needed")
    try:
        return float(value)
    except OverflowError:
        raise DataError(f"{key} is {str(value)[:20]}...: a number of seconds is needed") from None
