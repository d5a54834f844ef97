"""Named plans: the same names everywhere, each with its rule and its summary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from osfmodel.cost.pricing import Pricing
from osfmodel.engine import horovod_settings, osf_model, sparse, without_priority
from osfmodel.engine.sparse import Sparsity
from osfmodel.entities.compression import require_density
from osfmodel.entities.display import show_bytes
from osfmodel.entities.errors import UsageError
from osfmodel.entities.executors import RUNTIME
from osfmodel.entities.lookup import letters, suggestion
from osfmodel.entities.modules import ZERO
from osfmodel.entities.plan import PLAIN, Objective, Plan, in_one, one_by_one
from osfmodel.entities.rounding import least, within
from osfmodel.entities.units import parse_part
from osfmodel.entities.workload import Workload
from osfmodel.solve import SOLVERS, answer
from osfmodel.solve.bounds import bound_under, messages_bound
from osfmodel.solve.solution import Limits, PlanRule, Question, Solution, Status, narrower, planner_of, searched
from osfmodel.solve.under_effects import best_cap_timed, plan_under_effects
from osfmodel.targets import (
    ALIASES,
    CONFIG_TARGETS,
    Target,
    ddp,
    decoupled,
    deepspeed,
    fsdp2,
    fsdp2_knobs,
    horovod,
    is_stock,
    spelt,
    stock_targets,
)
from osfmodel.targets.ddp import BEST_CAP, CAP, single_cap


def _default(target: Target) -> PlanRule:
    """The plan of a target's defaults."""
    return PlanRule(
        planner_of(target.convert.default), target.summary, target.text.caveats, target.objective,
        on_request=not target.compared, executor=target.executor, unpriced=target.convert.unpriced,
    )  # fmt: skip


OPTIMAL, PLANNED = "optimal", "planned"
"""Plans that are called best: no published plan is faster; for ``optimal``, none of whole tensors in ready order."""


def named_rule(name: str, rule: PlanRule) -> PlanRule:
    """The named plan of an entry of SOLVERS; if the rule searches, the best plan found under effects."""
    found = under_effects(rule)
    if name not in (OPTIMAL, PLANNED):
        return found
    made, solve = (name, PLANNED), found.solve
    return rule._replace(solve=lambda question: fastest(question, solve(question), name == OPTIMAL, made=made))


def under_effects(rule: PlanRule) -> PlanRule:
    """The rule; if it searches, with the best plan that it finds under effects."""
    return rule._replace(solve=partial(plan_under_effects, planner=rule.solve)) if rule.searches else rule


def fastest(
    question: Question, found: Solution, whole: bool = False, credit: bool = True, made: Sequence[str] = (PLANNED,)
) -> Solution:
    """``found``, or the fastest plan of another rule within the limits, under these rules or narrower ones.

    ``whole``: of whole tensors in ready order only; ``credit``: whether plans may send by priority; ``made``: names of
    rules that are among those that made ``found``. Plans whose messages alone take longer are not timed.
    """
    if found.plan is None or (whole and found.status is Status.OPTIMAL):
        return found
    time = within(found.require()[1].iteration_time)
    if time <= within(question.lower_bound):
        return found
    others = [
        Solution(question, plan, Status.HEURISTIC)
        for plan in dict.fromkeys(_others(question, whole, time, made))
        if question.limits.allow(plan)
        and (credit or plan.credit is None)
        and (not whole or in_ready_order(plan, question.workload))
    ]
    return least([found, *others], lambda solution: solution.require()[1].iteration_time)


def in_ready_order(plan: Plan, workload: Workload) -> bool:
    """Whether the buckets hold whole tensors, those of each dtype in ready order, under plain rules."""
    place = {name: item for item, name in enumerate(workload.gradients.names)}
    order = [
        place[block.layer]
        for bucket in plan.buckets
        for block in sorted(bucket.blocks, key=lambda block: place[block.layer])
    ]
    dtypes = workload.gradients.dtypes
    kinds = [[item for item in order if dtypes[item] == kind] for kind in dict.fromkeys(dtypes)]
    return plan.plain and kinds == workload.gradients.chains


