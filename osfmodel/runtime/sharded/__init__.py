"""FSDP2: a model under PyTorch's ``fully_shard``, by the rules of a plan.

The model is the user's, or a replay of a workload as a tree of modules, so that ``fully_shard`` can group them as a
plan says.

Computation of a replay is simulated by sleeping; parameters have the shapes of the profile, and all that communicates
is real. The input needs no gradient, as tokens and images need none, so that the groups that begin with it are reduced
last.

A timetable says when each computation ends, as in other replays. It moves by the time that the host waits for
collectives, and not by the host's other work, such as copies: it is as if the host ran ahead of a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from osfmodel.entities.errors import PlanError
from osfmodel.entities.modules import SHARDED, inside
from osfmodel.entities.plan import Plan
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.sharding import ParameterGroup, Sharding
from osfmodel.entities.workload import Layer, Workload
from osfmodel.runtime.sharded.communication import ShardedCommunication
from osfmodel.runtime.training.pace import SleepingPace
from osfmodel.runtime.training.replayed_model import Noise, layer_node, layer_parameter

SHARDS, REPLICAS = "shard", "replicate"
"""Dimensions of a mesh."""
ONE_BY_ONE = "gloo_one_by_one"
"""The backend of collectives in the background."""


def require_shardable(label: str, plan: Plan, workload: Workload, workers: int) -> None:
    """Raise PlanError, naming the plan, unless ``osf run`` can run it with ``fully_shard``."""
    rules = plan.sharding
    if rules is None or plan.strategy not in SHARDED:
        raise PlanError(f"FSDP2 cannot run plan {label!r}: give fsdp2, hsdp, or a plan of osf tune --for fsdp2")
    plan.require_valid(workload)
    rules.ranks(workers)
    told = {
        f"accumulates {rules.micro_batches} micro-batches": rules.micro_batches > 1,
        "recomputes segments": bool(plan.recompute),
        "has parameters of several types, which FSDP2 does not group": len(set(workload.gradients.dtypes)) > 1,
        "runs collectives in the background, and has replicas": rules.asynchronous and rules.replicas > 1,
        "runs collectives in the background, and converts types": rules.asynchronous
        and bool(rules.gather_dtype or rules.reduce_dtype),
        "runs collectives in the background, and separates reduce-scatters": rules.asynchronous and rules.separate,
    }
    wrong = next((words for words, found in told.items() if found), None)
    if wrong is not None:
        raise PlanError(f"osf run cannot run plan {label!r} with FSDP2: it {wrong}")


def mesh_of(rules: Sharding, workers: int) -> Any:
    """The mesh of a plan. Collectives in the background run one at a time, in the order of launch."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    shape = (rules.ranks(workers),) if rules.replicas == 1 else (rules.replicas, rules.ranks(workers))
    names = (SHARDS,) if rules.replicas == 1 else (REPLICAS, SHARDS)
    if not rules.asynchronous:
        return init_device_mesh("cpu", shape, mesh_dim_names=names)
    if ONE_BY_ONE not in dist.Backend.backend_list:
        dist.Backend.register_backend(ONE_BY_ONE, _one_by_one, devices=["cpu"])
    return init_device_mesh("cpu", shape, mesh_dim_names=names, backend_override={SHARDS: ONE_BY_ONE})


def _one_by_one(store: Any, rank: int, workers: int, limit: Any) -> Any:
    """A gloo group with one worker thread; torch leaves the options of a group of backend ``gloo`` out."""
    import torch
    import torch.distributed as dist

    options = dist.ProcessGroupGloo._Options()
    options._devices = copy(dist.group.WORLD._get_backend(torch.device("cpu")).options._devices)
    options._threads, options._timeout = 1, limit
    return dist.ProcessGroupGloo(store, rank, workers, options)


def shard(model: Any, plan: Plan, workload: Workload, mesh: Any, communication: ShardedCommunication) -> None:
    """Shard ``model`` in place by the rules of ``plan``, whose groups name its modules."""
    from torch.distributed.fsdp import fully_shard

    rules = plan.sharding
    assert rules is not None  # require_shardable
    groups = _in_order(plan, rules, workload)
    modules = {group.modules: [model.get_submodule(name) for name in group.modules] for group in groups}
    given = {"mesh": mesh, "mp_policy": _policy(rules)}
    for group in sorted(groups, key=lambda group: -group.modules[0].count(".")):  # inner ones first
        those = modules[group.modules]
        fully_shard(those if len(those) > 1 else those[0], reshard_after_forward=group.reshard, **given)
    fully_shard(model, **given)
    _set_rules(model, rules, groups, modules)
    communication.use(model)


