"""Horovod: the settings of its background loop (``engine.horovod_loop``), and groups of tensors for an exact plan.

Two settings, fusion threshold and cycle time, cannot form every plan; ``groups=`` of DistributedOptimizer can form any
of whole tensors, at the price of a line of code, so they are recommended where they win.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import FREE
from osfmodel.engine import predict_timeline
from osfmodel.engine.horovod_loop import DEFAULT_CYCLE, DEFAULT_THRESHOLD, PADDING, Loop, carry_out, steady_iteration
from osfmodel.engine.horovod_settings import PREFIX, environment, milliseconds, name_of, named
from osfmodel.entities.compression import FP16
from osfmodel.entities.display import show_bytes, show_time
from osfmodel.entities.errors import PlanError
from osfmodel.entities.executors import HOROVOD
from osfmodel.entities.files.notation import read
from osfmodel.entities.plan import Plan, grouped_plan, one_by_one
from osfmodel.entities.rounding import least
from osfmodel.entities.units import MIB
from osfmodel.entities.workload import Workload
from osfmodel.solve.exact import optimal
from osfmodel.solve.search.robust import fairest
from osfmodel.solve.solution import Case, Limits, Question
from osfmodel.targets.horovod_search import best_settings
from osfmodel.targets.target import (
    Accumulation,
    Conversion,
    Launch,
    SettingsSearch,
    SettingsText,
    SizeKnob,
    Target,
    require_plain,
)

GROUP_CYCLES = (0.0005, DEFAULT_CYCLE, 0.0025, 0.005)
"""Cycle times to try with groups, in seconds; with groups the loop has nothing to wait for."""
WORTH_A_LINE = 0.005
"""Relative gain from which groups, which need changed code, are recommended over settings alone."""
BEST = "horovod:best"
"""Name of the plan with the best threshold and cycle time that were found."""


def to_plan(knobs: Loop, workload: Workload, pricing: Pricing) -> Plan:
    """The batches that the loop forms, each released at its launch; with one worker, as they become ready."""
    if pricing.workers == 1 and pricing.cost() == FREE:  # a cost that is given may be of several workers
        return one_by_one(workload)  # DistributedOptimizer registers no hooks then
    return carry_out(knobs, workload, pricing)


def from_plan(plan: Plan, workload: Workload, pricing: Pricing, limits: Limits = Limits()) -> Loop:
    """The buckets of the plan as groups, and the cycle time of GROUP_CYCLES that is best for them.

    Groups list parameters by name; for a trace without names, settings alone are searched. Raises PlanError for a plan
    that Horovod cannot run, and if no settings keep the limits.
    """
    require_plain(plan, workload, "Horovod")
    if workload.grain:
        found, _ = search([Case(workload, pricing, workload.compute_time)], limits)
        if found is None:
            raise PlanError(limits.unmet("settings of Horovod"))
        return found
    loop = _grouped(plan)
    if not loop.groups:
        return loop
    tried = [replace(loop, cycle=cycle) for cycle in GROUP_CYCLES]
    return least(tried, lambda loop: steady_iteration(loop, workload, pricing).iteration_time)


def _grouped(plan: Plan) -> Loop:
    """Groups of the plan's buckets, with a threshold that holds the largest."""
    groups = tuple(tuple(block.layer for block in bucket.blocks) for bucket in plan.buckets)
    largest = max((bucket.size + PADDING * len(bucket.blocks) for bucket in plan.buckets), default=0)
    return Loop(max(DEFAULT_THRESHOLD, -(-largest // MIB) * MIB), groups=groups, use_groups=bool(groups))


def exact(plan: Plan, workload: Workload) -> Loop:
    """Groups that form exactly these buckets in this order; the clock decides when each is launched.

    Raises PlanError if none do: if a bucket would be complete before one that comes first in the plan, or is
    released before all of it was submitted.
    """
    require_plain(replace(plan, channels=1), workload, "Horovod")
    gradients = workload.gradients
    hooks = zip(gradients.enqueue_times, range(len(gradients)), strict=True)
    submitted = dict(zip(gradients.names, hooks, strict=True))
    whole = [max(submitted[block.layer] for block in bucket.blocks) for bucket in plan.buckets]
    released = [bucket.release_time for bucket in plan.buckets]
    if whole != sorted(whole) or released != sorted(released):
        raise PlanError("Horovod launches a group when it is whole: this plan has them in another order")
    if any(release < submission for release, (submission, _) in zip(released, whole, strict=True)):
        raise PlanError(
            "Horovod sends a group at the end of a cycle, once it is whole: this plan releases one before that"
        )
    return replace(_grouped(plan), streams=plan.channels)


def search(cases: Sequence[Case], limits: Limits) -> tuple[Loop | None, tuple[str, ...]]:
    """The threshold and cycle time that do best in the worst of the cases; None if none keeps the limits."""
    found = best_settings(cases, limits)
    if found is None:
        return None, ()
    thinned = "not every fusion threshold that changes the grouping was tried: some close to others were skipped"
    return found.loop, () if found.exhaustive else (thinned,)


def best(workload: Workload, pricing: Pricing) -> Loop:
    """The best threshold and cycle time for one price, with the host as the workload has it."""
    found = best_settings([Case(workload, pricing, workload.compute_time)])
    return Loop() if found is None else found.loop


def complete(knobs: Loop, workload: Workload, pricings: Sequence[Pricing], limits: Limits = Limits()) -> Loop:
    """Add the best plan as groups on offer, if groups are not in force and parameters have names."""
    if knobs.use_groups or workload.grain:
        return knobs
    solutions = [optimal.solve(Question(workload, pricing, limits=limits)) for pricing in pricings]
    plans = [solution.plan for solution in solutions if solution.plan is not None]
    if not plans:
        return knobs
    plan = fairest(
        plans, lambda plan: [predict_timeline(workload, plan, pricing).iteration_time for pricing in pricings]
    )
    return replace(knobs, groups=_grouped(plan).groups)


def grouped_plan_of(loop: Loop, workload: Workload) -> Plan:
    """The plan of the groups as buckets, without a clock."""
    place = {name: i for i, name in enumerate(workload.gradients.names)}
    return grouped_plan(workload, [[place[name] for name in group] for group in loop.groups])


def from_conditions(conditions: Mapping[str, str], workload: Workload) -> Loop | None:
    """The settings in a run's conditions, None if there are none. Raises UsageError or DataError if unreadable."""
    if "settings" not in conditions:
        return None
    loop = named(conditions["settings"])
    if "sent" not in conditions:
        return loop
    groups = _grouped(read(conditions["sent"], workload)).groups
    return replace(loop, groups=groups, use_groups=True)


def settings_of(name: str) -> tuple[Callable[[Workload, Pricing], Loop], str, int]:
    """The search that ``horovod:64MiB,5ms`` or ``horovod:best`` names, its description, and the number of streams.

    Raises UsageError as :func:`named`.
    """
    if name == BEST:
        return best, "the best settings found", 1
    loop = named(name.removeprefix(PREFIX))
    said = f"a threshold of {show_bytes(loop.threshold)} and a cycle of {show_time(loop.cycle)}"
    return lambda workload, pricing: loop, said, loop.streams


def words(knobs: Loop) -> str:
    """The settings in a few words, with a note if groups are used."""
    return f"{PREFIX}{name_of(knobs)}" + (f" with {len(knobs.groups)} groups" if knobs.use_groups else "")


def caveats(workload: Workload) -> tuple[str, ...]:
    """Assumptions of the prediction."""
    known = any(layer.enqueue_time is not None for layer in workload.layers)
    return (
        ()
        if known
        else ("Horovod is predicted as if the CPU did not run ahead of the GPU; if it does, Horovod fuses more",)
    )


def config(knobs: Loop) -> dict[str, Any]:
    """Environment variables, and the groups of an exact plan (``use_groups`` tells whether they are recommended)."""
    return {
        "env": environment(knobs),
        "use_groups": knobs.use_groups,
        "groups": [list(group) for group in knobs.groups],
    }


def render(knobs: Loop, workload: Workload) -> str:
    """An env file, the horovodrun flags, the YAML of --config-file, and Python for ``groups=``."""
    rounded = (
        ""
        if knobs.threshold % MIB == 0
        else f"; rounded up from {show_bytes(knobs.threshold)}, which may fuse otherwise"
    )
    return TEMPLATE.format(
        name=workload.name,
        together=TOGETHER if knobs.use_groups else "",
        environment="\n".join(f"{key}={value}" for key, value in environment(knobs).items()),
        mb=-(-knobs.threshold // MIB),
        rounded=rounded,
        ms=milliseconds(knobs.cycle),
        python=NAMELESS if workload.grain else _python(knobs, workload),
        beside="; with HOROVOD_DISABLE_GROUP_FUSION=1 in the environment" if knobs.use_groups else "",
    )


def _python(knobs: Loop, workload: Workload) -> str:
    groups = "".join(f"#     {line}\n" for group in knobs.groups for line in _wrapped(list(group)))
    return PYTHON.format(
        groups=groups,
        advice="part of this recommendation"
        if knobs.use_groups
        else "only if you want the exact plan, in place of 1 to 3",
        grouped=" ".join(f"{key}={value}" for key, value in environment(_offered(knobs, workload)).items()),
        compressed="\n#     compression=hvd.Compression.fp16," if workload.sent_as == FP16 else "",
    )


def launched(knobs: Loop, workload: Workload) -> str:
    """The file for ``horovodrun --config-file``, which rounds to whole MiB and knows no groups."""
    return LAUNCHED.format(
        name=workload.name,
        missing=IN_PYTHON if knobs.use_groups else "",
        mb=-(-knobs.threshold // MIB),
        ms=milliseconds(knobs.cycle),
    )


def _offered(knobs: Loop, workload: Workload) -> Loop:
    """The settings under which the groups form the plan."""
    return replace(_grouped(grouped_plan_of(knobs, workload)), cycle=knobs.cycle)


def _wrapped(names: list[str]) -> list[str]:
    """A Python list of names on lines of a readable width."""
    return textwrap.wrap(f"{names!r},", 108, subsequent_indent=" ", break_long_words=False, break_on_hyphens=False)


TEMPLATE = """\
# Horovod settings for {name}.
{together}# 1. Environment file (threshold in bytes, cycle in milliseconds):
{environment}

# 2. The same as horovodrun flags (threshold in whole MiB{rounded}{beside}):
#    horovodrun --fusion-threshold-mb {mb} --cycle-time-ms {ms} ...

# 3. The same as YAML for horovodrun --config-file{beside}:
#    params:
#      fusion_threshold_mb: {mb}
#      cycle_time_ms: {ms}

{python}"""
TOGETHER = "# 1 to 3 need the groups of 4, in Python: without them each tensor is sent by itself.\n"
NAMELESS = """\
# An exact plan needs groups of parameters by name, which the trace does not have: osf profile records them.
"""
PYTHON = """\
# 4. Python, {advice}, with
#    {grouped}
# names = [
{groups}# ]
# parameters = dict(model.named_parameters())
# optimizer = hvd.DistributedOptimizer(
#     optimizer,
#     named_parameters=model.named_parameters(),{compressed}
#     groups=[[parameters[name] for name in group] for group in names],
# )
"""


def accumulate(text: str, ending: str, count: int) -> str:
    """The file with what the optimizer is to be told in Python."""
    named = "#     named_parameters=model.named_parameters(),"
    passes = f"backward_passes_per_step={count}"
    return text.replace(named, f"{named} {passes},") + PASSES.format(count=count, passes=passes)


PASSES = """
# The plan is for {count} micro-batches a step, sent with the last. In Python:
# optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), {passes})
# For each step call backward {count} times on loss / {count}, then step() and zero_grad() once.
"""
IN_PYTHON = "# Groups are part of the recommendation, too, in Python: osf tune ... --for horovod --format code\n"
LAUNCHED = """\
# Horovod settings for {name}, for horovodrun --config-file.
{missing}\
params:
  fusion_threshold_mb: {mb}
  cycle_time_ms: {ms}
"""

TARGET = Target(
    summary="Horovod with its default fusion threshold, 128 MiB, and cycle time, 1 ms",
    convert=Conversion(
        default_knobs=Loop,
        from_plan=from_plan,
        to_plan=to_plan,
        exact=exact,
        complete=complete,
        from_conditions=from_conditions,
        unpriced=True,  # its loop has the settings, and forms the batches itself
    ),
    text=SettingsText(
        config=config,
        render=render,
        ending=".env",
        files={".yaml": launched, ".yml": launched},
        caveats=caveats,
        accumulation=Accumulation(accumulate, lambda count: {"backward_passes_per_step": count}),
    ),
    launch=Launch(
        launcher="horovodrun or mpirun does, with the environment that -o horovod.env writes without --lines, or "
        "horovodrun with --config-file and -o horovod.yaml"
    ),
    search=SettingsSearch(find=search, words=words, reluctance=WORTH_A_LINE),
    size=SizeKnob("HOROVOD_FUSION_THRESHOLD", lambda size: Loop(threshold=size)),
    executor=HOROVOD,
    clock=True,
    compared=True,
)
