"""Event by event: any order, tensors in pieces, several collectives in flight, forward before all has arrived.

The compute stream works through its tasks in order; the network sends operations in the order of the plan, up to
``channels`` of them at once. An operation is first latent (its start-up, which takes no bandwidth), then transfers, and
n transfers share the wires (``osfmodel.pricing``). Between two events all speeds are constant, so nothing is
approximated, and rational input gives rational output.

With the barrier an iteration runs from forward to update. Without it (``forward_overlap``) each layer of the next
forward waits until its gradient has arrived, takes its share of the update, and runs; the iteration is shown from the
start of one backward to the start of the next. All communication ends before the next backward begins, since the layer
nearest the output waits for its own gradient; so iterations do not mix, and one period is the steady state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from osfmodel.plan import Plan
from osfmodel.pricing import Pricing
from osfmodel.schedule import Operation, Task, schedule
from osfmodel.timeline import Span, Timeline
from osfmodel.workload import Workload


def simulate(workload: Workload, plan: Plan, pricing: Pricing) -> Timeline:
    """One iteration in the steady state. Raises PlanError where the plan does not belong to the workload."""
    plan.require_valid(workload)
    tasks, operations = schedule(workload, plan, pricing)
    state = _State(tasks, operations, plan.channels, pricing, plan.credit)
    while state.advance():
        pass
    finish: float = max(state.now, 0)
    tail = pricing.effects.copy_out * workload.gradient_bytes if not plan.forward_overlap else 0
    update = 0 if plan.forward_overlap else workload.update_time
    for kind, time in (("copy", tail), ("update", update)):
        if time:
            state.spans.append(Span(kind, "compute", (), finish, finish + time))
            finish = finish + time
    return Timeline(tuple(state.spans), workload.compute_time, finish, "simulator")


@dataclass(slots=True)
class _Flow:
    """An operation in flight: seconds of start-up that are to go, and seconds of transfer, were it alone."""

    number: int
    channel: int
    start: float
    latent: float
    left: float


@dataclass(slots=True)
class _State:
    """Where the clock stands, what computes and what is in flight."""

    tasks: Sequence[Task]
    operations: Sequence[Operation]
    channels: int
    pricing: Pricing
    credit: float | None
    now: float = 0
    task: int = 0
    started: float = 0
    left: float = 0
    computing: bool = False
    queue: deque[int] = field(init=False, default_factory=deque)
    ready: list[int] = field(init=False, default_factory=list)
    waiting: list[int] = field(init=False, default_factory=list)
    waiters: list[list[int]] = field(init=False, default_factory=list)
    released: dict[int, list[int]] = field(init=False, default_factory=dict)
    followers: dict[int, list[int]] = field(init=False, default_factory=dict)
    flows: list[_Flow] = field(init=False, default_factory=list)
    free: list[int] = field(init=False, default_factory=list)
    done: list[bool] = field(init=False, default_factory=list)
    spans: list[Span] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.done = [False] * len(self.operations)
        self.free = list(reversed(range(self.channels)))
        self.waiting = [len(task.waits) for task in self.tasks]
        self.waiters = [[] for _ in self.operations]
        for number, task in enumerate(self.tasks):
            for awaited in task.waits:
                self.waiters[awaited].append(number)
        for number, operation in enumerate(self.operations):
            waits_for = (
                self.released.setdefault(operation.ready, [])
                if operation.after < 0
                else (self.followers.setdefault(operation.after, []))
            )
            waits_for.append(number)
        if self.credit is None:
            self.queue.extend(range(len(self.operations)))

    def advance(self) -> bool:
        """Start what can start, go to the next event and finish what ends there. False where nothing is left to do."""
        self._begin_task()
        self._launch()
        step = self._next_step()
        if step is None:
            return False
        self._move(step)
        self._end_flows()
        self._end_task()
        return True

    def _begin_task(self) -> None:
        if not self.computing and self.task < len(self.tasks) and not self.waiting[self.task]:
            self.computing, self.started, self.left = True, self.now, self.tasks[self.task].work

    def _launch(self) -> None:
        """Send what stands in the queue, strictly in order, while there are free channels and gradients are there."""
        self._commit()
        while self.free and self.queue:
            operation = self.operations[self.queue[0]]
            after = operation.after < 0 or self.done[operation.after]
            if operation.ready >= self.task or operation.release_time > self.now or not after:
                return
            number = self.queue.popleft()
            self.flows.append(_Flow(number, self.free.pop(), self.now, operation.latency, operation.transfer))

    def _commit(self) -> None:
        """By priority: hand over the most urgent operation that is ready, while there is credit."""
        while self.ready and self.credit is not None and self.credit > 0:
            number = heappop(self.ready)
            self.credit -= self.operations[number].size
            self.queue.append(number)

    def _speeds(self) -> tuple[float, float]:
        """Of the compute stream, and of each transfer."""
        effects = self.pricing.effects
        transferring = sum(1 for flow in self.flows if not flow.latent)
        return 1 / (1 + effects.compute_slowdown) if self.flows and effects.compute_slowdown else 1, self.pricing.share(
            max(transferring, 1)
        )

    def _next_step(self) -> float | None:
        compute, transfer = self._speeds()
        steps: list[float] = [flow.latent or flow.left / transfer for flow in self.flows]
        if self.computing:
            steps.append(self.left / compute)
        if self.free and self.queue:
            release = self.operations[self.queue[0]].release_time
            if release > self.now:
                steps.append(release - self.now)
        return min(steps, default=None)

    def _move(self, step: float) -> None:
        compute, transfer = self._speeds()
        for flow in self.flows:
            # What ends at this very event is compared by its duration, as the step was chosen by it.
            if flow.latent:
                flow.latent = flow.latent - step if flow.latent > step else 0
            else:
                flow.left = flow.left - step * transfer if flow.left / transfer > step else 0
        if self.computing:
            self.left = self.left - step * compute if self.left / compute > step else 0
        self.now += step

    def _end_task(self) -> None:
        if self.computing and not self.left:
            task = self.tasks[self.task]
            self.spans.append(Span(task.kind, "compute", task.layers, self.started, self.now))
            self.computing = False
            for number in self.released.get(self.task, ()) if self.credit is not None else ():
                heappush(self.ready, number)
            self.task += 1

    def _end_flows(self) -> None:
        for flow in [flow for flow in self.flows if not flow.latent and not flow.left]:
            operation = self.operations[flow.number]
            self.spans.append(Span(operation.kind, f"channel {flow.channel}", operation.layers, flow.start, self.now))
            self.flows.remove(flow)
            self.free.append(flow.channel)
            self._finished(flow.number)

    def _finished(self, number: int) -> None:
        self.done[number] = True
        for task in self.waiters[number]:
            self.waiting[task] -= 1
        if self.credit is not None:
            self.credit += self.operations[number].size
            for other in self.followers.get(number, ()):
                heappush(self.ready, other)
