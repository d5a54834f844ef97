"""A second simulator, to test the first by: slow, in fractions, and without its bookkeeping.

It keeps no queues, counters or links between activities. At every instant all conditions are read afresh off the
plan and off the set of what has ended; it lists every time at which something could end and goes to the least.
It knows the rules from the reference, not from osfmodel.schedule: what computes and what is sent is built here from the
layers and the plan, for as many consecutive periods as asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction


@dataclass
class Work:
    """A task: its needs are keys of other activities that must have ended."""

    key: tuple
    kind: str
    left: Fraction
    needs: set
    began: Fraction | None = None


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
    began: Fraction | None = None
    ended: Fraction | None = None
    moved: list = field(default_factory=list)


def law(gain, flows):
    """X(n) / n, as a sum: the k-th flow takes (1 - 1/g)^(k-1) of a lone one's speed."""
    return sum(((1 - 1 / gain) ** k for k in range(flows)), Fraction(0)) / flows


def build(workload, plan, pricing, periods):
    """Tasks in order and operations in order, over several periods."""
    effects, tasks, sends = pricing.effects, [], []
    total = sum(layer.gradient_bytes for layer in workload.layers)
    backward = [layer for layer in reversed(workload.layers)]
    place = {layer.name: number for number, layer in enumerate(backward)}
    for period in range(periods):
        if not plan.forward_overlap:
            tasks += [
                Work(("f", period, layer.name), "forward", layer.forward_time, set()) for layer in workload.layers
            ]
        completed = [max((b.layer for b in bucket.blocks), key=place.get) for bucket in plan.buckets]
        for layer in backward:
            extra = effects.copy_in * layer.gradient_bytes + effects.hook_time * completed.count(layer.name)
            tasks.append(Work(("b", period, layer.name), "backward", layer.backward_time + extra, set()))
        first = "reduce_scatter" if plan.split else "all_reduce"
        for number, bucket in enumerate(plan.buckets):
            size = sum(block.bytes for block in bucket.blocks)
            latency, transfer = pricing.split(first, size)
            copied = effects.fusion_copy * size if len(bucket.blocks) > 1 else 0
            released = bucket.release_time - (workload.forward_time if plan.forward_overlap else 0)
            needs = {("b", period, block.layer) for block in bucket.blocks}
            latency += effects.launch_latency
            sends.append(Send((0, period, number), first, latency, transfer + copied, size, needs, released))
        if plan.split:
            firsts = [max(place[block.layer] for block in bucket.blocks) for bucket in plan.buckets]
            for number in sorted(range(len(firsts)), key=lambda k: -firsts[k]):
                size = sum(block.bytes for block in plan.buckets[number].blocks)
                latency, transfer = pricing.split("all_gather", size)
                latency += effects.launch_latency
                needs = {(0, period, number)}
                sends.append(Send((1, period, number), "all_gather", latency, transfer, size, needs, Fraction(0)))
        last = 1 if plan.split else 0
        if plan.forward_overlap:
            for layer in workload.layers:
                holds = [k for k, bucket in enumerate(plan.buckets) if layer.name in [b.layer for b in bucket.blocks]]
                needs = {(last, period, number) for number in holds}
                update = workload.update_time * layer.gradient_bytes / total + effects.copy_out * layer.gradient_bytes
                if update:
                    tasks.append(Work(("u", period, layer.name), "update", update, needs))
                tasks.append(Work(("f", period, layer.name), "forward", layer.forward_time, needs))
        else:
            arrived = {send.key for send in sends if send.key[1] == period}
            tasks.append(Work(("c", period, ""), "copy", effects.copy_out * total, arrived))
            tasks.append(Work(("u", period, ""), "update", workload.update_time, set()))
    return tasks, sends


def simulate(workload, plan, pricing, periods=1):
    """(times at which the periods end, spans as (kind, key, start, end), sends with the bytes moved in each stretch)."""
    tasks, sends = build(workload, plan, pricing, periods)
    slow, now, ended, spans, ends = pricing.effects.compute_slowdown, Fraction(0), set(), [], []
    while True:
        changed = True
        while changed:  # everything that ends at this instant
            changed = False
            for send in sends:
                if send.status == "flying" and send.latent == 0 and send.left == 0:
                    send.status, send.ended, changed = "ended", now, True
                    ended.add(send.key)
                    spans.append((send.kind, send.key, send.began, now))
            remaining = [task for task in tasks if task.key not in ended]
            if remaining and remaining[0].needs <= ended:
                head = remaining[0]
                head.began = now if head.began is None else head.began
                if head.left == 0:
                    changed = True
                    ended.add(head.key)
                    spans.append((head.kind, head.key, head.began, now))
                    if len(remaining) == 1 or remaining[1].key[1] != head.key[1]:
                        ends.append(now)
        base = ends[-1] if ends else Fraction(0)
        current = [send for send in sends if send.key[1] == len(ends)]

        def eligible(send, base=base):
            return send.needs <= ended and base + max(send.release, 0) <= now

        if plan.credit is not None:
            while True:
                handed = sum(send.size for send in sends if send.status in ("committed", "flying"))
                able = [send for send in current if send.status == "waiting" and eligible(send)]
                if not able or handed >= plan.credit:
                    break
                able[0].status = "committed"
                able[0].began = (len([1 for send in sends if send.began is not None]),)  # its place in the line
        while sum(send.status == "flying" for send in sends) < plan.channels:
            if plan.credit is None:
                line = [send for send in current if send.status == "waiting"]
                able = line[:1] if line and eligible(line[0]) else []
            else:
                line = [send for send in sends if send.status == "committed"]
                able = sorted(line, key=lambda send: send.began)[:1]
            if not able:
                break
            able[0].status, able[0].began = "flying", now
        flying = [send for send in sends if send.status == "flying"]
        moving = [send for send in flying if send.latent == 0]
        share = law(pricing.gain, len(moving)) if moving else Fraction(1)
        speed = 1 / (1 + slow) if flying else Fraction(1)
        remaining = [task for task in tasks if task.key not in ended]
        computing = remaining[0] if remaining and remaining[0].needs <= ended else None
        upcoming = [now + send.latent for send in flying if send.latent > 0]
        upcoming += [now + send.left / share for send in moving]
        upcoming += [now + computing.left / speed] if computing else []
        upcoming += [base + send.release for send in current if base + send.release > now]
        if not upcoming:
            assert not remaining and all(send.status == "ended" for send in sends), "stuck"
            return ends, spans, sends
        step = min(upcoming) - now
        for send in flying:
            if send in moving:
                send.left -= step * share
                send.moved.append((now, now + step, share))
            else:
                send.latent -= step
        if computing:
            computing.left -= step * speed
        now += step
