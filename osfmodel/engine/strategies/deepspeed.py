"""Parts that DeepSpeed's stages share: modules as stage 3 sees them, and when backward sends a bucket of gradients.

A full bucket is sent when the next gradient of its dtype is ready, which no longer fits. The last bucket of each dtype,
and a bucket with a release time, are sent after backward. Buckets are sent in their order. Source: DeepSpeed 0.19.8,
``reduce_independent_p_g_buckets_and_remove_grads``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.errors import PlanError
from osfmodel.entities.modules import OWNERS, as_defined, module_of
from osfmodel.entities.plan import Bucket, Plan
from osfmodel.entities.sharding import Fetching, Sharding
from osfmodel.entities.workload import Layer, Workload


@dataclass(slots=True)
class UsedModule:
    """A module that is called, its own parameters, and the places of the first and the last layer in it."""

    layers: list[Layer]
    first: int
    last: int


def elements_of(layer: Layer) -> int:
    """Elements of a parameter."""
    return layer.elements if layer.shape else -(-layer.gradient_bytes // element_bytes(layer.dtype))


def used_modules(workload: Workload) -> list[UsedModule]:
    """The modules that forward calls, in the order in which it gets to them, outer ones first.

    A module whose parts are numbered is taken to be a list, which is not called. Parameters are in the order
    in which modules define them.
    """
    found: dict[str, UsedModule] = {}
    for place, layer in enumerate(workload.layers):
        own = module_of(layer.name)
        for name in _called(own):
            module = found.setdefault(name, UsedModule([], place, place))
            module.last = place
            if name == own and layer.gradient_bytes:
                module.layers.append(layer)
    for module in found.values():
        held = {layer.name: layer for layer in module.layers}
        module.layers = [held[name] for name in as_defined(list(held))]
    return sorted(found.values(), key=lambda module: (module.first, -module.last))


def _called(name: str) -> list[str]:
    """The modules around ``name`` that are called, from the model itself, "", to ``name``."""
    parts = name.split(".")
    around = (".".join(parts[:count]) for count, part in enumerate(parts) if not part.isdigit())
    return [*around, name]


def persistent(workload: Workload, rules: Fetching) -> list[Layer]:
    """The parameters that stay whole on every rank."""
    found, total = [], 0
    for layer in (one for module in used_modules(workload) for one in module.layers):
        size = elements_of(layer)
        if size + total <= rules.most_persistent and size <= rules.persistent:
            found.append(layer)
            total += size
    return found


def handovers(workload: Workload, plan: Plan) -> dict[str, list[int]]:
    """Numbers of the buckets that are sent after the backward of each layer, by its name."""
    names = [layer.name for layer in reversed(workload.layers)]
    dtypes = {layer.name: layer.dtype for layer in workload.layers}
    places = {name: place for place, name in enumerate(names)}
    found: dict[str, list[int]] = {}
    latest = 0
    for number, bucket in enumerate(plan.buckets):
        latest = max(latest, _place(bucket, plan.buckets[number + 1 :], places, dtypes))
        found.setdefault(names[latest], []).append(number)
    return found


def _place(bucket: Bucket, behind: Sequence[Bucket], places: dict[str, int], dtypes: dict[str, str]) -> int:
    """The place in backward of the gradient with which a bucket is sent."""
    dtype = dtypes[bucket.blocks[0].layer]
    following = next((one for one in behind if dtypes[one.blocks[0].layer] == dtype), None)
    if following is None or bucket.release_time:
        return len(places) - 1
    return max(
        *(places[block.layer] for block in bucket.blocks), min(places[block.layer] for block in following.blocks)
    )


def rules_of(plan: Plan) -> Sharding:
    """The rules of the plan. Raises PlanError if it asks for what DeepSpeed does not do."""
    others = [words for name, words in plan.wants.items() if name not in ("strategy", "sharding", "recompute")]
    if others:
        raise PlanError(f"the strategy {plan.strategy!r} excludes {', '.join(others)}")
    rules = plan.sharding or Sharding(())
    if rules.replicas > 1 and plan.strategy != OWNERS:
        raise PlanError(f"the strategy {plan.strategy!r} shards between all workers: the plan has several replicas")
    return rules
