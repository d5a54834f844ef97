"""Steps of a watched model: the marks of each, noted while it trains, and its times in seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from threading import get_ident
from typing import Any

from osfmodel.entities.timeline import length
from osfmodel.runtime.profiler.recording import Mark, clock_of, seconds

Marks = tuple[Mark, Mark]
"""Start and end."""
DIGITS = 9
"""Decimals of a time in a record: nanoseconds."""

MOST = 100_000
"""Forwards without the end of a step after which their marks are forgotten, as nothing may ever end it."""


@dataclass(frozen=True, slots=True)
class MarkedStep:
    """One step as marks, whose events a GPU may still have to pass.

    forward, backward, update: from the first to the last of their work, one for each micro-batch or optimizer
    waits: for communication, on the thread or stream that trains
    copied: seconds of ``waits`` in which the thread copied, and did not wait
    told:  whether ``waits`` holds every wait: not where communication is part of a compiled graph, or Horovod's
    """

    number: int
    start: Mark
    end: Mark
    forward: tuple[Marks, ...] = ()
    backward: tuple[Marks, ...] = ()
    update: tuple[Marks, ...] = ()
    waits: tuple[Marks, ...] = ()
    copied: float = 0.0
    told: bool = True

    @property
    def passed(self) -> bool:
        """Whether a GPU has passed the step's events."""
        return self.end.event is None or bool(self.end.event.query())

    def times(self) -> StepTimes:
        """The step in seconds; on a GPU, wait until it has passed the step's events."""
        if self.end.event is not None:
            self.end.event.synchronize()
        forward, backward, update, waits = map(self._length, (self.forward, self.backward, self.update, self.waits))
        exposed = max(0.0, (waits or 0.0) - self.copied) if self.told else None
        return StepTimes(self.number, seconds(self.start, self.end), forward, backward, update, exposed)

    def _length(self, marks: Iterable[Marks]) -> float | None:
        found = [(seconds(self.start, one), seconds(self.start, other)) for one, other in marks]
        return length(found) if found else None


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One step of one rank, in seconds.

    forward, backward, update: summed over micro-batches; None if hooks did not see them
    exposed:   time in which the rank waited for communication; None if parts of the model ran without hooks
    waiting:   its part that is due to slower ranks; None if the other ranks' times are not known
    late_rank: rank that the others wait for; None if there is none, or if it is not known
    late_by:   seconds by which the own work of that rank takes longer than the median of the others
    """

    step: int
    time: float
    forward: float | None = None
    backward: float | None = None
    update: float | None = None
    exposed: float | None = None
    waiting: float | None = None
    late_rank: int | None = None
    late_by: float | None = None

    @property
    def record(self) -> dict[str, Any]:
        """The step as a line of JSON. What is not known is left out; ``late_rank`` is null if no rank is late."""
        times = ("time", "forward", "backward", "update", "exposed", "waiting", "late_by")
        found: dict[str, Any] = {"step": self.step}
        found |= {name: round(value, DIGITS) for name in times if (value := getattr(self, name)) is not None}
        return found if self.waiting is None else found | {"late_rank": self.late_rank}

    def with_waiting(self, waiting: float, late_rank: int | None, late_by: float | None) -> StepTimes:
        """The step with what the other ranks' times say of it."""
        return replace(self, waiting=waiting, late_rank=late_rank, late_by=late_by)


