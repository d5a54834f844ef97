"""Logs of trainers, and other step times, held against one prediction that was saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from osfmodel.diagnosis.comparing import compare_readings, reading_of
from osfmodel.diagnosis.comparing.readings import COMPARABLE, OF_STEPS, Reading, in_band, the_step
from osfmodel.diagnosis.comparing.statistics import FASTER, SLOWER
from osfmodel.entities.display import how_many, show_share
from osfmodel.entities.errors import UsageError
from osfmodel.formats.source_text import silent
from osfmodel.formats.trainers.steps import quartile_spread
from osfmodel.ledger.results import Checked, Row


def check_logs(
    logs: Sequence[str], prediction: str, tolerance: float | None = None, tell: Callable[[str], None] = silent
) -> tuple[Checked, ...]:
    """Judge the prediction of a step in a result of osf predict or osf scale by the median of the steps of each log.

    A log may also be step times or a measured run. ``tell`` receives oddities. Raises UsageError for files of anything
    else and for several predictions, DataError for a file without times.
    """
    predicted = reading_of(prediction, tell=tell)
    if predicted.kind != "prediction":
        raise UsageError(
            f"--prediction {prediction}: is none: give what osf predict or osf scale writes (-o FILE.json)"
        )
    the_step(predicted)
    return tuple(_checked(reading_of(log, tell=tell), predicted, tolerance) for log in logs)


def _checked(run: Reading, predicted: Reading, tolerance: float | None) -> Checked:
    if run.kind not in OF_STEPS or run.kind == predicted.kind:
        raise UsageError(f"{run.name} holds {COMPARABLE[run.kind]}: give a log with times of steps, or measured steps")
    change = compare_readings([predicted], [run]).leading.change
    times = [time for series in the_step(run).runs for time in series.times]
    where = in_band(predicted.subjects, change.candidate)
    noise = "beyond" if change.verdict in (SLOWER, FASTER) else "within"
    spread = f", spread {show_share(quartile_spread(times))}" if len(times) > 1 else ""
    told = f"{how_many(len(times), 'step')}{spread}, {noise} the noise"
    row = Row(run.name, change.candidate, change.baseline, note="; ".join(filter(None, (told, where))), is_time=True)
    return Checked(run.name, (row,), f"nothing here; the prediction is that of {predicted.name}", tolerance)
