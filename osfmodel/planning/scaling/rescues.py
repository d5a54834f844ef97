"""Changes that make a step fit that does not, or only perhaps: each with the time that it costs, as a command.

Every change is predicted, and only those that surely fit are kept. Alone they are a smaller micro-batch with more of
them, activation checkpointing, offloading, another strategy, tensor or expert parallelism, and more GPUs; where none is
enough, they come on top of full checkpointing, of both parts with the host, and then of a single sample too. The
samples of a step stay, but with more GPUs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from osfmodel.counting import in_words, load_workload
from osfmodel.counting.groups import DEGREES, Parallelism
from osfmodel.counting.training import BUDGET, FULL, NOTHING, SELECTIVE
from osfmodel.counting.words import model_of, parse_words, with_parts
from osfmodel.entities.display import how_many
from osfmodel.entities.errors import OsfError
from osfmodel.entities.savings import OFFLOADED
from osfmodel.entities.workload import Workload
from osfmodel.planning.predictions import PricedSubjects
from osfmodel.planning.scaling.curve import Rescue, ScaleCurve, ScalePoint
from osfmodel.planning.scaling.replicas import on_gpu_of, replica_workload
from osfmodel.planning.scaling.scale import ScaleOptions, ScaleTask
from osfmodel.planning.scaling.settings import says_groups
from osfmodel.planning.tuning.choosing import STRATEGY_PLANS
from osfmodel.solve.verdicts import NO, TIGHT, YES

MOST_TENSOR, MOST_FACTOR, MOST_GPUS = 8, 16, 2**16
"""Largest tensor-parallel group, factor on the number of GPUs, and number of GPUs that are tried."""
MOST_POINTS = 4
"""Numbers of GPUs, the largest first, for which changes are looked for."""
GOALS = ("--target-scaling", "--target-time", "--target-tokens-per-s", "--budget")
DROPPED = (*GOALS, "--anchor", "--output", "-o", "--format", "-f", "--json", "--notes")
"""Options of a command that a changed one leaves out: goals, and an anchor that was measured without it."""
FLAGS = ("--json", "--notes")

REPEATED = {NOTHING: 0, SELECTIVE: 1, BUDGET: 1, FULL: 2}
"""Kinds of checkpointing by how much they repeat."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A set-up: the workload's name, numbers of GPUs and samples, plans, and groups. changes: in words."""

    name: str
    workers: int
    batch: int | None
    accumulate: int
    plans: tuple[str, ...]
    groups: Parallelism
    changes: tuple[str, ...] = ()

    def but(self, said: str, **changes: Any) -> Tried:
        """The same with a change."""
        return replace(self, changes=(*self.changes, said), **changes)