def _in_order(plan: Plan, rules: Sharding, workload: Workload) -> list[ParameterGroup]:
    """The groups but the root, in the order in which forward enters them."""
    places = {layer.name: place for place, layer in enumerate(workload.layers)}
    first: dict[ParameterGroup, int] = {}
    for group, bucket in zip(rules.groups, plan.buckets, strict=True):
        if group.modules:
            own = min(places[block.layer] for block in bucket.blocks)
            first[group] = min(places.get(group.first, own), own)
    return sorted(first, key=lambda group: first[group])


def _policy(rules: Sharding) -> Any:
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy

    gather, reduce = (getattr(torch, name) if name else None for name in (rules.gather_dtype, rules.reduce_dtype))
    return MixedPrecisionPolicy(param_dtype=gather, reduce_dtype=reduce)


def _set_rules(
    model: Any, rules: Sharding, groups: Sequence[ParameterGroup], modules: Mapping[tuple[str, ...], Sequence[Any]]
) -> None:
    """Set all that does not belong to ``fully_shard`` itself; defaults are left alone."""
    first = [modules[group.modules][0] for group in groups]
    for place, (group, module) in enumerate(zip(groups, first, strict=True)):
        if group.forward_prefetch:
            module.set_modules_to_forward_prefetch(first[place + 1 : place + 1 + group.forward_prefetch])
        if group.backward_prefetch != 1:
            module.set_modules_to_backward_prefetch(first[max(0, place - group.backward_prefetch) : place][::-1])
        if not group.needed_in_backward:
            module.set_unshard_in_backward(False)
    if rules.reduce_inputs > 1:
        model.set_reduce_scatter_max_input_buffers(rules.reduce_inputs)
    if rules.separate:
        model.set_separate_reduce_scatter_group(True)


def replay_of_groups(workload: Workload, plan: Plan, pace: SleepingPace) -> Any:
    """A module that replays ``workload``, called with a tensor, with a submodule of its name for each of the plan's.

    Raises PlanError if the layers of a module do not follow each other.
    """
    import torch

    node = layer_node(pace, Noise())

    class ReplayedLayer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, layer: Layer) -> None:
            super().__init__()
            self.layer, self.tensor = layer, layer_parameter(layer, "cpu")

        def forward(self, carried: Any) -> Any:
            return node.apply(carried, self.tensor, self.layer.forward_time, self.layer.backward_time, False)

    class ReplayedModule(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, parts: Sequence[Any]) -> None:
            super().__init__()
            self.parts = torch.nn.ModuleList(parts)

        def forward(self, carried: Any) -> Any:
            for part in self.parts:
                carried = part(carried)
            return carried

    rules = plan.sharding
    names = {name for group in (rules.groups if rules else ()) for name in group.modules}
    found: dict[str, Any] = {}

    def tree(layers: Sequence[Layer], around: str) -> Any:
        """The module ``around`` with these layers; those of modules inside it in a module of their own."""
        parts, place = [], 0
        while place < len(layers):
            module = _outermost(layers[place].name, names, around)
            held = [layer for layer in layers[place:] if module and inside(layer.name, module)]
            if module in found or (held and held != list(layers[place : place + len(held)])):
                raise PlanError(f"the layers of module {module!r} do not follow each other in {workload.name!r}")
            if module:
                found[module] = tree(held, module)
            parts.append(found[module] if module else ReplayedLayer(layers[place]))
            place += len(held) or 1
        return ReplayedModule(parts)

    class ReplayedTree(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.root = tree(_with_gradients(workload), "")

        def forward(self, carried: Any) -> Any:
            return self.root(carried)

        def get_submodule(self, target: str) -> Any:
            return found[target]

    return ReplayedTree()


def _outermost(layer: str, names: set[str], around: str) -> str:
    """The outermost of the modules that hold ``layer`` inside ``around``; "" if there is none."""
    holders = [
        name for name in names if inside(layer, name) and name != around and (not around or inside(name, around))
    ]
    return min(holders, key=len, default="")


def _with_gradients(workload: Workload) -> list[Layer]:
    """The layers; of those before the first parameter, which torch leaves out of backward, that takes the time."""
    layers = list(workload.layers)
    first = next((place for place, layer in enumerate(layers) if layer.gradient_bytes), 0)
    before = plain_sum(layer.backward_time for layer in layers[:first])
    layers[first] = replace(layers[first], backward_time=layers[first].backward_time + before)
    return layers


def sharded_replay_step(pace: SleepingPace, finish: Callable[[], None], update_time: float) -> Callable[[Any], Any]:
    """(model) -> loss: one iteration; ``finish`` waits for reduce-scatters before the update of the shards."""
    import torch

    start = torch.zeros(())

    def step(model: Any) -> Any:
        pace.start()
        loss = model(start)
        loss.backward()
        finish()
        for tensor in model.parameters():
            tensor.grad = None
        pace.start()
        pace.compute(update_time)
        return loss.detach()

    return step
