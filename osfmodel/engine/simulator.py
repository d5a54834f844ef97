"""Event by event: any order, tensors in pieces, several collectives in flight, forward before all has arrived.

The compute stream works through its tasks in order; the network sends operations in the order of the plan or by
priority, up to ``channels`` of them at once. An operation is first latent (its start-up, which takes no bandwidth),
then transfers, and n transfers share the wires (``osfmodel.cost.pricing``). Between two events all speeds are constant,
so nothing is approximated, and rational input gives rational output.

At an instant everything that ends there ends first, also tasks that take no time; then the network chooses. With the
barrier an iteration runs from forward to update. Without it (``forward_overlap``) each layer of the next forward waits
until its gradient has arrived, takes its share of the update, and runs; the iteration is shown from the start of one
backward to the start of the next. Each gradient is awaited by a layer before that, so nothing is in flight there,
iterations do not mix, and one period is the steady state.

With the barrier the compute stream deals with what has arrived after backward. Where the plan releases gradients it
does so before: whenever a gradient is there, buckets that have arrived are completed in the order of the plan (copied
out or made of entries, and updated) before backward goes on, and what is left then is awaited.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from osfmodel.cost.pricing import Pricing
from osfmodel.engine.operations import Operation, Task, landings, mirroring, releases, schedule
from osfmodel.engine.recursion import aftermath
from osfmodel.entities.plan import Plan
from osfmodel.entities.timeline import Span, Timeline
from osfmodel.entities.workload import Workload


def simulate(workload: Workload, plan: Plan, pricing: Pricing) -> Timeline:
    """One iteration in the steady state. Raises PlanError where the plan does not belong to the workload."""
    workload, plan = plan.computed(workload)
    compute, network, finish = _simulated(workload, plan, pricing)
    operations = network.operations
    spans = compute.spans + network.spans
    if not plan.forward_overlap and not plan.release:
        computed, arrivals = compute.spans[-1].end, _arrivals(operations, network, plan)
        update = workload.update_time + sum(mirroring(plan, bucket, pricing) for bucket in plan.buckets)
        last, finish = aftermath(plan, landings(workload, plan, pricing), update, computed, arrivals)
        spans += last
    return Timeline(tuple(spans), workload.compute_time, finish, "simulator")


def without_priority(workload: Workload, plan: Plan, pricing: Pricing) -> Plan:
    """``plan`` without its credit: the buckets in the order in which it would send them here, which is then fixed.

    What is left out is what priority is for. Where computation or the network is not as predicted, a more urgent bucket
    no longer overtakes. Nor is there a limit to the bytes handed over: with one channel that changes nothing, since one
    bucket is under way at a time and the order is the same; with several, as many are under way as there are channels,
    whatever the credit. A plan without a credit is returned as it is. Raises as :func:`simulate`.
    """
    if plan.credit is None:
        return plan
    _, network, _ = _simulated(*plan.computed(workload), pricing)
    order = [number for number in network.sent if number < len(plan.buckets)]
    return replace(plan, buckets=tuple(plan.buckets[number] for number in order), credit=None)


def _simulated(workload: Workload, plan: Plan, pricing: Pricing) -> tuple[_Compute, _Network, float]:
    """Both sides after one iteration, and when the last event of it was."""
    plan.require_valid(workload)
    tasks, operations = schedule(workload, plan, pricing)
    later = releases(workload, plan, pricing, operations) if plan.release else []
    compute, network = _Compute(tasks, later, len(operations)), _Network(operations, plan, pricing)
    slowdown = pricing.effects.compute_slowdown
    return compute, network, _run(compute, network, 1 / (1 + slowdown) if slowdown else 1)


def _arrivals(operations: Sequence[Operation], network: _Network, plan: Plan) -> list[float]:
    """When each bucket of the plan has arrived: its last operation has ended."""
    if not plan.split:
        return network.ends
    ended = {op.after: end for op, end in zip(operations, network.ends, strict=True) if op.after >= 0}
    return [ended[number] for number in range(len(plan.buckets))]


def _run(compute: _Compute, network: _Network, disturbed: float) -> float:
    """From event to event until nothing is left to do; ``disturbed``: speed of computation beside a collective."""
    now: float = 0
    while True:
        for number in network.arrivals(now):
            compute.arrived(number)
        for number in compute.ended(now):
            network.computed(number)
        network.launch(now)
        speed = disturbed if network.flows and not compute.copying else 1
        steps = network.steps(now)
        if compute.task is not None:
            steps.append(compute.left / speed)
        if not steps:
            return now
        step = min(steps)
        network.move(step)
        compute.move(step, speed)
        now += step


class _Compute:
    """The compute stream: its tasks one after the other, each once the operations that it awaits have arrived.

    ``later`` are done in their order between the others, where a gradient is there and they need not wait, or after.
    """

    def __init__(self, tasks: Sequence[Task], later: Sequence[Task], operations: int) -> None:
        self.tasks, self.begun, self.number = tasks, 0, -1
        self.later = deque(later)
        self.arrivals = [False] * operations
        self.task: Task | None = None
        self.hooked = False
        self.started: float = 0
        self.left: float = 0
        self.spans: list[Span] = []

    def arrived(self, operation: int) -> None:
        """An operation has ended."""
        self.arrivals[operation] = True

    def ended(self, now: float) -> Iterator[int]:
        """The tasks that end now, those without work included, -1 for one that is done later; the next one begins."""
        while True:
            if self.task is None:
                self.task = self._next()
                if self.task is None:
                    return
                self.started, self.left = now, self.task.work
            if self.left:
                return
            self.spans.append(Span(self.task.kind, "compute", self.task.layers, self.started, now))
            self.task = None
            yield self.number

    def _next(self) -> Task | None:
        """The task that begins now, if one can."""
        last = self.begun == len(self.tasks)
        if self.later and (self.hooked or last) and self._there(self.later[0]):
            self.number = -1
            return self.later.popleft()
        if last or not self._there(self.tasks[self.begun]):
            return None
        self.number, self.begun = self.begun, self.begun + 1
        self.hooked = self.tasks[self.number].hook
        return self.tasks[self.number]

    def _there(self, task: Task) -> bool:
        return all(self.arrivals[operation] for operation in task.waits)

    @property
    def copying(self) -> bool:
        """Whether it does what collectives do not slow: what that takes was measured beside them, or after."""
        return self.task is not None and self.task.kind in ("copy", "spread")

    def move(self, step: float, speed: float) -> None:
        """Compute for ``step`` seconds. What ends is told by its duration, since the step was chosen by that."""
        if self.task is not None:
            self.left = self.left - step * speed if self.left / speed > step else 0


@dataclass(slots=True)
class _Flow:
    """An operation in flight: seconds of start-up that are to go, and seconds of transfer, were it alone."""

    number: int
    channel: int
    start: float
    latent: float
    left: float


class _Network:
    """What waits, what is handed over (``queue``: sent strictly in that order), what is in flight, what was sent."""

    def __init__(self, operations: Sequence[Operation], plan: Plan, pricing: Pricing) -> None:
        self.operations = operations
        self.credit = plan.credit
        self.shares = [pricing.share(count) for count in range(min(plan.channels, len(operations)) + 1)]
        self.share: float = 1
        self.free = list(reversed(range(len(self.shares) - 1)))
        self.blocks = [1 + (operation.release_time > 0) for operation in operations]
        self.releases = deque(sorted((op.release_time, i) for i, op in enumerate(operations) if op.release_time > 0))
        self.after_task: dict[int, list[int]] = {}
        self.after_operation: dict[int, list[int]] = {}
        for number, operation in enumerate(operations):
            if operation.after < 0:
                self.after_task.setdefault(operation.ready, []).append(number)
            else:
                self.after_operation.setdefault(operation.after, []).append(number)
        self.queue = deque(range(len(operations)) if self.credit is None else ())
        self.urgent: list[int] = []
        self.flows: list[_Flow] = []
        self.spans: list[Span] = []
        self.sent: list[int] = []
        self.ends: list[float] = [0] * len(operations)

    def computed(self, task: int) -> None:
        """A task has ended."""
        for number in self.after_task.get(task, ()):
            self._unblock(number)

    def arrivals(self, now: float) -> list[int]:
        """The operations that end now. They free their channels, their credit, and what continues them."""
        while self.releases and self.releases[0][0] <= now:
            self._unblock(self.releases.popleft()[1])
        ended = [flow for flow in self.flows if not flow.latent and not flow.left]
        if not ended:
            return []
        self.flows = [flow for flow in self.flows if flow.latent or flow.left]
        for flow in ended:
            operation = self.operations[flow.number]
            self.spans.append(Span(operation.kind, f"channel {flow.channel}", operation.layers, flow.start, now))
            self.ends[flow.number] = now
            self.free.append(flow.channel)
            if self.credit is not None:
                self.credit += operation.size
            for number in self.after_operation.get(flow.number, ()):
                self._unblock(number)
        return [flow.number for flow in ended]

    def _unblock(self, number: int) -> None:
        self.blocks[number] -= 1
        if self.credit is not None and not self.blocks[number]:
            heappush(self.urgent, number)

    def launch(self, now: float) -> None:
        """Hand over the most urgent while there is credit; send what was handed over while channels are free."""
        while self.urgent and self.credit is not None and self.credit > 0:
            self.queue.append(heappop(self.urgent))
            self.credit -= self.operations[self.queue[-1]].size
        while self.free and self.queue and not self.blocks[self.queue[0]]:
            operation = self.operations[self.queue[0]]
            self.sent.append(self.queue[0])
            flow = _Flow(self.queue.popleft(), self.free.pop(), now, operation.latency, operation.transfer)
            self.flows.append(flow)

    def steps(self, now: float) -> list[float]:
        """Seconds to the end of each start-up and each transfer, at the speeds of now, and to the next release."""
        share = self.share = self.shares[sum(1 for flow in self.flows if not flow.latent)]
        steps = [flow.latent or flow.left / share for flow in self.flows]
        if self.releases:
            steps.append(self.releases[0][0] - now)
        return steps

    def move(self, step: float) -> None:
        """Pass ``step`` seconds at the speeds of :meth:`steps`. What ends is told by its duration, as there."""
        share = self.share
        for flow in self.flows:
            if flow.latent:
                flow.latent = flow.latent - step if flow.latent > step else 0
            else:
                flow.left = flow.left - step * share if flow.left / share > step else 0