def _others(question: Question, whole: bool, time: float, made: Sequence[str]) -> Iterator[Plan]:
    """The plans of all rules but those ``made``, without a clock, and those by priority also without priority.

    With ``whole``, neither that of ``optimal`` nor those on request: ``blocks`` cuts tensors, and takes long. Left out
    are those whose messages alone take longer than ``time``.
    """
    workload, pricing, names = question.workload, question.pricing, [*NAMED_PLANS, *FAMILIES[CAP].examples]
    rules = {name: named_plan(name) for name in (*names, *FAMILIES[osf_model.PREFIX].examples) if name not in made}
    if OPTIMAL in rules:  # the others compete here already
        rules[OPTIMAL] = under_effects(SOLVERS[OPTIMAL])
    for objective in [one for one in narrower(question.objective) if bound_under(workload, pricing, one) < time]:
        asked = replace(question, objective=objective, limits=Limits())
        hopeless = messages_bound(workload, pricing, objective, workload.gradients.sizes, cut=True) > time
        for name, rule in rules.items():
            kept = searched(rule.objective) and not (whole and (rule.on_request or name == OPTIMAL))
            if kept and not (rule.unfused and hopeless):
                plan = rule.make(asked).require_plan()
                plan = replace(plan, buckets=tuple(replace(bucket, release_time=0) for bucket in plan.buckets))
                sizes = [bucket.size for bucket in plan.buckets]
                if messages_bound(workload, pricing, objective, sizes) <= time:
                    yield from dict.fromkeys((plan, without_priority(workload, plan, pricing)))


def _table() -> dict[str, PlanRule]:
    wait_free = "one collective per tensor, as soon as it is ready (wait-free backpropagation)"
    table = {
        "wfbp": PlanRule(planner_of(lambda workload, pricing: one_by_one(workload)), wait_free, unpriced=True),
        "single": PlanRule(
            planner_of(lambda workload, pricing: in_one(workload)),
            "all gradients in one collective after backward",
            unpriced=True,
        ),
    }
    table |= {name: _default(target) for name, target in stock_targets().items()}
    table |= {name: table[target] for name, target in ALIASES.items()}
    table["decoupled"] = decoupled.RULE
    table |= {name: named_rule(name, rule) for name, rule in SOLVERS.items()}
    if len(table) != 3 + len(ALIASES) + len(stock_targets()) + len(SOLVERS):
        raise AssertionError("two plans have the same name: rename a solver or a target")
    return table


NAMED_PLANS: Mapping[str, PlanRule] = _table()
STOCK_PLANS = tuple(name for name, entry in NAMED_PLANS.items() if entry.objective.plain and not entry.on_request)
"""Plans compared by default, for stock frameworks: one collective at a time and a barrier before the update."""


def _capped(name: str) -> PlanRule:
    """The rule of ``cap:25MiB`` or ``cap:best``."""
    limit = single_cap(name)
    which = "that is best" if limit is None else f"of {show_bytes(limit)}"

    def make(workload: Workload, pricing: Pricing) -> Plan:
        cap = best_cap_timed(workload, pricing) if limit is None else limit
        return ddp.to_plan(ddp.DdpKnobs((cap,)), workload)

    summary = f"PyTorch DDP with a bucket_cap_mb {which}"
    return PlanRule(planner_of(make), summary, ddp.caveats, unpriced=limit is not None)


def _with_settings(name: str) -> PlanRule:
    """The rule of ``horovod:64MiB,5ms`` or ``horovod:best``."""
    find, said, streams = horovod.settings_of(name)

    def solve(question: Question) -> Solution:
        """Horovod's plan; with fewer channels than streams if the loop itself runs collectives."""
        settings = find(question.workload, question.pricing)
        plan = horovod.to_plan(settings, question.workload, question.pricing)
        kept = streams > 1 and question.objective.permits(plan.objective)
        return answer(question, plan if kept else plan.under(question.objective))

    return PlanRule(
        solve, f"Horovod with {said}", horovod.caveats, Objective(streams), chooses=streams > 1,
        executor=horovod.TARGET.executor, unpriced=name != horovod.BEST,
    )  # fmt: skip


