"""A second simulator, to test the first by: slow, in fractions, and without its bookkeeping.

It keeps no queues, counters or links between activities. At every instant all conditions are read afresh off the
plan and off the set of what has ended; it lists every time at which something could end and goes to the least.
It knows the rules from the reference, not from engine.operations: what computes and what is sent is built here from the
layers and the plan, for as many consecutive periods as asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from osfmodel.entities.plan import Bucket


@dataclass
class Work:
    """A task: its needs are keys of other activities that must have ended."""

    key: tuple
    kind: str
    left: Fraction
    needs: set
    began: Fraction | None = None
    early: bool = False  # may be done between two of the others, after a gradient has got ready


@dataclass
class Send:
    """An operation; status: waiting, committed, flying, ended."""

    key: tuple
    kind: str
    latent: Fraction
    left: Fraction
    size: int
    needs: set
    release: Fraction
    status: str = "waiting"
    place: int = 0
    began: Fraction | None = None


def law(gain, flows):
    """X(n) / n, as a sum: the k-th flow takes (1 - 1/g)^(k-1) of a lone one's speed."""
    return sum(((1 - 1 / gain) ** k for k in range(flows)), Fraction(0)) / flows


def entries_of(bucket, workers):
    """Bytes of float32 entries that all ranks together send of a sparse bucket."""
    elements = [Fraction(block.bytes, 4).__ceil__() for block in bucket.blocks]
    return sum(min(count, (bucket.density * count).__ceil__()) for count in elements) * 8 * workers


def repeated(workload, plan):
    """By layer, what is computed once more before its backward: the forward of the segment that it ends."""
    found = {}
    for segment in workload.segments:
        names = [layer.name for layer in workload.layers]
        inside = workload.layers[names.index(segment.first) : names.index(segment.last) + 1]
        if segment.name in plan.recompute:
            found[segment.last] = sum(layer.forward_time for layer in inside)
    return found


def chosen(workload, plan, effects):
    """By layer, what is done with a gradient once it is there: copied, or its largest chosen."""
    sparse = {
        block.layer: entries_of(Bucket((block,), density=bucket.density), 1)
        for bucket in plan.buckets
        if bucket.density is not None
        for block in bucket.blocks
    }
    return {
        layer.name: effects.select * layer.gradient_bytes
        + effects.select_sent * sparse[layer.name]
        + effects.select_time
        if layer.name in sparse
        else effects.copy_in * layer.gradient_bytes
        for layer in workload.layers
    }


def landed(bucket, pricing):
    """Kind and seconds of the computation on a bucket that has arrived."""
    size, effects = sum(block.bytes for block in bucket.blocks), pricing.effects
    if bucket.density is None:
        return "copy", effects.copy_out * size
    received = effects.spread_received * entries_of(bucket, pricing.workers)
    return "spread", effects.spread * size + received + effects.spread_time * len(bucket.blocks)


def reflected(plan, buckets, effects):
    """Seconds that mirror weights add to the update of these buckets."""
    sparse = [bucket for bucket in buckets if plan.mirror and bucket.density is not None]
    return effects.mirror * sum(block.bytes for bucket in sparse for block in bucket.blocks)


def tasks_of(workload, plan, pricing, period):
    """Computation of one period, in order."""
    effects, total = pricing.effects, sum(layer.gradient_bytes for layer in workload.layers)
    place = {layer.name: number for number, layer in enumerate(workload.layers)}
    completed = [min((b.layer for b in bucket.blocks), key=place.get) for bucket in plan.buckets]
    backward = [
        Work(
            ("b", period, layer.name),
            "backward",
            layer.backward_time
            + repeated(workload, plan).get(layer.name, 0)
            + chosen(workload, plan, effects)[layer.name]
            + effects.hook_time * completed.count(layer.name),
            set(),
        )
        for layer in reversed(workload.layers)
    ]
    if not plan.forward_overlap:
        forward = [Work(("f", period, one.name), "forward", one.forward_time, set()) for one in workload.layers]
        every = {(int(plan.split), period, number) for number in range(len(plan.buckets))}
        copies = [
            Work(("c", period, k), *landed(bucket, pricing), {(int(plan.split), period, k)})
            for k, bucket in enumerate(plan.buckets)
        ]
        whole = workload.update_time + reflected(plan, plan.buckets, effects)
        if plan.release and plan.buckets:
            later = []
            for k, bucket in enumerate(plan.buckets):
                part = Fraction(sum(block.bytes for block in bucket.blocks), total) * workload.update_time
                part += reflected(plan, [bucket], effects)
                later += [copies[k], Work(("u", period, k), "update", part, {(int(plan.split), period, k)})]
            for work in later:
                work.early = True
            return [*forward, *backward, *later]
        return [*forward, *backward, *copies, Work(("u", period, ""), "update", whole, every)]
    for layer in workload.layers:
        holds = [k for k, bucket in enumerate(plan.buckets) if layer.name in [b.layer for b in bucket.blocks]]
        needs = {(int(plan.split), period, number) for number in holds}
        share = (workload.update_time / total + effects.copy_out) * layer.gradient_bytes
        backward.append(Work(("u", period, layer.name), "update", share, needs))
        backward.append(Work(("f", period, layer.name), "forward", layer.forward_time, needs))
    return backward


