"""The settings of FSDP2 and HSDP as JSON, and as lines of Python to paste."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise
from typing import Any

from osfmodel.entities.modules import blocks
from osfmodel.entities.sharding import Form
from osfmodel.entities.workload import Workload
from osfmodel.solve.sharded_bounds import AHEAD
from osfmodel.targets.fsdp2_knobs import FsdpKnobs, pattern_text, plan_name, runs_of
from osfmodel.targets.target import Accumulation


def config(knobs: FsdpKnobs) -> dict[str, Any]:
    """The groups as module names; null for one per block."""
    return {
        "groups": None if knobs.groups is None else [list(group) for group in knobs.groups],
        "pattern": None if knobs.groups is None else pattern_text(knobs.groups),
        "reshard_after_forward": knobs.reshard if isinstance(knobs.reshard, bool) else list(knobs.reshard),
        "forward_prefetch": knobs.forward_prefetch,
        "backward_prefetch": knobs.backward_prefetch,
        "replicas": "one per node" if knobs.replicas is None else knobs.replicas,
        "param_dtype": knobs.gather_dtype or None,
        "reduce_dtype": knobs.reduce_dtype or None,
        "reduce_scatter_max_input_buffers": knobs.inputs,
        "separate_reduce_scatter_group": knobs.separate,
        **({"offload_policy": "CPUOffloadPolicy()"} if knobs.offload else {}),
    }


def render(knobs: FsdpKnobs, workload: Workload) -> str:
    """Python to paste after the code that makes the model."""
    groups = [(name,) for name in blocks(workload)] if knobs.groups is None else knobs.groups
    hybrid = knobs.replicas != 1
    replicas = 'ranks // int(os.environ["LOCAL_WORLD_SIZE"])' if knobs.replicas is None else knobs.replicas
    mesh = MESH.format(replicas=replicas) if hybrid else ""
    lists = "".join(
        PREFETCH.format(direction=direction, behind=behind, depth=depth)
        for direction, behind, depth, default in (
            ("forward", "number + 1 : number + 1 + {depth}", knobs.forward_prefetch, AHEAD[0][0]),
            ("backward", "max(0, number - {depth}) : number][::-1", knobs.backward_prefetch, AHEAD[0][1]),
        )
        for behind in [behind.format(depth=depth)]
        if depth != default
    )
    types = {"param_dtype": TRAINED_IN.get(knobs.gather_dtype, knobs.gather_dtype), "reduce_dtype": knobs.reduce_dtype}
    stated = ", ".join(f"{key}=torch.{dtype}" for key, dtype in types.items() if dtype)
    given = ", mesh=mesh" * hybrid + ", mp_policy=policy" * bool(stated)
    given += ", offload_policy=CPUOffloadPolicy()" * bool(knobs.offload)
    policy = (FLOAT8 if knobs.gather_dtype in TRAINED_IN else "") + (POLICY.format(types=stated) if stated else "")
    flight = INPUTS.format(count=knobs.inputs) if knobs.inputs > 1 else ""
    flight += SEPARATE if knobs.separate else ""
    freed = knobs.freed(len(groups))
    mixed = len(set(freed)) > 1
    kept = [place for place, one in enumerate(freed) if not one]
    return TEMPLATE.format(
        name=workload.name, named=_named(knobs), groups=grouped_text(groups), mesh=policy + mesh,
        given=given, lists=flight + lists, imports=_imports(hybrid, bool(stated), bool(knobs.offload)),
        kept=f"kept = {{{_runs_of(kept)}}}  # groups that stay until backward\n" if mixed else "",
        loop="number, names in enumerate(groups)" if mixed else "names in groups",
        reshard="number not in kept" if mixed else all(freed),
        then=MIXED if mixed else FREED if all(freed) else KEPT,
    )  # fmt: skip


TRAINED_IN = {"float8": "bfloat16"}
"""Types that FSDP2's policy does not take, with the one of the computation around them."""
FLOAT8 = """\
# The plan gathers linear layers in float8: convert the model before, with torchao's convert_to_float8_training and
# Float8LinearConfig(enable_fsdp_float8_all_gather=True). All else is in the type of the policy.
"""


def _imports(mesh: bool, policy: bool, offload: bool) -> str:
    """The imports of the lines, with those of a mesh, of a policy of mixed precision and of one for the host."""
    policies = "CPUOffloadPolicy, " * offload + "MixedPrecisionPolicy, " * policy
    lines = {
        "import os\n": mesh,
        "import torch": policy,
        "from torch.distributed.device_mesh import init_device_mesh": mesh,
        f"from torch.distributed.fsdp import {policies}fully_shard": True,
    }
    return "\n".join(line for line, needed in lines.items() if needed)


def _named(knobs: FsdpKnobs) -> str:
    """A comment with the settings as the name of a plan; "" for the default ones and those that no name states."""
    name = plan_name(knobs)
    plain = replace(FsdpKnobs(), replicas=knobs.replicas)
    return f'# To predict these settings: --plan "{name}"\n' if name and knobs != plain else ""


