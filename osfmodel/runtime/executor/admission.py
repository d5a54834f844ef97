"""Admission to the executor: models and plans that it can run, equal on all ranks and not averaged already; states.

The initial parameters and buffers are rank 0's on every rank, of any type and layout in memory; a checkpoint of the
unsent parts of sparse buckets is of one rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from osfmodel.runtime.executor.error_feedback import Mirror, require_mirrored
from osfmodel.runtime.executor.messages import Gradient
from osfmodel.runtime.executor.saving import require_recomputable
from osfmodel.runtime.executor.separate import require_separate

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
        raise UsageError("sparse buckets send of every parameter in each step: leave unused=True, or the density, out")
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


def require_initial(model: Any) -> None:
    """Raise UsageError, by name, for a parameter or buffer that cannot be sent or trained."""
    import torch

    for what, name, tensor in _named(model):
        if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
            raise UsageError(f"the {what} {name!r} has no shape yet: run one forward on every rank before execute()")
        if tensor.is_meta:
            raise UsageError(f"the {what} {name!r} has no values (device meta): initialise it before execute()")
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
            raise UsageError(f"the {what} {name!r} is sparse, quantised or nested: keep it as dense tensors")
        if tensor.requires_grad and _shares(tensor):
            raise UsageError(
                f"elements of the {what} {name!r} share memory (it is expanded or unfolded), so that none can be "
                "updated by itself: make a copy the parameter, nn.Parameter(tensor.clone()), or what it is a view of"
            )


def rows_of(model: Any) -> list[str]:
    """Shapes and types that ranks must share to begin alike, a line for each parameter and buffer."""
    rows = []
    for what, name, tensor in _named(model):
        trained = f" with strides {tuple(tensor.stride())}, trained" if tensor.requires_grad else ""
        rows.append(f"the {what} {name!r}, {str(tensor.dtype)[6:]} of {tuple(tensor.shape)}{trained}")
    return rows


def send_initial(model: Any) -> None:
    """Send rank 0's parameters and buffers to all ranks, each as contiguous bytes."""
    import torch
    import torch.distributed as dist

    with torch.no_grad():
        for _, _, tensor in _named(model):
            sent = tensor.detach().resolve_conj().resolve_neg().contiguous()
            if tensor.numel():
                dist.broadcast(sent.view(-1).view(torch.uint8), 0)
            if sent.data_ptr() != tensor.data_ptr():
                _once(tensor.detach()).copy_(_once(sent, tensor))


def _named(model: Any) -> list[tuple[str, str, Any]]:
    """Kind, name and tensor of each parameter and buffer, once."""
    found = [("parameter", *pair) for pair in model.named_parameters()]
    return found + [("buffer", *pair) for pair in model.named_buffers()]


def _shares(tensor: Any) -> bool:
    """Whether elements share memory by a stride of 0, or because they are more than the memory cells that they span."""
    places = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return bool(tensor.numel() > min(places, _once(tensor).numel()) and tensor.numel())


def _once(tensor: Any, like: Any = None) -> Any:
    """The tensor with one element in place of those that share memory by a stride of 0, of its own or of ``like``."""
    for dimension, stride in enumerate((tensor if like is None else like).stride()):
        if stride == 0 and tensor.shape[dimension] > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def state_of(gradients: Sequence[Gradient], rank: int, world: int) -> dict[str, Any]:
    """Owner and {parameter: tensor}, with the tensors in use, not copies; {} without sparse buckets."""
    kept = {gradient.name: gradient.unsent for gradient in gradients if gradient.unsent is not None}
    if not kept:
        return {}
    for unsent in kept.values():
        unsent.join()
    rates = {name: unsent.rate for name, unsent in kept.items() if isinstance(unsent, Mirror)}
    tensors = {name: unsent.kept for name, unsent in kept.items()}
    return {"form": "mirror" if rates else "residual", "rank": rank, "world": world, "unsent": tensors, "rates": rates}


def load_state(state: Mapping[str, Any], gradients: Sequence[Gradient], rank: int, world: int) -> None:
    """Restore the result of :func:`state_of`. Raises UsageError, and changes nothing, if it is of another run."""
    own = state_of(gradients, rank, world)
    for key in ("form", "rank", "world"):
        if state.get(key) != own.get(key):
            raise UsageError(
                f"the executor's state has {key} {state.get(key)!r} where this one has {own.get(key)!r}: each rank "
                "loads what it saved itself, under the same plan"
            )
    found, wanted = state.get("unsent", {}), own.get("unsent", {})
    if set(found) != set(wanted):
        name = min(set(found) ^ set(wanted))
        one, other = ("its state", "the executor") if name in found else ("the executor", "its state")
        raise UsageError(f"{name!r} is sparse in {one} and not in {other}: load what was saved under the same plan")
    for name, tensor in wanted.items():
        if found[name].shape != tensor.shape or found[name].dtype != tensor.dtype:
            raise UsageError(
                f"{name!r} is {_shown(found[name])} in the executor's state and {_shown(tensor)} in this one"
            )
    for gradient in gradients:
        if isinstance(gradient.unsent, Mirror):
            gradient.unsent.load(found[gradient.name], state["rates"][gradient.name])
        elif gradient.unsent is not None:
            gradient.unsent.kept.copy_(found[gradient.name])


def _shown(tensor: Any) -> str:
    return f"{str(tensor.dtype)[6:]} of {tuple(tensor.shape)}"
