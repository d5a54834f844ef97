"""Random subjects: a workload, a cluster, the number of workers, rules and micro-batches, each drawn from a seed.

Times and sizes have scales of their own, so that computation, start-ups or transfers decide, or none of them. Zeros,
ties, alternating dtypes, several layers without gradients, effects and several collectives in flight come now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

import osfmodel as osf
from osfmodel import CONFIG_TARGETS, Cluster, Effects, Layer, Link, Table, Workload
from osfmodel.cost.clusters import pricing_of
from osfmodel.cost.faster_network import Change, faster_network
from osfmodel.cost.pricing import STRATEGY_EXECUTORS
from osfmodel.engine import predict_timeline, without_priority
from osfmodel.engine.osf_model import PREFIX as OSF
from osfmodel.entities.batches import accumulating
from osfmodel.entities.cluster import AlphaBeta, Contention, Pieces
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.effects import EFFECTS
from osfmodel.entities.modules import SHARDED, SHARDING
from osfmodel.entities.plan import PLAIN, REPLICATED, SPLIT, Objective
from osfmodel.entities.sharding import EACH
from osfmodel.solve import SOLVERS
from osfmodel.solve.solution import Question, Status, narrower, searched
from osfmodel.targets.ddp import CAP
from osfmodel.targets.named_plans import FAMILIES, NAMED_PLANS, OPTIMAL, PLANNED, in_ready_order, named_plan

WORKERS = (2, 4, 8, 16)
BOUNDED = [name for name in SHARDING if name in STRATEGY_EXECUTORS]
"""Strategies that shard, whose steps have bounds."""
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")


@dataclass(frozen=True)
class Subject:
    """A question of a user; ``seed`` draws the same again."""

    seed: int
    workload: Workload
    cluster: Cluster
    workers: int
    rules: Objective
    accumulate: int

    @property
    def step(self) -> Workload:
        """The workload of a whole step."""
        return accumulating(self.workload, self.accumulate)

    @property
    def question(self) -> Question:
        """The question for the best plan under the rules, at the prices of the executor that they need."""
        pricing = pricing_of(self.cluster, self.workers, self.step)
        return Question(self.step, pricing.for_rules(self.rules), self.rules)

    def asked(self, strategy: str) -> Question:
        """The question under the rules but for the strategy; one that shards has rules of its own."""
        if strategy not in SHARDING:
            return replace(self, rules=replace(self.rules, strategy=strategy)).question
        pricing = pricing_of(self.cluster, self.workers, self.workload).under(STRATEGY_EXECUTORS[strategy].conditions)
        rules = Objective(strategy=strategy)
        return Question(self.workload, pricing, rules, micro_batches=(self.accumulate, EACH))


def subjects(seed: int, count: int, **fixed: object) -> Iterator[Subject]:
    """``count`` subjects; fields in ``fixed``, such as ``rules``, are the same for all."""
    for number in range(count):
        yield replace(subject(seed + number), **fixed)  # type: ignore[arg-type]


def subject(seed: int) -> Subject:
    """The subject of a seed."""
    rng = np.random.default_rng(seed)
    rules = Objective(
        int(rng.choice([1, 1, 2, 2, 3])), bool(rng.random() < 0.5), str(rng.choice([REPLICATED, REPLICATED, SPLIT]))
    )
    accumulate = int(rng.choice([1, 1, 1, 2, 4]))
    return Subject(seed, _workload(rng), _cluster(rng), int(rng.choice(WORKERS)), rules, accumulate)


def _times(rng: np.random.Generator, count: int, scale: float) -> list[float]:
    """Seconds around ``scale``, spread, equal or whole multiples of it; some are 0."""
    found = [rng.exponential(scale, count), np.full(count, scale), rng.integers(0, 4, count) * scale]
    return (found[int(rng.integers(3))] * (rng.random(count) < 0.85)).tolist()


def _workload(rng: np.random.Generator) -> Workload:
    count = int(min(rng.geometric(0.3), 8))
    scale = 10 ** rng.uniform(-6, -1)
    kinds = [["float32"], ["float32"], ["bfloat16"], ["float32", "bfloat16"]][int(rng.integers(4))]
    dtypes = [str(kind) for kind in rng.choice(kinds, count)]
    elements = 10 ** (rng.uniform(0, 7) + rng.normal(0, rng.choice([0.0, 0.3, 1.0]), count))
    sizes = [
        int(element) * element_bytes(dtype) * int(rng.random() < 0.8)
        for element, dtype in zip(elements, dtypes, strict=True)
    ]
    if rng.random() < 0.1:
        sizes = [size and size + int(rng.integers(3)) for size in sizes]  # no whole elements
    layers = zip(_times(rng, count, scale), _times(rng, count, 2 * scale), sizes, dtypes, strict=True)
    update = float(rng.choice([0.0, 0.1, 1.0])) * scale
    made = [Layer(f"layers.{number // 2}.{'up' if number % 2 else 'down'}", *row) for number, row in enumerate(layers)]
    made[0] = replace(made[0], forward_time=made[0].forward_time or scale)  # a step takes some time
    return Workload("drawn", tuple(made), update_time=update)


def _cluster(rng: np.random.Generator) -> Cluster:
    """A network by a formula, by lines or by tables, with start-ups and transfers of any proportion."""
    latency, per_byte = 10 ** rng.uniform(-6, -3) * (rng.random() < 0.9), 10 ** rng.uniform(-11, -7.5)
    model = str(rng.choice(["ring", "hierarchical", "hockney", "piecewise", "tabulated"]))
    more: dict[str, object] = {}
    if model in ("ring", "hierarchical"):
        inside = Link(latency / 4, per_byte / 8) if model == "hierarchical" else None
        more = {"between_nodes": Link(latency, per_byte, per_byte / 10), "in_node": inside}
        more["gpus_per_node"] = 4 if model == "hierarchical" else 1
    else:
        field, make = {"hockney": ("fits", _line), "piecewise": ("pieces", _lines), "tabulated": ("tables", _table)}[
            model
        ]
        kinds = COLLECTIVES if rng.random() < 0.4 else COLLECTIVES[:1]
        more = {field: tuple(make(rng, latency, per_byte, count, kind) for count in WORKERS for kind in kinds)}
    if rng.random() < 0.4:
        more["contention"] = (Contention(4, 1 + float(rng.exponential(0.5))),)
    if rng.random() < 0.15:
        more["in_flight"] = 2
    if rng.random() < 0.25:
        more["effects"] = _effects(rng, latency, per_byte)
    return Cluster("drawn", model, usual_effects=False, **more)  # type: ignore[arg-type]


def _line(rng: np.random.Generator, latency: float, per_byte: float, workers: int, kind: str) -> AlphaBeta:
    part = 1.0 if kind == "all_reduce" else float(rng.uniform(0.3, 0.8))
    return AlphaBeta(workers, latency * part, per_byte * part, kind)


def _lines(rng: np.random.Generator, latency: float, per_byte: float, workers: int, kind: str) -> Pieces:
    part = 1.0 if kind == "all_reduce" else float(rng.uniform(0.3, 0.8))
    steps = part * np.array([1.0, *np.cumprod(rng.uniform(1, 8, int(rng.integers(0, 3))))])
    return Pieces(workers, tuple((latency * steps).tolist()), tuple((per_byte * part**2 / steps).tolist()), kind)


def _table(rng: np.random.Generator, latency: float, per_byte: float, workers: int, kind: str) -> Table:
    """A noisy table: times may fall where sizes grow."""
    sizes = np.unique((4 ** rng.uniform(1, 14, int(rng.integers(2, 10)))).astype(int))
    sizes = np.array([4, 1 << 20]) if len(sizes) < 2 else sizes
    times = (latency + per_byte * sizes) * np.exp(rng.normal(0, rng.choice([0.0, 0.1, 0.5]), len(sizes)))
    startups = tuple((times * rng.uniform(0, 1, len(times))).tolist()) if rng.random() < 0.2 else ()
    part = 1.0 if kind == "all_reduce" else float(rng.uniform(0.3, 0.8))
    return Table(
        workers, tuple(sizes.tolist()), tuple((times * part).tolist()), kind, tuple(part * one for one in startups)
    )


def _effects(rng: np.random.Generator, latency: float, per_byte: float) -> Effects:
    sizes = {
        "launch_latency": latency, "hook_time": latency, "tensor_time": latency / 4, "copy_in": per_byte / 4,
        "copy_out": per_byte / 4, "fusion_copy": per_byte / 4, "compute_slowdown": 0.2, "node_slowdown": 0.05,
        "straggler_deviation": 0.05,
    }  # fmt: skip
    chosen = rng.random(len(sizes)) < 0.3
    return Effects(**{name: size for (name, size), on in zip(sizes.items(), chosen, strict=True) if on})


Told = Iterator[str]
"""Violations of a property, in words."""
ROUNDING = 1e-12
"""Relative difference that is rounding."""


def named(question: Question, name: str, objective: Objective | None = None) -> float:
    """Seconds of the named plan, made under these rules, at the prices of the question."""
    rule = named_plan(name)
    plan = rule.make(replace(question, objective=objective or question.objective)).require_plan()
    return predict_timeline(question.workload, plan, question.pricing).iteration_time


ORDINARY = [
    *(name for name, rule in NAMED_PLANS.items() if searched(rule.objective)),
    *(name for prefix in (CAP, OSF) for name in FAMILIES[prefix].examples),
]
"""Named plans of strategies for which plans are searched."""


def nothing_is_faster_than_planned(subject: Subject) -> Told:
    """``planned`` against every named plan under the same rules, and ones that permit less."""
    question = subject.question
    best = named(question, PLANNED)
    if question.lower_bound > best * (1 + ROUNDING):
        yield f"the bound is {question.lower_bound / best - 1:.1e} above planned"
    for objective in narrower(question.objective):
        for name in ORDINARY:
            other = named(question, name, objective)
            if other < best * (1 - ROUNDING):
                yield f"{name} under {objective} is {1 - other / best:.1e} faster than planned"


def nothing_in_order_is_faster_than_optimal(subject: Subject) -> Told:
    """``optimal`` against every published plan of whole tensors in ready order, one collective at a time."""
    question = replace(subject, rules=PLAIN).question
    best = named(question, OPTIMAL)
    for name in [name for name in ORDINARY if not named_plan(name).chooses]:
        plan = named_plan(name).make(question).require_plan()
        other = predict_timeline(question.workload, plan, question.pricing).iteration_time
        if in_ready_order(plan, question.workload) and other < best * (1 - ROUNDING):
            yield f"{name} is {1 - other / best:.1e} faster than optimal"


def nothing_is_faster_than_tuned(subject: Subject) -> Told:
    """The best plan of ``tune`` against named plans: for an executor any in a fixed order, else whole and in order."""
    for rules in {subject.rules, PLAIN}:
        target = "runtime" if subject.seed % 2 or not rules.plain else TUNED[subject.seed // 2 % len(TUNED)]
        tuned = osf.tune(subject.step, subject.cluster, subject.workers, target, objective=rules)
        (outcome,) = tuned.outcomes
        pricing = pricing_of(subject.cluster, subject.workers, subject.step)
        executor = CONFIG_TARGETS[target].executor
        pricing = pricing if executor is None else pricing.under(executor.conditions)
        question = Question(subject.step, pricing, rules)
        for name in ORDINARY:
            if name == PLANNED:
                continue
            plan = named_plan(name).make(question).require_plan()
            if target == "runtime":
                plan = without_priority(question.workload, plan, question.pricing)
            elif not in_ready_order(plan, question.workload):
                continue
            other = predict_timeline(question.workload, plan, question.pricing).iteration_time
            if other < outcome.optimal_time * (1 - ROUNDING):
                yield f"{name} is {1 - other / outcome.optimal_time:.1e} faster than the best of {target} under {rules}"


TUNED = [name for name, target in CONFIG_TARGETS.items() if searched(target.objective)]
"""Targets that are tuned under the plain rules, ``runtime`` among them."""


def easier(subject: Subject) -> Iterator[tuple[str, Subject]]:
    """Changes that must not make anything slower, and the subject with each."""
    factor = 1 + float(np.random.default_rng(subject.seed).exponential(1.0))
    layers = tuple(
        replace(layer, gradient_bytes=int(layer.gradient_bytes / factor) // 4 * 4) if number % 3 else layer
        for number, layer in enumerate(subject.workload.layers)
    )
    yield "more bandwidth", replace(subject, cluster=faster_network(subject.cluster, Change(factor)))
    yield "less latency", replace(subject, cluster=faster_network(subject.cluster, latency=Change(1 / factor)))
    yield "a faster device", replace(subject, workload=subject.workload.scaled(1 / factor))
    yield "fewer bytes", replace(subject, workload=replace(subject.workload, layers=layers))


def what_is_easier_is_no_slower(subject: Subject) -> Told:
    """Bounds under all strategies, and ``optimal`` where it is proven; ``planned`` is proven where it is at its bound.

    It holds where no message is dearer, which one may be that is read off a noisy table, beyond the largest size or
    below sizes that are cheaper per byte. Groups of blocks may be others with fewer bytes, since the largest block
    limits all. Several channels send by the line that is best for one: by another line, which the library takes once
    the network is faster or messages are smaller, they may take longer.
    """
    several = subject.rules.channels * subject.cluster.in_flight > 1
    for words, other in easier(subject):
        fewer, network = words == "fewer bytes", words != "a faster device"
        chosen = network and several and subject.cluster.cost_model == "piecewise"
        for name, (before, after) in _proven(subject, other).items() if _no_dearer(subject, other, fewer) else ():
            grouped = fewer and name in SHARDED
            if not grouped and not (chosen and name != OPTIMAL) and after > before * (1 + ROUNDING):
                yield f"{words} makes {name} {after / before - 1:.1e} larger"


def _no_dearer(subject: Subject, other: Subject, fewer: bool) -> bool:
    """Whether no message of ``other`` takes longer, nor, with ``fewer`` bytes, a smaller one."""
    for kind in COLLECTIVES:
        before, after = (one.question.pricing.cost(kind) for one in (subject, other))
        sizes = {1, 1 << 40, *before.breakpoints, *after.breakpoints}
        falls = before.floor != before
        if any(after(size) > before(size) * (1 + ROUNDING) for size in sizes) or (fewer and falls):
            return False
    return True


def _proven(*subjects: Subject) -> dict[str, list[float]]:
    """Bounds by strategy, and ``optimal`` where it is proven, of each of the subjects."""
    found = {
        strategy: [one.asked(strategy).lower_bound for one in subjects] for strategy in (REPLICATED, SPLIT, *BOUNDED)
    }
    solved = [SOLVERS[OPTIMAL].solve(replace(one, rules=PLAIN).question) for one in subjects]
    if all(one.status is Status.OPTIMAL for one in solved):
        found[OPTIMAL] = [one.require()[1].iteration_time for one in solved]
    return found


def scaled_by_a_factor_it_takes_as_many_times_as_long(subject: Subject) -> Told:
    """Times of computation, prices and effects. A power of two, so that nothing is rounded.

    Clocks of fusion (Horovod, OSF) are not scaled: plans that they made are left out, and with them ``optimal`` and
    ``planned`` where these are not at the bound, since then plans by a clock are among those that they are chosen from.
    """
    slow = replace(subject, workload=subject.workload.scaled(SCALE), cluster=_slower(subject.cluster))
    bound = subject.question.lower_bound * (1 + ROUNDING)
    for said in _differences(subject, slow, SCALE):
        name = said.partition(":")[0]
        if name not in (OPTIMAL, PLANNED) or named(subject.question, name) <= bound:
            yield said


SCALE = 4.0
SECONDS = {name for name, effect in EFFECTS.items() if effect.unit != "fraction"}


def _slower(cluster: Cluster) -> Cluster:
    """The cluster with all that takes seconds taking SCALE times as long."""
    effects = {name: value * SCALE for name, value in cluster.effects.active.items() if name in SECONDS}
    slow = faster_network(cluster, Change(1 / SCALE), Change(SCALE))
    links = {
        name: link and replace(link, reduce_seconds_per_byte=link.reduce_seconds_per_byte * SCALE)
        for name, link in (("in_node", slow.in_node), ("between_nodes", slow.between_nodes))
    }
    if cluster.in_node and cluster.between_nodes:  # of two networks, the one inside a node is not meant there
        inside = cluster.in_node
        links["in_node"] = Link(
            *(SCALE * x for x in (inside.latency, inside.seconds_per_byte, inside.reduce_seconds_per_byte))
        )
    tables = tuple(
        replace(
            row, times=tuple(SCALE * time for time in row.times), startups=tuple(SCALE * time for time in row.startups)
        )
        for row in cluster.tables
    )
    return replace(slow, effects=replace(cluster.effects, **effects), tables=tables, **links)


def layers_without_gradients_may_be_split(subject: Subject) -> Told:
    """Each in two halves, whose names are no blocks of their own."""
    layers = []
    for layer in subject.workload.layers:
        half = replace(layer, forward_time=layer.forward_time / 2, backward_time=layer.backward_time / 2)
        layers += [layer] if layer.gradient_bytes else [half, replace(half, name=f"{layer.name}.rest")]
    yield from _differences(subject, replace(subject, workload=replace(subject.workload, layers=tuple(layers))))


def names_do_not_matter(subject: Subject) -> Told:
    """Names that sort the other way round, with blocks where there were blocks."""
    layers = tuple(
        replace(layer, name=f"z.{9 - number // 2}.{'a' if number % 2 else 'b'}")
        for number, layer in enumerate(subject.workload.layers)
    )
    cluster = replace(subject.cluster, name="another")
    workload = replace(subject.workload, name="another", layers=layers)
    yield from _differences(subject, replace(subject, workload=workload, cluster=cluster))


def _differences(subject: Subject, other: Subject, factor: float = 1.0) -> Told:
    """Times of plans, tunings and bounds of ``other`` that are not ``factor`` times those of ``subject``."""
    first, second = _answers(subject), _answers(other)
    for name, value in first.items():
        if abs(second[name] - value * factor) > ROUNDING * value * factor:
            yield f"{name}: {second[name] / (value * factor) - 1:+.1e}"


def _answers(subject: Subject) -> dict[str, float]:
    question = subject.question
    found = {f"bound of {strategy}": subject.asked(strategy).lower_bound for strategy in (REPLICATED, SPLIT, *BOUNDED)}
    found |= {name: named(question, name) for name in ORDINARY if name not in CLOCKS}
    return found


CLOCKS = [name for name in ORDINARY if name.startswith(("horovod", OSF))]
"""Plans of frameworks that look for tensors by a clock."""


PROPERTIES: dict[str, Callable[[Subject], Told]] = {
    holds.__name__: holds
    for holds in (
        nothing_is_faster_than_planned,
        nothing_in_order_is_faster_than_optimal,
        nothing_is_faster_than_tuned,
        what_is_easier_is_no_slower,
        scaled_by_a_factor_it_takes_as_many_times_as_long,
        layers_without_gradients_may_be_split,
        names_do_not_matter,
    )
}
"""Properties of every subject: functions that yield violations."""
