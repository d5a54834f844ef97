"""A step as one rank saw it: its messages, its waits, and its own work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from osfmodel.diagnosis.scene import RankLane
from osfmodel.diagnosis.waits import LocalClock, Sent, Wait, input_waits, sent, waits
from osfmodel.entities.intervals import Interval, without
from osfmodel.entities.trace import Step


@dataclass(frozen=True, slots=True)
class SeenStep:
    """A step of one rank with its messages and waits, computed once."""

    step: Step
    sent: tuple[Sent, ...]
    waits: tuple[Wait, ...]
    host_computes: bool = False

    @staticmethod
    def of(step: Step, host_computes: bool) -> SeenStep:
        """The step; ``host_computes`` as for :func:`osfmodel.diagnosis.waits.sent`.

        A host that computes waits for DDP's gradients only after backward, whatever pauses come before.
        """
        found = sent(step, host_computes)
        late = {id(one.collective) for one in found if one.gradient} if host_computes and step.ddp else ()
        return SeenStep(step, found, waits(step, late), host_computes)

    @property
    def own_work(self) -> float:
        """Seconds of the step without waits for collectives or the data loader."""
        return self.clock(input_waits(self.step)).at(self.step.end)

    @property
    def idle(self) -> tuple[Interval, ...]:
        """Intervals in which it was idle for no reason that the trace shows."""
        step, waited = self.step, [(wait.start, wait.end) for wait in self.waits]
        return without([(step.start, step.end)], [*step.compute, *step.copies, *step.inputs, *waited])

    def clock(self, left_out: Sequence[Interval]) -> LocalClock:
        """A clock of the rank's own work, without ``left_out``."""
        return LocalClock(self.step.start, [*((wait.start, wait.end) for wait in self.waits), *left_out])

    def lane(self, left_out: Sequence[Interval], begin: float, ordered: bool) -> RankLane:
        """The rank's lane without ``left_out``; ``ordered``: with buckets in the order in which gradients are ready."""
        clock = self.clock(left_out)
        keys = {id(one.collective): one.key for one in self.sent}
        return RankLane(
            self.step.start - begin,
            clock.at(self.step.end),
            {one.key: clock.at(one.ready if ordered else one.formed) for one in self.sent},
            {one.key: one.delay for one in self.sent},
            tuple((clock.at(wait.start), keys[id(wait.collective)]) for wait in self.waits),
        )