def _by_fusion(name: str) -> PlanRule:
    """The rule of ``osf:64MiB,5ms`` or ``osf:adaptive``."""
    rule = osf_model.rule_of(name)
    return PlanRule(
        planner_of(lambda workload, pricing: rule(workload, pricing.cost())),
        f"OSF's tensor fusion (reconstructed): {name.removeprefix(osf_model.PREFIX)}",
    )


SPARSE = "sparse:"
"""Prefix of plans with sparse buckets: ``sparse:1%,cap:25MiB,release,mirror``."""
FALLBACK = "fallback"
SPARSE_OPTIONS = {
    "release": "updates as soon as buckets have arrived",
    "mirror": "unsent updates kept in mirror weights",
    FALLBACK: "dense where sparse does not pay",
}
"""Options at the end of such a name."""


class SparseName(NamedTuple):
    """The parts of ``sparse:DENSITY,PLAN,OPTION...``."""

    density: float
    plan: str
    options: tuple[str, ...]


def sparse_name(name: str) -> SparseName | None:
    """The parts of a ``sparse:`` name; None for other names. Raises UsageError, or PlanError for a bad density."""
    if not name.startswith(SPARSE):
        return None
    first, *rest = (part.strip() for part in name.removeprefix(SPARSE).split(","))
    options: list[str] = []
    while rest and rest[-1] in SPARSE_OPTIONS:
        options.insert(0, rest.pop())
    form = (
        f"write {SPARSE}DENSITY,PLAN and then any of {', '.join(SPARSE_OPTIONS)}, such as {SPARSE}1%,cap:25MiB,release"
    )
    try:
        density = parse_part(first)
    except ValueError:
        raise UsageError(f"plan {name!r}: {first!r} is not a density such as 1% or 0.01: {form}") from None
    require_density(density)
    if not rest or len(set(options)) < len(options):
        raise UsageError(f"plan {name!r}: {form}")
    return SparseName(density, ",".join(rest), tuple(options))


def _sparse(name: str) -> PlanRule:
    """The rule of another plan with every bucket sparse."""
    parts = sparse_name(name)
    if parts is None or parts.plan.startswith(SPARSE):
        raise UsageError(f"plan {name!r}: its buckets are sparse already")
    density, base, options = parts
    entry = named_plan(base)

    def solve(question: Question) -> Solution:
        dense = entry.make(question).require_plan()
        plan = sparse.sparsely(dense.under(PLAIN), density)
        plan = replace(plan, release="release" in options, mirror="mirror" in options)
        if FALLBACK in options:
            plan = falling_back(plan, question.workload, question.pricing)
        return answer(question, plan.under(dense.objective))

    said = "".join(f", {SPARSE_OPTIONS[option]}" for option in options)
    return PlanRule(
        solve, f"the buckets of {base}, {density:.3g} of each tensor sent{said}", objective=entry.objective,
        chooses=entry.chooses, executor=RUNTIME, unpriced=entry.unpriced and FALLBACK not in options,
    )  # fmt: skip


class Family(NamedTuple):
    """Plans whose names have parameters, such as ``cap:25MiB``.

    read:     (name) -> rule; raises UsageError for a malformed name
    examples: sample names
    """

    read: Callable[[str], PlanRule]
    examples: tuple[str, ...]

    def summaries(self) -> dict[str, str]:
        """The summary of each example."""
        return {name: self.read(name).summary for name in self.examples}


