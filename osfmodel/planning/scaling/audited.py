"""The result of an audit: the steps of a job as it is, in the best layout, and with single changes."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from osfmodel.entities.display import brief, show_share
from osfmodel.formats.jobs.job import JobConfig
from osfmodel.planning.results import WORTHWHILE, Chance
from osfmodel.planning.scaling.curve import ScaleCurve, ScalePoint
from osfmodel.solve.verdicts import NO


@dataclass(frozen=True, slots=True)
class AuditedStep:
    """A step of the job, as it is or with a change.

    said:   the change, in words
    point:  the prediction
    gain:   part of the job's time that it saves; None for the job as it is
    chance: the interval of the gain
    """

    said: str
    point: ScalePoint
    gain: float | None = None
    chance: Chance | None = None
    __repr__ = brief

    @property
    def judged(self) -> str | None:
        """Whether the gain is ``beyond`` doubt: its interval is above 0; or ``within`` it, so that it may be none."""
        found = self.chance
        return None if found is None else "beyond" if found.sure or found.high < 0 else "within"

    @property
    def words(self) -> str:
        """The gain with its interval."""
        gain, found = self.gain or 0.0, self.chance
        said = f"{show_share(abs(gain))} {'less' if gain >= 0 else 'more'} time"
        if found is None:
            return said
        return f"{said} ({show_share(found.low, '+')} to {show_share(found.high, '+')} saved, {self.judged} doubt)"


@dataclass(frozen=True, slots=True)
class Audit:
    """The steps of a job as it is, and of what would take less.

    curve: of the job as it is, with the best layouts as ``combinations``
    steps: the job as it is, the best layout, and the changes that gain most
    """

    job: JobConfig
    curve: ScaleCurve
    steps: tuple[AuditedStep, ...]
    __repr__ = brief

    @property
    def command(self) -> str:
        """The command that predicts the job as it is, without its file."""
        now = self.steps[0].point
        given = {"--cluster": self.curve.cluster.name, "--workers": now.workers, "--global-batch": now.samples}
        words = [part for name, value in (given | {"--plan": now.best.name}).items() for part in (name, str(value))]
        return shlex.join(["osf", "scale", self.curve.workload.name, *words, *self.curve.groups.words.split()])

    @property
    def verdict(self) -> str:
        """The distance to the best layout and the change to begin with, in sentences."""
        now, best, *changes = self.steps
        lacking = now.point.fits == NO and self.curve.limit is not None
        said = (
            [f"It does not fit: {now.point.lacking(self.curve.limit.bytes)}."] if lacking and self.curve.limit else []
        )
        if best.point.fits == NO:
            said.append("No layout that was tried fits.")
        elif not lacking and (best.gain is None or best.gain < WORTHWHILE):
            said.append("No layout that was tried is faster.")
        else:
            said.append(f"The best layout{' that fits' * lacking} takes {best.words}.")
        if changes:
            most = "costs least" if lacking else "gains most"
            said.append(f"Of single changes {changes[0].said} {most}: {changes[0].words}.")
        return " ".join(said)
