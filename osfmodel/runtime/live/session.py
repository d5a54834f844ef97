"""A session of several ranks in which rank 0 decides, keeps files, and tells the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from osfmodel.entities.errors import OsfError, StoppedError
from osfmodel.runtime.job.ranks import Place, Voice, Watchdog
from osfmodel.runtime.training.factories import is_factory
from osfmodel.solve.solution import Limits

PLANNING = 1800.0
"""Seconds that the other ranks wait for a decision of rank 0: planning large models takes minutes."""

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """A request to tune, with the folder for results.

    subject:  a workload, which is replayed, or PACKAGE.MODULE:FACTORY
    cluster:  known prices; None: measure them
    workload: known profile of the model; None: measure it
    scale:    replay computation so many times as slow
    limit:    seconds for each collective
    executor: whether to consider a plan of the executor
    """

    subject: str
    folder: str
    cluster: str | None = None
    workload: str | None = None
    scale: float = 1.0
    limits: Limits = Limits()
    limit: float = 60.0
    executor: bool = True

    @property
    def real(self) -> bool:
        """Whether the subject is a user's model."""
        return is_factory(self.subject)


@dataclass(slots=True)
class Session:
    """One rank of a session: its request, its place, and the groups over which rank 0 tells its decisions.

    control: bounded as every collective; planning: for long steps of rank 0
    kept:    the files that exist
    """

    asked: TuneRequest
    place: Place
    watch: Watchdog
    voice: Voice
    control: Any
    planning: Any
    kept: list[str] = field(default_factory=list)

    @property
    def first(self) -> bool:
        """Whether this is rank 0."""
        return self.place.rank == 0

    def path(self, name: str) -> Path:
        """A file of the folder."""
        return Path(self.asked.folder) / name

    def decided(self, make: Callable[[], Made], doing: str, planning: bool = False) -> Made:
        """The result of ``make`` on rank 0, on every rank; or its error, on every rank. ``planning``: it takes long."""
        import torch.distributed as dist

        self.watch.beat(doing)
        # Nothing tells of progress meanwhile; a rank 0 that is gone is noticed at once all the same.
        with self.watch.allowing(self.watch.patience + (PLANNING if planning else 0.0)):
            outcome: list[Any] = [_outcome(make) if self.first else None]
            dist.broadcast_object_list(outcome, 0, group=self.planning if planning else self.control)
        value, error = outcome[0]
        if error is not None:
            raise error
        made: Made = value
        return made

    def keep(self, name: str, write: Callable[[Path], None]) -> None:
        """Write a file on rank 0, and mention it in every later failure."""
        write(self.path(name))
        if name not in self.kept:
            self.kept.append(name)
        self.watch.kept = f"; in {self.asked.folder} there are {', '.join(self.kept)}"


def _outcome(make: Callable[[], Any]) -> tuple[Any, OsfError | None]:
    try:
        return make(), None
    except StoppedError:
        raise  # this rank ends now; the others notice
    except OsfError as error:
        return None, error
