"""Simulate any program event by event, whatever its streams, links and priorities.

The device that computes works through its operations in order; each communicator sends its own in order, or by
priority, as many at once as its stream is wide. A collective is first latent (its start-up, which takes no bandwidth),
then transfers, and n transfers share a link (``osfmodel.cost.pricing``). Between two events all speeds are constant, so
nothing is approximated, and rational input gives rational output.

At an instant everything that ends there ends first, also computations that take no time; then collectives begin. The
program of a step whose next forward overlaps goes from the start of one backward to the start of the next. Each
gradient is awaited by a layer before that, so nothing is in flight there, steps do not mix, and one period is the
steady state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from osfmodel.cost.pricing import Pricing
from osfmodel.engine.program import Program, Stream
from osfmodel.engine.run import Run
from osfmodel.entities.errors import PlanError
from osfmodel.entities.records import dataclass


def run(program: Program, pricing: Pricing) -> Run:
    """Execute a program from event to event, and note when each operation begins and ends.

    ``pricing`` says how transfers share a link, and by what computations take longer beside collectives. Raises
    PlanError for a program that comes to a stop before its end.
    """
    found = Run(program, [0] * len(program.operations), [-1] * len(program.operations))
    network = _Network(program, pricing, found)
    compute = _Compute(program, found, network.missing)
    slowdown = pricing.effects.compute_slowdown
    disturbed = 1 / (1 + slowdown) if slowdown else 1
    now: float = 0
    while True:
        network.arrive(now)
        compute.end(now, network.done)
        network.launch(now)
        if slowdown:
            compute.note(now)
        speed = disturbed if slowdown and network.flows and compute.slowed else 1
        steps = network.steps(now)
        if compute.number >= 0:
            steps.append(compute.left / speed)
        if not steps:
            found.finish = now
            _require_ended(found)
            return found
        step = min(steps)
        network.move(step)
        compute.move(step, speed)
        now += step


def _require_ended(run: Run) -> None:
    for number, end in enumerate(run.ends):
        if end < 0:
            stuck = run.program.operations[number]
            raise PlanError(f"operation {number} of the program, {stuck.kind}, waits for what never ends")


class _Compute:
    """The computing device: operations run one after the other; ``missing`` counts those that each still waits for.

    Operations of streams ``between`` are done in order, where one that yields has ended and they need not wait, or
    last.
    """

    def __init__(self, program: Program, run: Run, missing: Sequence[int]) -> None:
        self.operations, self.seconds, self.missing, self.run = program.operations, program.durations, missing, run
        self.queue, self.later = deque(program.wired().computed), deque(program.wired().between)
        self.number = -1
        self.yielded = False
        self.left: float = 0

    def end(self, now: float, done: Callable[[int], None]) -> None:
        """End the operations that end now, those without work included, and begin the next one."""
        while True:
            if self.number < 0:
                self.number = self._next()
                if self.number < 0:
                    return
                self.run.starts[self.number], self.left = now, self.seconds[self.number][0]
            if self.left:
                return
            number, self.number = self.number, -1
            self.run.ends[number] = now
            self.run.computed.append(number)
            done(number)

    def _next(self) -> int:
        """The operation that begins now; -1 if none can."""
        if self.later and (self.yielded or not self.queue) and not self.missing[self.later[0]]:
            return self.later.popleft()
        if not self.queue or self.missing[self.queue[0]]:
            return -1
        self.yielded = self.operations[self.queue[0]].yields
        return self.queue.popleft()

    @property
    def slowed(self) -> bool:
        """Whether the present operation takes longer beside collectives."""
        return self.number >= 0 and self.operations[self.number].slowed

    def note(self, now: float) -> None:
        """Note what is left of the present operation, if it computes several layers."""
        if self.number >= 0 and len(self.operations[self.number].layers) > 1:
            self.run.pauses.setdefault(self.number, []).append((now, self.left))

    def move(self, step: float, speed: float) -> None:
        """Compute for ``step`` seconds. An operation ends by its duration, since the step was chosen by that."""
        if self.number >= 0:
            self.left = self.left - step * speed if self.left / speed > step else 0


@dataclass(slots=True)
class _Flow:
    """A collective in flight: seconds of start-up still to go, and seconds of transfer if alone."""

    number: int
    communicator: _Communicator
    channel: int
    link: str
    latent: float
    left: float


class _Communicator:
    """The operations that wait on one stream: ``queue``, sent strictly in order, and ``urgent``, ready to hand over."""

    def __init__(self, stream: Stream, numbers: Sequence[int]) -> None:
        self.credit, self.link = stream.credit, stream.link
        self.free = list(reversed(range(stream.width)))
        self.queue = deque(numbers if stream.credit is None else ())
        self.urgent: list[int] = []


class _Network:
    """All communicators, the collectives in flight, and how many operations each operation still waits for."""

    def __init__(self, program: Program, pricing: Pricing, run: Run) -> None:
        self.operations, self.seconds, self.run = program.operations, program.durations, run
        wiring = program.wired()
        self.missing, self.followers, own = list(wiring.waits), wiring.followers, wiring.own
        clock = ((op.not_before, number) for number, op in enumerate(program.operations) if op.not_before > 0)
        self.releases = deque(sorted(clock))
        self.communicators = {
            name: _Communicator(program.stream(program.operations[numbers[0]]), numbers)
            for name, numbers in own.items()
        }
        run.begun = {name: [] for name in own}
        width = sum(len(communicator.free) for communicator in self.communicators.values())
        self.shares = [pricing.share(count) for count in range(width + 1)]
        self.flows: list[_Flow] = []
        self.speeds: dict[str, float] = {}

    def arrive(self, now: float) -> None:
        """End the collectives that end now; they free their channels and their credit, and unblock their followers."""
        while self.releases and self.releases[0][0] <= now:
            self._unblock(self.releases.popleft()[1])
        ended = [flow for flow in self.flows if not flow.latent and not flow.left] if self.flows else []
        if not ended:
            return
        self.flows = [flow for flow in self.flows if flow.latent or flow.left]
        for flow in ended:
            self.run.ends[flow.number] = now
            self.run.sent.append((flow.number, flow.channel))
            flow.communicator.free.append(flow.channel)
            if flow.communicator.credit is not None:
                flow.communicator.credit += self.operations[flow.number].size
            self.done(flow.number)

    def done(self, number: int) -> None:
        """Unblock the operations that waited for this one."""
        for follower in self.followers.get(number, ()):
            self._unblock(follower)

    def _unblock(self, number: int) -> None:
        self.missing[number] -= 1
        communicator = self.communicators.get(self.operations[number].stream)
        if communicator is not None and communicator.credit is not None and not self.missing[number]:
            heappush(communicator.urgent, number)

    def launch(self, now: float) -> None:
        """Hand over the most urgent operations while there is credit; send those handed over as channels get free."""
        for name, one in self.communicators.items():
            while one.urgent and one.credit is not None and one.credit > 0:
                one.queue.append(heappop(one.urgent))
                one.credit -= self.operations[one.queue[-1]].size
            while one.free and one.queue and not self.missing[one.queue[0]]:
                number = one.queue.popleft()
                self.run.starts[number] = now
                self.run.begun[name].append(number)
                self.flows.append(_Flow(number, one, one.free.pop(), one.link, *self.seconds[number]))

    def steps(self, now: float) -> list[float]:
        """Seconds to the end of each start-up and each transfer at the present speeds, and to the next release."""
        steps: list[float] = []
        if self.flows:
            links = [flow.link for flow in self.flows if not flow.latent]
            self.speeds = {link: self.shares[links.count(link)] for link in links}
            steps = [flow.latent or (flow.left and flow.left / self.speeds[flow.link]) for flow in self.flows]
        if self.releases:
            steps.append(self.releases[0][0] - now)
        return steps

    def move(self, step: float) -> None:
        """Pass ``step`` seconds at the speeds of :meth:`steps`. A collective ends by its duration, as there."""
        for flow in self.flows:
            if flow.latent:
                flow.latent = flow.latent - step if flow.latent > step else 0
            else:
                speed = self.speeds[flow.link]
                flow.left = flow.left - step * speed if flow.left / speed > step else 0
