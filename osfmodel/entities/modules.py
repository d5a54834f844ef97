"""Plans whose groups are made up of modules, which are known by the names of parameters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from osfmodel.entities.compression import require_shardable_sending
from osfmodel.entities.display import show_bytes
from osfmodel.entities.errors import PlanError
from osfmodel.entities.lookup import suggestion
from osfmodel.entities.plan import Block, Bucket, Plan
from osfmodel.entities.sharding import EACH, Form, ParameterGroup, Sharding
from osfmodel.entities.workload import Workload

FULLY_SHARDED, HYBRID_SHARDED = "fully-sharded", "hybrid-sharded"
"""Strategies of plans with sharded parameters: between all workers, or inside each of several replicas."""
SHARDED = (FULLY_SHARDED, HYBRID_SHARDED)
FLAT_SHARDED = "flat-sharded"
"""Strategy of plans whose groups are flat parameters, with or without replicas."""
ZERO = ("zero-1", "zero-2")
"""Strategies whose step ends with the all-gathers of all parameters, which nothing hides, by stage of DeepSpeed."""
OWNERS = "zero-1-owners"
"""Strategy of plans whose ranks own whole tensors, which they update and broadcast."""
ZERO_3 = "zero-3"
"""Strategy of DeepSpeed's stage 3, which gathers parameters by module."""
DISTRIBUTED_OPTIMIZER = "distributed-optimizer"
"""Strategy of plans with whole parameters, of which each rank updates a shard."""
SHARDING = (*SHARDED, FLAT_SHARDED, *ZERO, OWNERS, ZERO_3, DISTRIBUTED_OPTIMIZER)
"""Strategies that shard the optimizer's state at least: their plans say how they accumulate over micro-batches."""
NUMBERED, ENDING = re.compile(r"(.*_)?\d+"), re.compile(r".*\d+")
"""Names of members of a list of modules: a number, alone or behind ``_``; in a model without such, any at the end."""
SMALL = 0.001
"""Part of a model's bytes below which a module whose name merely ends in a number is no block."""


def inside(name: str, module: str) -> bool:
    """Whether ``name`` is that of the module, or of a part of it."""
    return name == module or name.startswith(f"{module}.")


def module_of(name: str) -> str:
    """The module that holds the parameter ``name``; a row that is named as a whole module is one itself."""
    holder, _, last = name.rpartition(".")
    return holder if holder and not NUMBERED.fullmatch(last) else name


def as_defined(names: Sequence[str]) -> list[str]:
    """Parameters, given in forward order, in that of definition: biases behind the rest of their module."""
    places: dict[str, int] = {}
    for name in names:
        places.setdefault(module_of(name), len(places))
    return sorted(names, key=lambda name: (places[module_of(name)], "bias" in name.rpartition(".")[2]))


def blocks(workload: Workload) -> tuple[str, ...]:
    """The modules that users wrap one by one, in forward order: the members of the outermost lists of modules.

    ``layers.0.attention.q.weight`` is in the block ``layers.0``, ``layer1.0.conv1.weight`` in ``layer1.0``. A list has
    two members or more. In a profile of whole layers, whose names have no dots, each layer is a block; a row named
    ``layers.0`` is one as well. Embeddings, final norms and heads are in none. Empty if nothing is numbered.
    """
    return blocks_of((layer.name, layer.gradient_bytes) for layer in workload.layers if layer.gradient_bytes)


