"""A run: an executed program, with the times of its operations."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain

from osfmodel.engine.levels import Memory, curve
from osfmodel.engine.program import COMPUTE, Program
from osfmodel.entities.timeline import LateSpans, Span, Timeline


@dataclass(slots=True)
class Run:
    """An executed program: seconds by number of the operation, which ``computed`` and ``sent`` hold as they ended.

    begun: numbers of collectives in the order in which they began, by stream
    sent:  (number, channel)
    """

    program: Program
    starts: list[float]
    ends: list[float]
    begun: dict[str, list[int]] = field(default_factory=dict)
    computed: list[int] = field(default_factory=list)
    sent: list[tuple[int, int]] = field(default_factory=list)
    finish: float = 0

    def timeline(self, compute_time: float) -> Timeline:
        """The timeline of the run; ``compute_time``: seconds of a single GPU."""
        return Timeline(LateSpans(self._spans), compute_time, self.finish, "simulator", self)

    def _spans(self) -> tuple[Span, ...]:
        """Spans of computations, then of collectives, each in the order in which they ended."""
        operations = self.program.operations
        computed = ((COMPUTE, number) for number in self.computed)
        sent = ((f"{operations[number].stream} {channel}", number) for number, channel in self.sent)
        return tuple(self._span(lane, number) for lane, number in chain(computed, sent) if self._shown(number))

    def _shown(self, number: int) -> bool:
        return not self.program.operations[number].quiet or self.ends[number] > self.starts[number]

    def _span(self, lane: str, number: int) -> Span:
        one = self.program.operations[number]
        return Span(one.kind, lane, one.layers, self.starts[number], self.ends[number], one.bucket)

    @property
    def memory(self) -> Memory:
        """Memory at the moments of the program, which ``engine.strategies.holdings`` adds to it."""
        return curve(self.program, self.starts, self.ends, self.finish)


def issued_run(timeline: Timeline | None) -> Run | None:
    """The run of a timeline, if its program holds at other prices as well."""
    run = None if timeline is None else timeline.run
    return run if isinstance(run, Run) and run.program.works else None
