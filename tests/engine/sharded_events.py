"""FSDP2's step as a list of dependencies, to test the lowering by: each operation is named with all that it waits for.

Groups are in the order of forward, each with one layer; a root holds the first and the last layer besides. What is
issued when is written down here from the rules (torch 2.13), and times are longest paths in exact fractions.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass
class Sharded:
    """Seconds of a group: all-gather in forward and in backward, reduce-scatter, all-reduce, copies, computation."""

    forward: Fraction
    backward: Fraction
    gather: Fraction
    regather: Fraction
    scatter: Fraction
    between: Fraction
    copy_in: Fraction
    copy_out: Fraction
    pack: Fraction
    reshard: bool
    late: bool
    ahead: int
    behind: int
    needed: bool


def ends_of(groups, root, inputs, separate):
    """{operation: its end} of a step. ``root``: (Sharded, forward and backward of its last layer), or None."""
    return Events(groups, root, inputs, separate).ends


class Events:
    """The operations of a step, one after the other in the order of issue; ``last`` is the copy out to wait for."""

    def __init__(self, groups, root, inputs, separate):
        self.root, self.inputs, self.scatters = root, inputs, "scatters" if separate else "shards"
        self.ends, self.free, self.issued, self.states = {}, {}, set(), []
        own = list(range(len(groups)))
        self.names = own if root is None else ["root", *own]
        self.every = dict(zip(own, groups, strict=True)) | ({} if root is None else {"root": root[0]})
        self.left = own if root is None else [*own, "root"]
        self.forward()
        self.last = self.out(len(self.names) - 1)
        self.backward()

    def add(self, name, stream, seconds, *needs):
        starts = [self.free.get(stream, Fraction(0)), *(self.ends[need] for need in needs if need is not None)]
        self.ends[name] = self.free[stream] = max(starts) + seconds

    def gather(self, name, way, need):
        if (name, way) not in self.issued:
            self.issued.add((name, way))
            one = self.every[name]
            self.add(f"in {way} {name}", "copies", one.copy_in, need)
            seconds = one.gather if way == "forward" else one.regather
            self.add(f"gather {way} {name}", "shards", seconds, f"in {way} {name}")

    def out(self, place):
        return f"out forward {self.names[place]}" if place >= 0 else None

    def forward(self):
        """The all-gather of a group waits for the copy out two groups before, one where it was issued ahead."""
        for place, name in enumerate(self.names):
            one = self.every[name]
            self.gather(name, "forward", self.out(place - 2))
            self.add(f"out forward {name}", "compute", one.copy_out, f"gather forward {name}")
            for other in self.names[place + 1 : place + 1 + one.ahead]:
                self.gather(other, "forward", self.out(place - 1))
            self.add(f"forward {name}", "compute", one.forward)
        if self.root is not None:
            self.add("forward head", "compute", self.root[1])

    def backward(self):
        """An all-gather waits for the last copy out that was done before it was issued."""
        if self.root is not None:
            self.begin("root")
            self.add("backward head", "compute", self.root[2])
        for name in reversed([name for name in self.names if name != "root"]):
            self.begin(name)
            self.add(f"backward {name}", "compute", self.every[name].backward)
            if not self.every[name].late:
                self.reduce(name)
        if self.root is not None:
            self.add("backward root", "compute", self.root[0].backward)
        for name in self.names:
            if name == "root" or self.every[name].late:
                self.reduce(name)

    def begin(self, name):
        one, place = self.every[name], self.left.index(name)
        if one.reshard and one.needed and name != "root":
            self.gather(name, "backward", self.last)
            self.add(f"out backward {name}", "compute", one.copy_out, f"gather backward {name}")
            self.last = f"out backward {name}"
        for other in reversed(self.left[max(0, place - one.behind) : place]):
            if self.every[other].reshard and self.every[other].needed:
                self.gather(other, "backward", self.last)

    def reduce(self, name):
        waits, one = None, self.every[name]
        while len(self.states) >= self.inputs:
            waits = self.states.pop(0)
        self.add(f"pack {name}", "compute", one.pack, waits)
        self.add(f"scatter {name}", self.scatters, one.scatter, f"pack {name}")
        self.states.append(f"scatter {name}")
        if one.between:
            self.add(f"between {name}", "replicas", one.between, f"scatter {name}")