def sends_of(workload, plan, pricing, period):
    """Collectives of one period, in the order of the plan, and then those that the next forward needs, in its order."""
    effects, sends = pricing.effects, []
    first = "reduce_scatter" if plan.split else "all_reduce"
    for number, bucket in enumerate(plan.buckets):
        size = sum(block.bytes for block in bucket.blocks)
        kind = first if bucket.density is None else "all_gather"
        latency, transfer = pricing.split(kind, size if bucket.density is None else entries_of(bucket, pricing.workers))
        transfer += effects.fusion_copy * size if len(bucket.blocks) > 1 and bucket.density is None else 0
        release = bucket.release_time - (workload.forward_time if plan.forward_overlap else 0)
        needs = {("b", period, block.layer) for block in bucket.blocks}
        latency += effects.launch_latency
        sends.append(Send((0, period, number), kind, latency, transfer, size, needs, max(release, 0)))
    names = [layer.name for layer in workload.layers]
    nearest = [min(names.index(block.layer) for block in bucket.blocks) for bucket in plan.buckets]
    for number in sorted(range(len(nearest)), key=nearest.__getitem__) if plan.split else ():
        latency, transfer = pricing.split("all_gather", sends[number].size)
        latency, needs = latency + effects.launch_latency, {(0, period, number)}
        sends.append(Send((1, period, number), "all_gather", latency, transfer, sends[number].size, needs, 0))
    return sends


class World:
    """Everything at one instant."""

    def __init__(self, workload, plan, pricing, periods):
        self.plan, self.pricing = plan, pricing
        self.tasks = [task for period in range(periods) for task in tasks_of(workload, plan, pricing, period)]
        self.sends = [send for period in range(periods) for send in sends_of(workload, plan, pricing, period)]
        self.now, self.base = Fraction(0), Fraction(0)
        self.ended, self.spans, self.ends = set(), [], []
        self.gradients = {("b", layer.name) for layer in workload.layers if layer.gradient_bytes}
        self.boundary = False  # where the hook of a gradient runs, which completes what has arrived

    def flying(self):
        return [send for send in self.sends if send.status == "flying"]

    def computing(self):
        """The task under way; else in a hook the first early one, or the first other, where what it needs has ended."""
        open_ = [task for task in self.tasks if task.key not in self.ended]
        under_way = [task for task in open_ if task.began is not None]
        early = [task for task in open_ if task.early][:1]
        usual = [task for task in open_ if not task.early][:1]
        hooked = [task for task in early if (self.boundary or not usual) and task.needs <= self.ended]
        first = next(iter(under_way or hooked or usual), None)
        return first if first and first.needs <= self.ended else None

    def end(self, activity):
        self.ended.add(activity.key)
        self.spans.append((activity.kind, activity.key, activity.began, self.now))

    def settle(self):
        """Everything that ends at this instant."""
        for send in self.flying():
            if send.latent == send.left == 0:
                send.status = "ended"
                self.end(send)
        while task := self.computing():
            task.began = self.now if task.began is None else task.began
            if task.left:
                return
            self.end(task)
            self.boundary = task.early or (task.key[0], task.key[2]) in self.gradients
            if not any(other.key[1] == task.key[1] and other.key not in self.ended for other in self.tasks):
                self.ends.append(self.now)
                self.base = self.now

    def current(self):
        """Sends that wait in this period."""
        return [send for send in self.sends if send.key[1] == len(self.ends) and send.status == "waiting"]

    def eligible(self, send):
        return send.needs <= self.ended and self.base + send.release <= self.now

    def commit(self):
        """By priority, while the bytes that were handed over and have not arrived are below the credit."""
        while sum(send.size for send in self.sends if send.status in ("committed", "flying")) < self.plan.credit:
            able = [send for send in self.current() if self.eligible(send)]
            if not able:
                return
            able[0].status = "committed"
            able[0].place = 1 + max(send.place for send in self.sends)

    def launch(self):
        if self.plan.credit is not None:
            self.commit()
        while len(self.flying()) < self.plan.channels:
            line = sorted((send for send in self.sends if send.status == "committed"), key=lambda send: send.place)
            if self.plan.credit is None:
                line = [send for send in self.current()[:1] if self.eligible(send)]
            if not line:
                return
            line[0].status, line[0].began = "flying", self.now

    def pass_time(self):
        """To the next instant at which something could end or be released; False where there is none."""
        flying, task = self.flying(), self.computing()
        moving = [send for send in flying if send.latent == 0]
        share = law(self.pricing.gain, len(moving)) if moving else Fraction(1)
        slowed = flying and not (task and task.kind in ("copy", "spread"))
        speed = 1 / (1 + Fraction(self.pricing.effects.compute_slowdown)) if slowed else Fraction(1)
        steps = [send.latent for send in flying if send.latent > 0] + [send.left / share for send in moving]
        steps += [task.left / speed] if task else []
        releases = [self.base + send.release - self.now for send in self.current()]
        steps += [step for step in releases if step > 0]
        for send in flying if steps else ():
            if send in moving:
                send.left -= min(steps) * share
            else:
                send.latent -= min(steps)
        if task:
            task.left -= min(steps) * speed
        self.now += min(steps, default=0)
        return bool(steps)


def simulate(workload, plan, pricing, periods=1):
    """(times at which the periods end, spans as (kind, key, start, end))."""
    world = World(workload, plan, pricing, periods)
    going = True
    while going:
        world.settle()
        world.launch()
        going = world.pass_time()
    stuck = [one.key for one in (*world.tasks, *world.sends) if one.key not in world.ended]
    assert stuck == []
    return world.ends, world.spans
