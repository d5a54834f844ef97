"""Horovod's autotune log (HOROVOD_AUTOTUNE_LOG): the settings that its tuner tried, and its final ones.

A row holds switches, the cycle time in ms, the fusion threshold in MiB (horovod/common/parameter_manager.cc), and the
score, bytes that were reduced per microsecond: the median of five samples of HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE steps
each. Once it has converged it repeats the best as its last row. Figures have six digits.

It has no times of tensors or collectives, so it becomes no noun: ``osf import`` prints its result.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import NoReturn

from osfmodel.engine.horovod_loop import Loop
from osfmodel.engine.horovod_settings import PREFIX, name_of, switched
from osfmodel.entities.errors import DataError
from osfmodel.entities.units import MIB
from osfmodel.formats.source_text import Hints, Text, columns_of

KNOBS = ("cycle_time_ms", "tensor_fusion_threshold", "score")
"""Columns with figures; all others are switches."""
SAMPLES = 5
"""Samples of which a row's score is the median; Horovod has no setting for it."""
STEPS_PER_SAMPLE = 10
WARM_UPS = 3
"""Horovod's defaults: steps in a sample, and discarded rows of samples before the first row of the log."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One row: threshold in bytes, cycle in seconds, score in bytes per second, and the (name, on) of switches."""

    threshold: int
    cycle: float
    score: float
    switches: tuple[tuple[str, bool], ...] = ()

    @property
    def settings(self) -> str:
        """The settings as the name of a plan (``horovod:32MiB,2.5ms``), without switches that no plan can state."""
        return PREFIX + name_of(Loop(self.threshold, self.cycle, **switched(dict(self.switches))[0]))

    @property
    def plan(self) -> str:
        """The name of a plan with these settings. Raises DataError, naming it, for a switch that no plan can state."""
        _, strange = switched(dict(self.switches))
        if strange:
            raise DataError(f"{', '.join(strange)[:200]} is on, which the name of a plan cannot state")
        return self.settings


@dataclass(frozen=True, slots=True)
class Autotune:
    """The trials ``tried``, in order; ``converged`` is Horovod's final one, None if it was stopped before."""

    tried: tuple[Trial, ...]
    converged: Trial | None

    @property
    def best(self) -> Trial:
        """The first trial with the highest score."""
        return max(self.tried, key=lambda trial: trial.score)

    def steps(self, steps_per_sample: int = STEPS_PER_SAMPLE, warm_ups: int = WARM_UPS) -> int:
        """Steps of training in the log, computed from the settings of the tuner: the log has no count.

        At most one more for every row, where a row's last step is not part of the next.
        """
        return (len(self.tried) + warm_ups) * SAMPLES * steps_per_sample


def sniff(head: str) -> bool:
    """Whether the header has the knobs and the score."""
    return set(KNOBS) <= set(columns_of(head))


def autotune(text: Text) -> Autotune:
    """All rows of the log. Raises DataError if there are none, or for a wrong row."""
    rows = [_trial(text, number, row) for number, row in text.rows()]
    if not rows:
        raise DataError("has a header but no rows: Horovod writes the first after some 200 steps")
    ended = len(rows) > 1 and rows[-1] in rows[:-1] and rows[-1].score == max(row.score for row in rows)
    return Autotune(tuple(rows[:-1] if ended else rows), rows[-1] if ended else None)


def _trial(text: Text, number: int, row: dict[str, str]) -> Trial:
    cycle, threshold, score = (text.number(number, row[text.column(number, row, (name,))]) for name in KNOBS)
    if threshold > 2**40:
        raise text.fault(number, row["tensor_fusion_threshold"], "is too large for a threshold in MiB")
    switches = tuple((name, value.strip() == "1") for name, value in row.items() if name not in KNOBS)
    seconds = float(Decimal(repr(cycle)).scaleb(-3))  # as it is written, to the last digit
    return Trial(int(threshold * MIB), seconds, score * 1e6, switches)


def read(text: Text, hints: Hints) -> NoReturn:
    """Raise DataError with the tuner's result, since there is nothing to import."""
    found = autotune(text)
    kept = found.converged or found.best
    on = [name for name, value in kept.switches if value]
    kind = "converged to" if found.converged else "was stopped before it converged; the best so far is"
    spent = f"{len(found.tried)} settings tried, {found.steps()} steps if its other settings are Horovod's defaults"
    raise DataError(
        f"is Horovod's autotune log, which {kind} {kept.settings}{' with ' if on else ''}{', '.join(on)[:200]} "
        f"({kept.score / 1e6:.4g} MB/s; {spent}): it holds no times of tensors, so there is nothing to import; "
        "for those give a timeline (HOROVOD_TIMELINE=FILE)"
    )
