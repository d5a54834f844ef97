"""Admission to the executor: models and plans that it can run, equal on all ranks and not averaged already."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from itertools import zip_longest
from typing import Any
from weakref import WeakValueDictionary

from osfmodel.entities.errors import OsfError, PlanError, UsageError
from osfmodel.entities.files.documents import document_of, encode
from osfmodel.entities.modules import FULLY_SHARDED, HYBRID_SHARDED, SHARDING
from osfmodel.entities.plan import Plan
from osfmodel.entities.workload import Layer, Workload
from osfmodel.runtime.executor import deferral
from osfmodel.runtime.executor.error_feedback import require_mirrored
from osfmodel.runtime.executor.saving import require_recomputable
from osfmodel.runtime.executor.separate import require_separate
from osfmodel.runtime.executor.state import require_initial, rows_of

TRAINED: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""Parameters, by id, that an executor trains: a second one would average them twice."""


def require_executable(model: Any, optimizer: Any, plan: Plan, layers: Sequence[str] | None = None) -> None:
    """Raise what :func:`execute` would, except for errors that only other ranks find."""
    require_possible(model, optimizer, plan, parameters_of(model, layers), False)


def parameters_of(model: Any, layers: Sequence[str] | None) -> dict[str, Any]:
    """The trainable parameters by the plan's names for them; a shared one has its first name."""
    require_plain_model(model, "give the bare model, which needs no wrapper here")
    require_initial(model)
    found = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    if layers is None:
        return found
    if len(set(layers)) != len(found):
        raise UsageError(f"{len(set(layers))} layers are named for {len(found)} trainable parameters")
    return dict(zip(layers, found.values(), strict=True))


def require_possible(model: Any, optimizer: Any, plan: Plan, parameters: dict[str, Any], unused: bool) -> None:
    """Raise PlanError or UsageError for models and plans that cannot be trained so."""
    sizes = [tensor.numel() * tensor.element_size() for tensor in parameters.values()]
    kinds = [str(tensor.dtype).removeprefix("torch.") for tensor in parameters.values()]
    # with some time, since a workload needs one; only names, sizes and types matter
    layers = tuple(Layer(name, 0, 1, *rest) for name, *rest in zip(parameters, sizes, kinds, strict=True))
    workload = Workload(plan.workload, layers)
    if plan.strategy in SHARDING:
        with_fsdp = plan.strategy in (FULLY_SHARDED, HYBRID_SHARDED)
        remedy = "run it with osf run --executor fsdp2" if with_fsdp else "plan without sharding"
        raise PlanError(f"the plan shards ({plan.strategy}), which the executor cannot: {remedy}")
    plan.require_valid(workload)
    plan.require_whole_elements(workload)
    if plan.credit is not None:
        raise PlanError("the plan sends by priority (credit), which the executor cannot: plan without a credit")
    if any(bucket.release_time for bucket in plan.buckets):
        raise PlanError("the plan has release times, a framework's clock, which the executor does not have")
    if len({tensor.device for tensor in parameters.values()}) > 1:
        raise UsageError("the parameters are on several devices: put them on one device for each rank")
    if plan.forward_overlap:
        deferral.require_possible(model, optimizer, parameters.values())
    if plan.sparse and unused:
        raise UsageError(
            "sparse buckets need the gradient of every parameter in each step: leave unused=True, or the density, out"
        )
    if plan.release:
        _require_released(optimizer, plan, parameters, unused)
    if plan.mirror:
        sparse = [block.layer for bucket in plan.buckets if bucket.density is not None for block in bucket.blocks]
        require_mirrored(optimizer, {name: parameters[name] for name in sparse})
    require_recomputable(model, plan.recompute)


def _require_released(optimizer: Any, plan: Plan, parameters: dict[str, Any], unused: bool) -> None:
    if plan.split:
        raise PlanError(
            "the plan releases gradients in backward, but its split all-reduces end after it: drop split or release"
        )
    if unused:
        raise UsageError("a plan that releases gradients updates every parameter in each step: leave unused=True out")
    require_separate(optimizer, parameters.values(), "release")


def require_untrained(model: Any, parameters: dict[str, Any]) -> None:
    """Raise UsageError if something averages these gradients already."""
    import gc

    from torch.nn.parallel import DistributedDataParallel

    if any(TRAINED.get(id(tensor)) is tensor for tensor in parameters.values()):
        raise UsageError("an executor trains these parameters already: close() it first")
    gc.collect()  # what is gone but for a cycle is not a wrapper any more
    for thing in gc.get_objects():
        if issubclass(type(thing), DistributedDataParallel) and thing.module is model:
            raise UsageError("DistributedDataParallel wraps this model already: execute() takes its place")


def admitted(model: Any, optimizer: Any, plan: Plan, layers: Sequence[str] | None, unused: bool) -> dict[str, Any]:
    """The parameters to train, by the plan's names. Raise on every rank the error of any rank."""
    parameters: dict[str, Any] = {}
    rows: list[str] = []
    fault: OsfError | None = None
    try:
        if not isinstance(plan, Plan):
            raise UsageError(f"execute() needs a Plan, not {plan!r:.60}: load one with osfmodel.load_plan(file)")
        parameters = parameters_of(model, layers)
        require_possible(model, optimizer, plan, parameters, unused)
        require_untrained(model, parameters)
        rows = [*parameters, *rows_of(model)]
    except OsfError as error:
        fault = error
    _agree(plan, rows, unused, fault)
    return parameters


def _agree(plan: Plan, rows: Sequence[str], unused: bool, fault: OsfError | None) -> None:
    """Raise on every rank the error of any rank, or if two differ in plan, ``unused`` or ``rows``, their model."""
    import torch.distributed as dist

    planned = encode(document_of(plan)) if isinstance(plan, Plan) else ""
    mine = [sha256(text.encode()).hexdigest() for text in (planned, repr(rows), repr(unused))]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, (fault and (type(fault), str(fault)), mine))
    for rank, (wrong, _) in enumerate(found):
        if wrong:
            raise wrong[0](f"rank {rank}: {wrong[1]}")
    for rank, (_, digests) in enumerate(found):
        for what, one, other in zip(("plan", "model", "setting of unused"), found[0][1], digests, strict=True):
            if one != other:
                which = _difference(rows, rank) if what == "model" else ""
                raise PlanError(f"rank {rank} has a {what} different from rank 0's{which}: give all ranks the same")


def _difference(rows: Sequence[str], rank: int) -> str:
    """The first row in which a rank differs from rank 0. Collective: every rank must call it."""
    import torch.distributed as dist

    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, rows)
    one, other = next(
        pair for pair in zip_longest(found[0], found[rank], fillvalue="nothing more") if pair[0] != pair[1]
    )
    return f" ({other}; on rank 0 {one})"


SHARDED = {
    "FullyShardedDataParallel": "FSDP or HSDP",
    "FSDPModule": "FSDP2 or HSDP (fully_shard)",
    "DeepSpeedEngine": "DeepSpeed",
}
"""Classes whose models communicate by themselves, and their names for users."""


def require_plain_model(model: Any, instead: str) -> None:
    """Raise UsageError, saying what to do instead, for a model that something else already wraps."""
    for module in model.modules():
        for kind in (cls.__name__ for cls in type(module).__mro__):
            if kind in SHARDED:
                raise UsageError(
                    f"the model is wrapped by {SHARDED[kind]}, which communicates per wrapped module and has no buckets"
                    f" to plan: {instead}, or choose there which modules are wrapped"
                )
            if kind in ("DistributedDataParallel", "DataParallel"):
                raise UsageError(f"the model is already wrapped by {kind}: {instead}")