def blocks_of(tensors: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """The blocks, as :func:`blocks` has them, of tensors given as (name, bytes) in forward order."""
    return _blocks(tuple(tensors))


@lru_cache(maxsize=64)
def _blocks(trained: tuple[tuple[str, int], ...]) -> tuple[str, ...]:
    """The blocks of tensors, given as (name, bytes) in forward order."""
    if not any("." in name for name, _ in trained):
        return tuple(name for name, _ in trained)
    numbered = _listed(trained, NUMBERED)
    if numbered:
        return tuple(numbered)
    least = SMALL * sum(size for _, size in trained)
    return tuple(name for name, size in _listed(trained, ENDING).items() if size >= least)


def _listed(tensors: Sequence[tuple[str, int]], pattern: re.Pattern[str]) -> dict[str, int]:
    """Bytes of each member of a list, by name: the outermost part of a name that matches ``pattern``."""
    sizes: dict[str, int] = {}
    for tensor, size in tensors:
        parts = tensor.split(".")
        modules = parts if NUMBERED.fullmatch(parts[-1]) else parts[:-1]
        place = next((place for place, part in enumerate(modules, 1) if pattern.fullmatch(part)), None)
        if place is not None:
            name = ".".join(parts[:place])
            sizes[name] = sizes.get(name, 0) + size
    members = Counter(name.rstrip("0123456789") for name in sizes)
    return {name: size for name, size in sizes.items() if members[name.rstrip("0123456789")] > 1}


def unsharded(workload: Workload, plan: Plan) -> list[str]:
    """A remark on frozen parameters of a counted workload that are not sharded, though the plan's strategy would."""
    gathered = plan.strategy in (*SHARDED, FLAT_SHARDED)
    whole = (workload.fixed_bytes or 0) - gathered * sum(layer.frozen_bytes or 0 for layer in workload.layers)
    if not whole or workload.fixed_share is None or not (gathered or plan.strategy == ZERO_3):
        return []
    where = " lie outside trained blocks: they" if gathered else ""
    return [f"{show_bytes(whole)} of frozen parameters{where} are counted as whole on each GPU, without all-gathers"]


class PlannedTensor(NamedTuple):
    """A layer as a plan knows it; ``bytes`` is 0 without a parameter."""

    name: str
    bytes: int
    dtype: str


def wrapped(workload: Workload, groups: Sequence[ParameterGroup], rules: Sharding) -> Plan:
    """The plan that ``fully_shard`` makes of ``groups`` of modules, and of a root with all other parameters.

    A parameter belongs to the group of the innermost module that holds it. Each dtype has a bucket of its own, since
    FSDP2 refuses a group of several. Groups that begin with the model's first parameters have inputs without
    gradients, and so are reduced last, like the root. ``rules`` are those of the whole plan; its groups do not count.

    Raises PlanError for a module without parameters.
    """
    tensors = tuple(PlannedTensor(layer.name, layer.gradient_bytes, layer.dtype) for layer in workload.layers)
    return _wrapped(workload.name, tensors, tuple(groups), rules)


@lru_cache(maxsize=64)
def _wrapped(
    name: str, tensors: tuple[PlannedTensor, ...], groups: tuple[ParameterGroup, ...], rules: Sharding
) -> Plan:
    """The plan of :func:`wrapped` for a workload called ``name``, with these tensors in forward order."""
    numbers = {module: number for number, group in enumerate(groups) for module in group.modules}
    own: dict[int, list[PlannedTensor]] = {number: [] for number in range(len(groups) + 1)}
    used: dict[int, list[str]] = {len(groups): [tensor.name for tensor in tensors]}
    held: dict[str, set[int]] = {}
    for tensor in tensors:
        holders = [module for module in around(tensor.name) if module in numbers]
        held[tensor.name] = {numbers[module] for module in holders}
        for number in held[tensor.name]:
            used.setdefault(number, []).append(tensor.name)
        if tensor.bytes:
            own[numbers[holders[-1]] if holders else len(groups)].append(tensor)
    trained = [tensor.name for tensor in tensors if tensor.bytes]
    _require_held(numbers, trained, name)
    input_layer = trained[0] if trained else ""
    made = []
    for number, group in enumerate([*groups, ParameterGroup(reshard=False)]):
        reduced_last = number == len(groups) or number in held.get(input_layer, ())
        for dtype in dict.fromkeys(tensor.dtype for tensor in own[number]):
            blocks = tuple(Block(tensor.name, 0, tensor.bytes) for tensor in own[number] if tensor.dtype == dtype)
            first, last = used[number][0], used[number][-1]
            made.append((Bucket(blocks), replace(group, first=first, last=last, reduced_last=reduced_last)))
    strategy = HYBRID_SHARDED if rules.replicas > 1 else FULLY_SHARDED
    sharding = replace(rules, groups=tuple(group for _, group in made))
    return Plan(name, tuple(bucket for bucket, _ in made), strategy=strategy, sharding=sharding)


@lru_cache(maxsize=2**14)
def around(name: str) -> tuple[str, ...]:
    """The names of the modules that hold ``name``, the outermost first, and ``name`` itself."""
    ends = [place for place, letter in enumerate(name) if letter == "."]
    return (*(name[:end] for end in ends), name)


def _require_held(modules: Iterable[str], names: Sequence[str], workload: str) -> None:
    """Raise PlanError for a module that holds no parameter of these ``names``."""
    holders = {module for name in names for module in around(name)}
    for module in modules:
        if module not in holders:
            known = dict.fromkeys(name.rpartition(".")[0] for name in names)
            raise PlanError(f"{workload!r} has no parameters in a module {module!r}: {suggestion(module, known)}")


def step_of(workload: Workload, strategy: str) -> tuple[int, Workload]:
    """(micro-batches, the workload of each) of a step under a strategy.

    A strategy of SHARDING carries out each micro-batch of an accumulated workload by itself, since it may gather and
    reduce in each. Others communicate once a step, as an accumulated workload says, and so have it as one. Raises
    UsageError for a compression that a strategy of SHARDING does not have.
    """
    if strategy in SHARDING:
        require_shardable_sending(workload.sent_as)
    return workload.accumulated if workload.accumulated and strategy in SHARDING else (1, workload)


def in_micro_batches(plan: Plan, count: int, form: Form = EACH) -> Plan:
    """The plan of a step with ``count`` micro-batches of this form, for a strategy of SHARDING.

    Raises PlanError for more micro-batches than such plans may have.
    """
    rules = plan.sharding or _unstated(plan)
    made = rules.accumulating(count, form)
    return plan if made == rules else replace(plan, sharding=made)


def in_one_micro_batch(plan: Plan) -> Plan:
    """The plan of a step with one micro-batch."""
    if plan.sharding is None or plan.sharding.micro_batches == 1:
        return plan
    made = plan.sharding.accumulating(1, EACH)
    return replace(plan, sharding=None if made == _unstated(plan) else made)


def _unstated(plan: Plan) -> Sharding:
    """The sharding of a plan that states none."""
    return Sharding((ParameterGroup(),) * len(plan.buckets))
