"""FSDP1's step as a list of dependencies, to test the lowering by: each operation is named with all that it waits for.

Groups are in the order of forward, each with one layer; the root, which is last to be left and never freed in forward,
has the first and the last layer. Times are longest paths in exact fractions.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass
class Flat:
    """Seconds of a group: computation, all-gather, copy of gradients, reduce-scatter, all-reduce between replicas."""

    forward: Fraction
    backward: Fraction
    gather: Fraction
    pack: Fraction
    scatter: Fraction
    between: Fraction
    freed: bool


def ends_of(groups, root, head, ahead, backward, limit):
    """{operation: its end}. ``head``: seconds of the root's last layer; ``backward``: "pre", "post" or ""."""
    return Events(groups, root, ahead, backward, limit).run(head)


class Events:
    """The operations of a step, one after the other in the order of issue."""

    def __init__(self, groups, root, ahead, backward, limit):
        self.names = ["root", *range(len(groups))]
        self.left = [*self.names[1:], "root"]
        self.every = {"root": root, **dict(enumerate(groups))}
        self.ahead, self.behind, self.limit = ahead, backward, limit
        self.ends, self.streams, self.freed, self.here, self.issued = {}, {}, [], set(), {}
        self.needs, self.begun, self.last = [], set(), None

    def run(self, head):
        self.forward(head[0])
        self.backward(head[1])
        return self.ends

    def add(self, name, stream, seconds, *waits):
        begin = max([self.streams.get(stream, Fraction(0)), *(self.ends[one] for one in waits)])
        self.ends[name] = self.streams[stream] = begin + seconds

    def gather(self, name, way):
        """Gathering waits for the computation of the second last group that was freed."""
        if name not in self.here:
            waits = [self.freed.pop(0)] if self.limit and len(self.freed) >= 2 else []
            self.here.add(name)
            self.issued[name] = f"gather {way} {name}"
            self.add(self.issued[name], "wire", self.every[name].gather, *waits)

    def use(self, name, way):
        self.gather(name, way)
        if name in self.issued:
            self.needs.append(self.issued.pop(name))

    def compute(self, name, seconds):
        self.last = name
        self.add(name, "compute", seconds, *self.needs)
        self.needs = []

    def free(self, name):
        if name in self.here:
            self.here.remove(name)
            self.freed.append(self.last)

    def forward(self, head):
        for place, name in enumerate(self.names):
            self.use(name, "forward")
            if self.ahead and place + 1 < len(self.names):
                self.gather(self.names[place + 1], "forward")
            self.compute(f"forward {name}", self.every[name].forward)
            if name != "root" and self.every[name].freed:
                self.free(name)
        self.compute("forward head", head)

    def backward(self, head):
        """A group that was gathered ahead in forward is dealt with after the backward of the group before it."""
        late = []
        self.begin("root")
        self.compute("backward head", head)
        for name in reversed(self.names[1:]):
            self.begin(name)
            self.compute(f"backward {name}", self.every[name].backward)
            if late:
                self.finish(late.pop())
            if self.ahead:
                late.append(name)
            else:
                self.finish(name)
        self.compute("backward root", self.every["root"].backward)
        for name in [*late, "root"]:
            self.finish(name)

    def begin(self, name):
        self.begun.add(name)
        self.use(name, "backward")
        if self.behind == "pre":
            self.before(name)

    def before(self, name):
        place = self.left.index(name)
        if place and self.left[place - 1] not in self.begun:
            self.gather(self.left[place - 1], "backward")

    def finish(self, name):
        own = self.every[name]
        self.free(name)
        if self.behind == "post":
            self.before(name)
        self.add(f"pack {name}", "compute", own.pack, *self.needs)
        self.needs = []
        self.add(f"scatter {name}", "wire", own.scatter, f"pack {name}")
        if own.between:
            self.add(f"between {name}", "replicas", own.between, f"scatter {name}")
