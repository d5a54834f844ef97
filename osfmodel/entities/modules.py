"""Plans whose groups are made up of modules, which are known by the names of parameters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from osfmodel.entities.errors import PlanError
from osfmodel.entities.lookup import suggestion
from osfmodel.entities.plan import Block, Bucket, Plan
from osfmodel.entities.sharding import ParameterGroup, Sharding
from osfmodel.entities.workload import Layer, Workload

FULLY_SHARDED, HYBRID_SHARDED = "fully-sharded", "hybrid-sharded"
"""Strategies of plans with sharded parameters: between all workers, or inside each of several replicas."""
SHARDED = (FULLY_SHARDED, HYBRID_SHARDED)
NUMBERED, ENDING = re.compile(r"(.*_)?\d+"), re.compile(r".*\d+")
"""Names of members of a list of modules: a number, alone or behind ``_``; in a model without such, any at the end."""
SMALL = 0.001
"""Part of a model's bytes below which a module whose name merely ends in a number is no block."""


def inside(name: str, module: str) -> bool:
    """Whether ``name`` is that of the module, or of a part of it."""
    return name == module or name.startswith(f"{module}.")


def blocks(workload: Workload) -> tuple[str, ...]:
    """The modules that users wrap one by one, in forward order: the members of the outermost lists of modules.

    ``layers.0.attention.q.weight`` is in the block ``layers.0``, ``layer1.0.conv1.weight`` in ``layer1.0``. A list has
    two members or more. In a profile of whole layers, whose names have no dots, each layer is a block; a row named
    ``layers.0`` is one as well. Embeddings, final norms and heads are in none. Empty if nothing is numbered.
    """
    trained = [layer for layer in workload.layers if layer.gradient_bytes]
    if not any("." in layer.name for layer in trained):
        return tuple(layer.name for layer in trained)
    numbered = _listed(trained, NUMBERED)
    if numbered:
        return tuple(numbered)
    least = SMALL * workload.gradient_bytes
    return tuple(name for name, size in _listed(trained, ENDING).items() if size >= least)


def _listed(layers: Sequence[Layer], pattern: re.Pattern[str]) -> dict[str, int]:
    """Bytes of each member of a list, by name: the outermost part of a name that matches ``pattern``."""
    sizes: dict[str, int] = {}
    for layer in layers:
        parts = layer.name.split(".")
        modules = parts if NUMBERED.fullmatch(parts[-1]) else parts[:-1]
        place = next((place for place, part in enumerate(modules, 1) if pattern.fullmatch(part)), None)
        if place is not None:
            name = ".".join(parts[:place])
            sizes[name] = sizes.get(name, 0) + layer.gradient_bytes
    members = Counter(name.rstrip("0123456789") for name in sizes)
    return {name: size for name, size in sizes.items() if members[name.rstrip("0123456789")] > 1}


def wrapped(workload: Workload, groups: Sequence[ParameterGroup], rules: Sharding) -> Plan:
    """The plan that ``fully_shard`` makes of ``groups`` of modules, and of a root with all other parameters.

    A parameter belongs to the group of the innermost module that holds it. Each dtype has a bucket of its own, since
    FSDP2 refuses a group of several. Groups that begin with the model's first parameters have inputs without
    gradients, and so are reduced last, like the root. ``rules`` are those of the whole plan; its groups do not count.

    Raises PlanError for a module without parameters.
    """
    names = [layer.name for layer in workload.layers if layer.gradient_bytes]
    for module in (module for group in groups for module in group.modules):
        if not any(inside(name, module) for name in names):
            known = dict.fromkeys(name.rpartition(".")[0] for name in names)
            raise PlanError(f"{workload.name!r} has no parameters in a module {module!r}: {suggestion(module, known)}")
    trained = [layer for layer in workload.layers if layer.gradient_bytes]
    owners = [_owner(layer.name, groups) for layer in trained]
    made = [
        (bucket, group)
        for number, group in enumerate([*groups, ParameterGroup(reshard=False)])
        for bucket, group in _buckets(workload, trained, [number == owner for owner in owners], group)
    ]
    strategy = HYBRID_SHARDED if rules.replicas > 1 else FULLY_SHARDED
    sharding = replace(rules, groups=tuple(group for _, group in made))
    return Plan(workload.name, tuple(bucket for bucket, _ in made), strategy=strategy, sharding=sharding)


def _owner(name: str, groups: Sequence[ParameterGroup]) -> int:
    """Number of the group of a parameter; that of the root, one more than there are, if none holds it."""
    held = [
        (len(module), number) for number, group in enumerate(groups) for module in group.modules if inside(name, module)
    ]
    return max(held)[1] if held else len(groups)


def _buckets(
    workload: Workload, trained: Sequence[Layer], own: Sequence[bool], group: ParameterGroup
) -> Iterator[tuple[Bucket, ParameterGroup]]:
    """A bucket for each dtype of a group's own layers, those of ``trained`` that ``own`` says."""
    layers = [layer for layer, mine in zip(trained, own, strict=True) if mine]
    if group.modules:
        used = [layer for layer in workload.layers if any(inside(layer.name, module) for module in group.modules)]
    else:
        used = list(workload.layers)
    for dtype in dict.fromkeys(layer.dtype for layer in layers):
        blocks = tuple(Block(layer.name, 0, layer.gradient_bytes) for layer in layers if layer.dtype == dtype)
        last = not group.modules or trained[0] in used
        yield Bucket(blocks), replace(group, first=used[0].name, last=used[-1].name, reduced_last=last)
