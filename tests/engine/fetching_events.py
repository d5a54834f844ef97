"""ZeRO-3's step as a list of dependencies, to test the lowering by.

Parameters are (name, elements, element bytes), modules have some of their own, and one layer each; the model around
them is called before the first and after the last. Each operation is named with all that it waits for, and times are
longest paths in exact fractions. The rules are written down as DeepSpeed 0.19.8 has them: a queue of uses, and at each
release a walk along the uses that follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass
class Fetched:
    """A step: modules in forward order as (parameters, forward, backward), limits, ranks and prices.

    buckets: names of the parameters of each, in order; the last of each dtype is reduced after backward
    """

    modules: list
    limits: object
    ranks: int
    overlap: bool
    blocking: bool
    batches: int
    update: Fraction
    buckets: list
    gather: object
    scatter: object
    copy_in: Fraction
    copy_out: Fraction


class Steps:
    """The operations of a step, in the order of issue."""

    def __init__(self, step):
        self.step, self.ends, self.free, self.sent = step, {}, {}, []
        self.needs, self.scattered, self.count = [], [], 0
        self.stay = self.persistent()
        for _ in range(step.batches):
            self.batch()
        self.do("compute", step.update, self.scattered)
        after = [self.last]
        for parameters, _, _ in step.modules:
            for one in parameters:
                if one[0] in self.stay:
                    self.send("all_gather", [one], after)

    def persistent(self):
        found, total = set(), 0
        for parameters, _, _ in self.step.modules:
            for name, size, _ in parameters:
                if total + size <= self.step.limits.most_persistent and size <= self.step.limits.persistent:
                    found.add(name)
                    total += size
        return found

    def do(self, stream, seconds, needs=()):
        """An operation behind those of its stream and ``needs``."""
        name, self.count = self.count, self.count + 1
        starts = [self.free.get(stream, Fraction(0)), *(self.ends[need] for need in needs)]
        self.ends[name] = self.free[stream] = max(starts) + seconds
        self.last = name
        return name

    def padded(self, parameters):
        size = 0
        for _, elements, width in parameters:
            shard = next(count for count in range(elements + 1) if count * self.step.ranks >= elements)
            size += shard * self.step.ranks * width
        return size

    def send(self, kind, parameters, needs):
        size = self.padded(parameters)
        self.sent.append((kind, size))
        price = self.step.gather if kind == "all_gather" else self.step.scatter
        return self.do("wire", price(size), needs)

    def compute(self, seconds):
        self.do("compute", seconds, self.needs)
        self.needs = []
        return self.last

    def batch(self):
        step, count = self.step, len(self.step.modules)
        forward = [None, *range(count)]
        self.uses = [*forward, None, *reversed(range(count))]
        self.queue = [(one, use) for use, number in enumerate(self.uses) for one in self.own(number)]
        self.here, self.arrives, self.fetched, self.live, self.at = set(self.stay), {}, {}, 0, 0
        self.fetch(None)
        for number, (_, seconds, _) in enumerate(step.modules):
            self.fetch(number)
            self.compute(seconds)
            self.release(number)
        self.fetch(None)
        waiting = [list(bucket) for bucket in step.buckets]
        copied = {}
        for number in reversed(range(count)):
            self.fetch(number)
            ready = self.compute(step.modules[number][2])
            for one in self.own(number):
                bucket = next(place for place, bucket in enumerate(step.buckets) if one[0] in bucket)
                for place in range(bucket):
                    if waiting[place] is not None and self.width(place) == one[2]:
                        self.reduce(place, copied)
                        waiting[place] = None
                needs = [ready] if not step.overlap else [ready, *self.scattered[-1:]]
                stream = "grads" if step.overlap else "compute"
                copied[one[0]] = self.do(stream, step.copy_in * one[1] * one[2], needs)
            self.release(number)
        for place, bucket in enumerate(waiting):
            if bucket is not None:
                self.reduce(place, copied)
        self.needs += self.scattered[-1:]

    def own(self, number):
        return [] if number is None else self.step.modules[number][0]

    def width(self, place):
        return next(one[2] for parameters, _, _ in self.step.modules for one in parameters
                    if one[0] in self.step.buckets[place])  # fmt: skip

    def reduce(self, place, copied):
        parameters = [one for own, _, _ in self.step.modules for one in own if one[0] in self.step.buckets[place]]
        needs = [copied[one[0]] for one in parameters]
        stream = "grads" if self.step.overlap else "compute"
        packed = self.do(stream, self.step.copy_in * self.padded(parameters), needs)
        self.scattered.append(self.send("reduce_scatter", parameters, [packed]))
        if self.step.blocking or not self.step.overlap:
            self.needs.append(self.scattered[-1])
        elif len(self.scattered) > 3:
            self.needs.append(self.scattered[-4])

    def gather(self, parameters):
        if not parameters:
            return
        handles = []
        for width in dict.fromkeys(one[2] for one in parameters):
            alike = [one for one in parameters if one[2] == width]
            stream = "params" if self.step.overlap else "compute"
            shard = self.padded(alike) // self.step.ranks
            copied = self.do(stream, self.step.copy_in * shard)
            handles.append((self.send("all_gather", alike, [copied]), self.padded(alike)))
        call = {"handles": handles, "several": len(parameters) > 1, "done": None}
        for one in parameters:
            self.here.add(one[0])
            self.arrives[one[0]] = call
            self.live += one[1]

    def fetch(self, number):
        self.gather([one for one in self.own(number) if one[0] not in self.here])
        for one in self.own(number):
            call = self.arrives.pop(one[0], None)
            if call is not None:
                self.needs += self.wait(call)
        late = {one[0] for one in self.own(number) if self.fetched.get(one[0], -1) < self.at}
        while late:
            one, use = self.queue.pop(0)
            self.fetched[one[0]] = use
            late -= {one[0]}
        chosen, size = [], 0
        room = min(self.step.limits.prefetch, self.step.limits.live - self.live)
        while self.queue and size < room:
            one, use = self.queue.pop(0)
            self.fetched[one[0]] = max(use, self.fetched.get(one[0], -1))
            if one[0] not in self.here and one not in chosen:
                chosen.append(one)
                size += one[1]
        self.gather(chosen)
        self.at += 1

    def wait(self, call):
        if call["done"] is None:
            call["done"] = [gathered for gathered, _ in call["handles"]]
            if call["several"]:
                stream = "params" if self.step.overlap else "compute"
                call["done"] = [
                    self.do(stream, self.step.copy_out * size, [gathered]) for gathered, size in call["handles"]
                ]
        return call["done"]

    def release(self, number):
        kept, walked = set(self.stay), 0
        for use in self.uses[self.at :]:
            if walked >= self.step.limits.reuse:
                break
            for one in self.own(use):
                kept.add(one[0])
                walked += one[1]
        for one in self.own(number):
            if one[0] in self.here and one[0] not in kept and self.fetched.get(one[0], -1) <= self.at:
                self.here.remove(one[0])
                self.live -= one[1]