def _runs_of(numbers: Sequence[int]) -> str:
    """The inside of a set of Python with these numbers, runs of them as ranges."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return ", ".join(f"*range({run[0]}, {run[-1] + 1})" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def grouped_text(groups: Sequence[Sequence[str]]) -> str:
    """Groups as lines of Python that make lists of names, runs of numbered modules as one expression each."""
    lines: list[str] = []
    left = list(groups)
    while left:
        count = _alike(left)
        lines.append(_several(left[:count]) if count > 1 else f"[{_members(left[0])}]")
        left = left[count:]
    return "".join(f"    {line},\n" for line in lines)


def _alike(groups: Sequence[Sequence[str]]) -> int:
    """How many of the first groups are runs of one list of modules, as long as each other, without a gap."""
    size, count = len(groups[0]), 1
    if len(runs_of(groups[0])) > 1:
        return 1
    for before, group in pairwise(groups):
        if len(group) != size or len(runs_of([before[-1], *group])) > 1:
            break
        count += 1
    return count if count * size > 2 and "%" not in groups[0][0] else 1


def _several(groups: Sequence[Sequence[str]]) -> str:
    """The expression for groups that are runs of one list of modules."""
    ((stem, first, count),) = runs_of([name for group in groups for name in group])
    size, end = len(groups[0]), first + count
    if size == 1:
        return f'*(["{stem}%d" % i] for i in range({first}, {end}))'
    return f'*(["{stem}%d" % j for j in range(i, i + {size})] for i in range({first}, {end}, {size}))'


def _members(names: Sequence[str]) -> str:
    """The inside of a list of names; runs of three or more as expressions."""
    runs, parts, place = runs_of(names), [], 0
    for stem, first, count in runs:
        expression = f'"{stem}%d" % i for i in range({first}, {first + count})'
        if count > 2 and "%" not in stem:
            parts.append(expression if len(runs) == 1 else f"*({expression})")
        else:
            parts += map(repr, names[place : place + count])
        place += count
    return ", ".join(parts)


def accumulating(form: Form, text: str, ending: str, count: int) -> str:
    """Lines that accumulate in this way, after those that shard the model."""
    calls = "".join(line.format(count=count) for line, asked in zip(CALLS, _asked(form), strict=True) if asked)
    return text + ACCUMULATED.format(count=count, when=WHEN[form.reduce_each], calls=calls)


def _asked(form: Form) -> tuple[bool, bool, bool]:
    """Whether each of CALLS is needed."""
    return not form.reduce_each, form.reduce_each and not form.replicas_each, form.keep


def words(form: Form) -> str:
    """The calls of a way to accumulate, in words."""
    called = [name for name, asked in zip(NAMES, _asked(form), strict=True) if asked]
    return " and ".join(f"{name}(False)" for name in called) or REDUCING


def accumulation(*forms: Form) -> Accumulation:
    """The ways to accumulate, the usual one first."""
    ways = {form: (partial(accumulating, form), words(form)) for form in forms}
    return Accumulation(ways[forms[0]][0], forms=ways)


NAMES = ("set_requires_gradient_sync", "set_requires_all_reduce", "set_reshard_after_backward")
CALLS = tuple(
    f"        model.{name}(number == {{count}})  # before, {what}\n"
    for name, what in zip(
        NAMES,
        ("gradients are added up, whole", "shards are added up in each replica", "parameters stay, and take memory"),
        strict=True,
    )
)
"""Calls in each micro-batch but the last."""
REDUCING = "reducing in each"
"""The words for a way without calls."""
WHEN = {True: "gathered and reduced in each", False: "reduced in the last"}
ACCUMULATED = """
# The plan is for {count} micro-batches a step, {when}: train with this in place of one backward.
def train_step(batches, loss_of, optimizer):  # {count} micro-batches; loss_of(batch) calls the model
    optimizer.zero_grad()
    for number, batch in enumerate(batches, 1):
{calls}        (loss_of(batch) / {count}).backward()
    optimizer.step()
"""
MESH = """
ranks = int(os.environ["WORLD_SIZE"])  # as torchrun sets it
replicas = {replicas}
mesh = init_device_mesh("cuda", (replicas, ranks // replicas), mesh_dim_names=("replicate", "shard"))
"""
POLICY = """
policy = MixedPrecisionPolicy({types})
"""
PREFETCH = """\
for number, names in enumerate(groups):
    ahead = [model.get_submodule(name) for group in groups[{behind}] for name in group[:1]]
    for name in names:
        model.get_submodule(name).set_modules_to_{direction}_prefetch(ahead)
"""
INPUTS = """\
model.set_reduce_scatter_max_input_buffers({count})  # torch 2.13 or later
"""
SEPARATE = """\
model.set_separate_reduce_scatter_group(True)  # torch 2.13 or later
"""
FREED = "each is freed after forward and gathered again in backward"
KEPT = "each is kept from forward until backward"
MIXED = "groups in `kept` stay until backward; the others are freed after forward and gathered again"
TEMPLATE = """\
# FSDP2 groups for {name}: {then}.
# Modules not listed stay in the root group.
{named}{imports}
{mesh}
groups = [
{groups}]
{kept}for {loop}:
    fully_shard([model.get_submodule(name) for name in names], reshard_after_forward={reshard}{given})
fully_shard(model{given})
{lists}"""