class StepRecorder:
    """Marks of the step under way; each step that ends goes to ``ended``.

    A step ends with the optimizer's step. It is closed when the next forward begins, since several optimizers may
    share a model, or when the same optimizer steps again. After the first :meth:`step` only that ends steps.
    ``alone``: whether this is the only rank.
    """

    def __init__(self, device: Any, first: int, ended: Callable[[MarkedStep], None], alone: bool = True) -> None:
        self.device, self.number, self.ended, self.alone = device, first, ended, alone
        self.mark = _clock(device)
        self.explicit = self.ended_any = False
        self.start: Mark | None = None
        self.last_update: Mark | None = None
        self.updated_by: set[int] = set()
        self.forward: list[Marks] = []
        self.backward: list[Marks] = []
        self.update: list[Marks] = []
        self.waits: list[Marks] = []
        self.forwards = self.reduced = self.to_reduce = 0
        self.copied = 0.0
        self.place: Any = None

    def begin_forward(self) -> Mark:
        """Note that the model's forward begins, and end the step before."""
        now = self.mark()
        if self.last_update is not None and not self.explicit:
            self._close(self.last_update)
        if self.start is None:
            self.start = now
        self.place = self._here()
        return now

    def end_forward(self, begun: Mark, to_reduce: bool) -> None:
        """Note that the forward that began at ``begun`` is over. ``to_reduce``: DDP will reduce its gradients."""
        self.forward.append((begun, self.mark()))
        self.forwards += 1
        if self.forwards > MOST:
            for part in (self.forward, self.backward, self.update, self.waits):
                part.clear()
        self.to_reduce += to_reduce

    def end_backward(self, begun: Mark, to_reduce: bool) -> Callable[[], None]:
        """Note that the computation of a backward is over; call the result when all of it is.

        In between DDP waits for its buckets, if ``to_reduce``, and copies them. A thread that waits takes no time of a
        processor, which tells the two apart; on a GPU copies count as waiting, as they are short there.
        """
        computed, busy = self.mark(), self._busy()

        def end() -> None:
            now = self.mark()
            self.backward.append((begun, now))
            if to_reduce:
                self.waits.append((computed, now))
                self.copied += min(self._busy() - busy, now.host - computed.host)
                self.reduced += 1

        return end

    def end_wait(self, begun: Mark) -> None:
        """Note that a wait for communication is over."""
        self.waits.append((begun, self.mark()))

    def begin_update(self, optimizer: int) -> Mark:
        """Note that an optimizer's step begins; one that steps again ends the step before."""
        if optimizer in self.updated_by and self.last_update is not None and not self.explicit:
            self._close(self.last_update)
        return self.mark()

    def end_update(self, optimizer: int, begun: Mark | None) -> None:
        """Note that an optimizer's step is over."""
        self.last_update = self.mark()
        self.updated_by.add(optimizer)
        if self.start is None:
            self.start = self.last_update  # the model runs without hooks: the first step begins here
            self.last_update = None
        elif begun is not None:
            self.update.append((begun, self.last_update))

    def step(self) -> None:
        """End a step now."""
        self.explicit = True
        now = self.mark()
        if self.start is None:
            self.start = now
        else:
            self._close(now)

    def finish(self) -> None:
        """End the last step, if an optimizer ended it."""
        if self.last_update is not None and not self.explicit:
            self._close(self.last_update)

    def waits_here(self) -> bool:
        """Whether this thread, or on a GPU the current stream, is the one that trains."""
        return self.place is not None and self._here() == self.place

    def _busy(self) -> float:
        """Processor seconds of this thread so far; 0 on a GPU."""
        return time.thread_time() if self.device.type == "cpu" else 0.0

    def _here(self) -> Any:
        if self.device.type != "cuda":
            return get_ident()
        import torch

        return torch.cuda.current_stream(self.device)

    def _close(self, end: Mark) -> None:
        assert self.start is not None
        parts = (self.forward, self.backward, self.update, self.waits)
        forward, backward, update, waits = (
            tuple(marks for marks in part if marks[0].host < end.host) for part in parts
        )
        told = self._told(bool(waits))
        self.ended(MarkedStep(self.number, self.start, end, forward, backward, update, waits, self.copied, told))
        for part in parts:
            part[:] = [marks for marks in part if marks[0].host >= end.host]
        self.start, self.last_update, self.number = end, None, self.number + 1
        self.ended_any = True
        self.updated_by.clear()
        self.copied = 0.0
        self.forwards = self.reduced = self.to_reduce = 0

    def _told(self, waited: bool) -> bool:
        """Whether all waits of the step are known: ranks of a job that never wait communicate where no hook sees it."""
        if self.alone:
            return "horovod.torch" not in sys.modules
        return waited and self.forwards > 0 and (self.reduced > 0 or not self.to_reduce)


def _clock(device: Any) -> Callable[[], Mark]:
    """A function that makes marks; during the capture of a CUDA graph, marks of the host alone."""
    if device.type != "cuda":
        return clock_of(device)
    import torch

    mark, host = clock_of(device), clock_of(torch.device("cpu"))
    return lambda: host() if torch.cuda.is_current_stream_capturing() else mark()