@dataclass(frozen=True, slots=True)
class Rescuer:
    """The points of a curve, and what is asked for. command: the cluster, the price of a GPU,
    and the arguments of ``osf scale``."""

    curve: ScaleCurve
    options: ScaleOptions
    command: tuple[str, float | None, Sequence[str]] | None = None
    subjects: PricedSubjects = field(default_factory=PricedSubjects)
    loaded: dict[tuple[str, Parallelism], Workload] = field(default_factory=dict)

    def rescues(self) -> list[Rescue]:
        """For each point that lacks memory the changes that help, those that cost least first."""
        lacking = [point for point in self.curve.points if point.fits in (NO, TIGHT)][-MOST_POINTS:]
        return [one for point in lacking for one in self._of(point)]

    def _of(self, point: ScalePoint) -> list[Rescue]:
        groups = self.curve.groups
        plans = tuple(dict.fromkeys(row.name for row in point.rows))
        batch = point.workload.batch_size
        start = Tried(self.curve.workload.name, point.workers, batch, point.accumulated, plans, groups)
        for base in self._bases(start):
            found = []
            for family in self._families(base):
                made = (self._made(point, one) for one in family)
                found += [next((one for one in made if one is not None), None)]
            kept = [one for one in found if one is not None]
            if kept:
                return sorted(kept, key=lambda one: one.lost)
        return []

    def _bases(self, start: Tried) -> Iterator[Tried]:
        """The job that changes come on top of."""
        yield start
        every = tuple(dict.fromkeys((*start.plans, *STRATEGY_PLANS)))
        if in_words(start.name) and _repeated(start.name) < REPEATED[FULL]:
            start = start.but(f"ac={FULL}", name=with_parts(start.name, ac=f"ac={FULL}"))
            yield start
        if in_words(start.name) and len(parse_words(start.name).setting.offload) < len(OFFLOADED):
            both = f"offload={'+'.join(OFFLOADED)}"
            yield start.but(both, name=with_parts(start.name, offload=both))
        one = next(reversed(list(self._smaller(start))), start)
        yield one
        yield replace(one, plans=every, changes=(*one.changes, "any strategy"))

    def _families(self, base: Tried) -> Iterator[Iterator[Tried]]:
        """Changes by kind, each in the order in which they are tried: of each the first that fits is taken."""
        if base.changes:
            yield iter((base,))
        yield self._smaller(base)
        for how in (SELECTIVE, FULL) if in_words(base.name) else ():
            if REPEATED[how] > _repeated(base.name):
                yield iter((base.but(f"ac={how}", name=with_parts(base.name, ac=f"ac={how}")),))
        yield from self._offloading(base)
        others = tuple(name for name in STRATEGY_PLANS if name not in base.plans)
        if others:
            yield iter((base.but("another strategy", plans=others),))
        yield self._tensor(base)
        yield self._experts(base)
        factors = (2**power for power in range(1, MOST_FACTOR.bit_length()))
        counts = [base.workers * factor for factor in factors if base.workers * factor <= MOST_GPUS]
        yield (base.but(f"{count} GPUs", workers=count) for count in counts)

    def _offloading(self, base: Tried) -> Iterator[Iterator[Tried]]:
        """Either part with the host; both come on top of what does not help alone."""
        given = parse_words(base.name).setting.offload if in_words(base.name) else OFFLOADED
        for kind in OFFLOADED:
            if kind not in given:
                words = f"offload={'+'.join(one for one in OFFLOADED if one in (*given, kind))}"
                yield iter((base.but(words, name=with_parts(base.name, offload=words)),))

    def _smaller(self, base: Tried) -> Iterator[Tried]:
        """Smaller micro-batches, and as many more of them."""
        size = base.batch or 1
        while size % 2 == 0:
            size //= 2
            count = base.accumulate * (base.batch or 1) // size
            yield base.but(f"{how_many(size, 'sample')} in each of {count} micro-batches", batch=size, accumulate=count)

    def _tensor(self, base: Tried) -> Iterator[Tried]:
        """Larger tensor-parallel groups inside a node, with as many more micro-batches."""
        if not in_words(base.name):
            return
        size = 2 * base.groups.tensor
        while size <= min(MOST_TENSOR, self.curve.cluster.gpus_per_node):
            count = base.accumulate * size // base.groups.tensor
            groups = replace(base.groups, tensor=size)
            yield base.but(f"--tp {size} and {count} micro-batch{'es' * (count > 1)}", groups=groups, accumulate=count)
            size *= 2

    def _experts(self, base: Tried) -> Iterator[Tried]:
        """Larger expert-parallel groups of a model with experts."""
        if not in_words(base.name):
            return
        experts = max((module.experts for module in model_of(parse_words(base.name)).modules), default=0)
        size = 2 * base.groups.expert
        while size <= experts:
            yield base.but(f"--ep {size}", groups=replace(base.groups, expert=size))
            size *= 2

    def _made(self, point: ScalePoint, tried: Tried) -> Rescue | None:
        """A change that surely fits; None for others, and for what is impossible."""
        try:
            found = self._point(tried)
        except OsfError:
            return None
        if found.fits != YES:
            return None
        said = ", ".join(one for one in tried.changes if one not in ("another strategy", "any strategy"))
        if found.best.name not in {row.name for row in point.rows} or found.best.name != point.best.name:
            said = ", ".join(filter(None, (found.best.name, said)))
        return Rescue(
            point.workers, said, found, 1 - found.rate_per_gpu / point.rate_per_gpu, self._command(tried, found)
        )

    def _point(self, tried: Tried) -> ScalePoint:
        key = (tried.name, tried.groups)
        if key not in self.loaded:
            made = self.curve.workload
            if key != (made.name, self.curve.groups):
                alone = tried.groups == Parallelism()
                made = load_workload(key[0]) if alone else replica_workload(key[0], self.curve.cluster, key[1])
                made = made.scaled(self.curve.anchored or 1.0)
            self.loaded[key] = made
        workload, asked = self.loaded[key], self.options.what_if
        what_if = replace(asked, accumulate=tried.accumulate)
        if asked.global_batch is None and tried.batch is not None:
            what_if = replace(what_if, batch_size=tried.batch)
        elif asked.global_batch is not None and tried.workers != self.curve.points[-1].workers:
            what_if = replace(what_if, batch_size=tried.batch, global_batch=None)
        options = replace(self.options, plans=tried.plans, what_if=what_if, groups=tried.groups, anchor=None)
        task = ScaleTask.of(workload, self.curve.cluster, options, self.subjects)
        return task.point(workload, tried.workers)

    def _command(self, tried: Tried, found: ScalePoint) -> str:
        """The command of the point, with what was changed in place of what was given."""
        if self.command is None:
            return ""
        cluster, price, arguments = self.command
        given: dict[str, Any] = {
            "--cluster": cluster,
            "--workers": tried.workers,
            "--price": price,
            "--plan": found.best.name,
            "--accumulate": tried.accumulate if tried.accumulate > 1 else None,
            "--global-batch": None,
            "--batch-size": tried.batch,
            **{
                f"--{option}": size if (size := getattr(tried.groups, kind)) > 1 else None
                for kind, option in DEGREES.items()
            },
        }
        name = self.curve.workload.name
        targets = re.findall(r"--for[ =](\S+)", " ".join(arguments))
        silent = tried.groups != Parallelism() and not all(map(says_groups, targets))
        dropped = (*given, *DROPPED, *(("--for",) if silent else ()))
        kept = list(_without(arguments, dropped))
        renamed = [tried.name if one == name or _elsewhere(one, cluster) == name else one for one in kept]
        added = [part for name, value in given.items() if value is not None for part in (name, str(value))]
        return shlex.join(["osf", "scale", *renamed, *added])


def _elsewhere(argument: str, cluster: str) -> str:
    """Words with the GPU of a cluster; another argument as it is."""
    return on_gpu_of(argument, cluster) if in_words(argument) else argument


def _without(arguments: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    """Arguments without these options and their values."""
    rest = iter(arguments)
    for one in rest:
        name, equals, _ = one.partition("=")
        if name not in names:
            yield one
        elif not equals and name not in FLAGS:
            next(rest, None)


def _repeated(words: str) -> float:
    """The place in REPEATED of a workload in words; a part of its blocks is less than all."""
    setting = parse_words(words).setting
    return REPEATED[setting.checkpointing] - (setting.portion < 1) * 0.5