FAMILIES: Mapping[str, Family] = {
    CAP: Family(_capped, (f"{CAP}25MiB", BEST_CAP)),
    horovod_settings.PREFIX: Family(_with_settings, (f"{horovod_settings.PREFIX}64MiB,5ms", horovod.BEST)),
    osf_model.PREFIX: Family(_by_fusion, (osf_model.CONSTANT_PLAN, osf_model.ADAPTIVE_PLAN)),
    SPARSE: Family(_sparse, (f"{SPARSE}1%,{CAP}25MiB",)),
    fsdp2_knobs.FSDP2: Family(fsdp2.rule_of, (f"{fsdp2_knobs.FSDP2}2,keep", f"{fsdp2_knobs.FSDP2}bf16,reduce=fp32")),
    **{f"{name}:": Family(deepspeed.rule_of, (f"{name}:2e8,{deepspeed.OVERLAP}",)) for name in ZERO},
    fsdp2_knobs.HSDP: Family(fsdp2.rule_of, (f"{fsdp2_knobs.HSDP}2,ahead=2",)),
}
"""Families of plans, by the prefix of their names."""


def plans_for(objective: Objective) -> tuple[str, ...]:
    """The named plans for these rules: those made for any rules, and the stock ones to compare with."""
    made = [
        name
        for name, entry in NAMED_PLANS.items()
        if not entry.objective.plain and not entry.on_request and (entry.chooses or objective.permits(entry.objective))
    ]
    return STOCK_PLANS if objective.plain else (*STOCK_PLANS, *made)


def make_plan(name: str, workload: Workload, pricing: Pricing, objective: Objective | None = None) -> Plan:
    """The named plan for ``workload``, under its own rules unless others are given.

    Parameters follow a colon (FAMILIES): ``cap:25MiB``, ``horovod:64MiB,5ms``, ``osf:adaptive``,
    ``sparse:1%,cap:25MiB``. Raises UsageError for an unknown name, PlanError if there is no such plan.
    """
    rule = named_plan(name)
    rules = rule.objective if objective is None else objective
    return rule.make(Question(workload, pricing, rules)).require_plan()


def called(name: str) -> str:
    """The name of a plan as it is listed, for one that is spelt as a framework or a person does."""
    known = name in NAMED_PLANS or name.startswith(tuple(FAMILIES)) or name in CONFIG_TARGETS
    return name if known else spelt(name, NAMED_PLANS)


def named_plan(name: str) -> PlanRule:
    """The entry called ``name``: of NAMED_PLANS, of a family, or the default of another package's target.

    A name of SPELLINGS has a caveat that says as what it is predicted. Raises UsageError for any
    other name, and DataError for a target that does not load.
    """
    if (listed := called(name)) != name:
        rule = named_plan(listed)
        if letters(listed) == letters(name):
            return rule
        said = f"{name!r} is predicted as {listed}: {rule.summary}"
        return rule._replace(caveats=lambda workload: (said, *rule.caveats(workload)))
    if name in NAMED_PLANS:
        return NAMED_PLANS[name]
    family = next((prefix for prefix in FAMILIES if name.startswith(prefix)), None)
    if family is not None:
        return FAMILIES[family].read(name)
    if name in CONFIG_TARGETS and is_stock(CONFIG_TARGETS[name]):
        return _default(CONFIG_TARGETS[name])
    with_parameters = ", ".join(example for family in FAMILIES.values() for example in family.examples)
    known = f"known are {', '.join(NAMED_PLANS)}, {with_parameters}, or give a plan file"
    raise UsageError(f"unknown plan {name!r}: {suggestion(name, NAMED_PLANS, known)}")


def falling_back(plan: Plan, workload: Workload, pricing: Pricing) -> Plan:
    """``plan`` with each bucket made dense that would take longer sparse, with its computation, if sent alone.

    If each layer is a bucket, that is the dense fallback per layer.
    """
    sparsity, dense, gather = (
        Sparsity(workload, pricing.effects, pricing.workers),
        pricing.cost(),
        pricing.cost("all_gather"),
    )
    found = plan
    buckets = [
        replace(bucket, density=None)
        if bucket.density is not None
        and gather(sparsity.gathered_bytes(bucket)) + sparsity.work(bucket, plan.mirror) > dense(bucket.size)
        else bucket
        for bucket in plan.buckets
    ]
    if all(bucket.density is None for bucket in buckets):
        found = replace(plan, mirror=False)
    return replace(found, buckets=tuple(buckets))
