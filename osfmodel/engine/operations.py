"""What an iteration consists of: tasks of the compute stream and operations of the network, and what waits for what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from osfmodel.cost.pricing import Pricing
from osfmodel.engine.sparse import Sparsity
from osfmodel.entities.plan import Bucket, Plan
from osfmodel.entities.workload import Workload


@dataclass(frozen=True, slots=True)
class Task:
    """Work of the compute stream: its span, how long it takes undisturbed, and the operations that it waits for.

    hook: whether a gradient is there when it ends, so that gradients that have arrived meanwhile may be released
    """

    kind: str
    layers: tuple[str, ...]
    work: float
    waits: tuple[int, ...] = ()
    hook: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """One collective.

    latency, transfer: seconds of start-up, and of sending, were it alone
    ready:        the task after which its gradients are there
    after:        the operation that it continues (the reduce-scatter of this all-gather); -1 for none
    size:         bytes, for the credit of a scheduler
    release_time: not before this time
    """

    kind: str
    layers: tuple[str, ...]
    latency: float
    transfer: float
    ready: int
    after: int
    size: int
    release_time: float


def schedule(workload: Workload, plan: Plan, pricing: Pricing) -> tuple[list[Task], list[Operation]]:
    """The tasks in order, and the operations in the order in which the plan sends them."""
    forward = [] if plan.forward_overlap else _forward(workload, pricing)
    backward = _backward(workload, plan, pricing)
    ready = {task.layers[0]: len(forward) + number for number, task in enumerate(backward)}
    sparsity = Sparsity(workload, pricing.effects, pricing.workers)
    operations = [_operation(plan, bucket, ready, pricing, workload, sparsity) for bucket in plan.buckets]
    if plan.split:
        operations += _gathers(workload, plan, operations, pricing)
    tasks = forward + backward
    if plan.forward_overlap:
        tasks += _next_forward(workload, operations, plan, pricing)
    return tasks, operations


def landings(workload: Workload, plan: Plan, pricing: Pricing) -> list[tuple[str, float]]:
    """What the compute stream does with each bucket that has arrived, and for how long; nothing at all, if so."""
    sparsity, copy_out = Sparsity(workload, pricing.effects, pricing.workers), pricing.effects.copy_out
    if not copy_out and not plan.sparse:
        return []
    return [
        ("copy", copy_out * bucket.size) if bucket.density is None else ("spread", sparsity.spread(bucket))
        for bucket in plan.buckets
    ]


def mirroring(plan: Plan, bucket: Bucket, pricing: Pricing) -> float:
    """Seconds by which mirror weights lengthen the update of what a bucket carries."""
    return pricing.effects.mirror * bucket.size if plan.mirror and bucket.density is not None else 0


def releases(workload: Workload, plan: Plan, pricing: Pricing, operations: Sequence[Operation]) -> list[Task]:
    """What a plan that releases gradients does with each bucket, in its order, once that has arrived.

    Gradients are copied out or made of entries, and their share of the update follows, by bytes.
    """
    arrives = {operation.after: number for number, operation in enumerate(operations) if operation.after >= 0}
    done = landings(workload, plan, pricing) or [("copy", 0)] * len(plan.buckets)
    tasks = [] if plan.buckets else [Task("update", (), workload.update_time)]
    for number, (bucket, (kind, work)) in enumerate(zip(plan.buckets, done, strict=True)):
        waits, layers = (arrives.get(number, number),), operations[number].layers
        share = workload.update_time / workload.gradient_bytes * bucket.size + mirroring(plan, bucket, pricing)
        tasks += [Task(kind, layers, work, waits), Task("update", layers, share, waits)]
    return tasks


def _forward(workload: Workload, pricing: Pricing) -> list[Task]:
    stretch = pricing.effects.stretch(pricing.workers)
    return [Task("forward", (layer.name,), layer.forward_time * stretch) for layer in workload.layers]


def _backward(workload: Workload, plan: Plan, pricing: Pricing) -> list[Task]:
    """Each layer, with its copy into a bucket, and the hook of the buckets that it completes."""
    effects, order = pricing.effects, {name: place for place, name in enumerate(workload.gradients.names)}
    stretch = effects.stretch(pricing.workers)
    hooks: dict[str, float] = {}
    for bucket in plan.buckets if effects.hook_time else ():
        last = max((block.layer for block in bucket.blocks), key=order.__getitem__)
        hooks[last] = hooks.get(last, 0) + effects.hook_time
    sparsity = Sparsity(workload, effects, pricing.workers)
    chosen = {
        block.layer: sparsity.select(block, bucket.density)
        for bucket in plan.buckets if bucket.density is not None for block in bucket.blocks
    }  # fmt: skip
    return [
        Task(
            "backward",
            (layer.name,),
            layer.backward_time * stretch
            + chosen.get(layer.name, effects.copy_in * layer.gradient_bytes)
            + hooks.get(layer.name, 0),
            hook=layer.gradient_bytes > 0,
        )
        for layer in reversed(workload.layers)
    ]


def _operation(
    plan: Plan, bucket: Bucket, ready: Mapping[str, int], pricing: Pricing, workload: Workload, sparsity: Sparsity
) -> Operation:
    dense = bucket.density is None
    kind = plan.objective.collectives[0] if dense else "all_gather"
    layers = tuple(dict.fromkeys(block.layer for block in bucket.blocks))
    latency, transfer = pricing.split(kind, bucket.size if dense else sparsity.gathered_bytes(bucket))
    if len(bucket.blocks) > 1 and dense:
        transfer += pricing.effects.fusion_copy * bucket.size
    released = bucket.release_time - workload.forward_time if plan.forward_overlap else bucket.release_time
    return Operation(
        kind=kind,
        layers=layers,
        latency=latency,
        transfer=transfer,
        ready=max(ready[layer] for layer in layers),
        after=-1,
        size=bucket.size,
        release_time=max(released, 0),
    )


def _gathers(workload: Workload, plan: Plan, scatters: Sequence[Operation], pricing: Pricing) -> list[Operation]:
    """The all-gather of every bucket, in the order in which the next forward needs them."""
    place = {layer.name: number for number, layer in enumerate(workload.layers)}
    needed = sorted(range(len(scatters)), key=lambda number: min(place[layer] for layer in scatters[number].layers))
    gathers = []
    for number in needed:
        latency, transfer = pricing.split("all_gather", scatters[number].size)
        gathers.append(
            replace(
                scatters[number], kind="all_gather", latency=latency, transfer=transfer, after=number,
                release_time=0,
            )
        )  # fmt: skip
    return gathers


def _next_forward(workload: Workload, operations: Sequence[Operation], plan: Plan, pricing: Pricing) -> list[Task]:
    """Each layer of the next forward, after its gradient has arrived: its share of copy and update, then itself."""
    arrivals: dict[str, list[int]] = {}
    for number, operation in enumerate(operations):
        if operation.kind != "reduce_scatter":
            for name in operation.layers:
                arrivals.setdefault(name, []).append(number)
    total = workload.gradient_bytes
    per_byte = (workload.update_time / total if total else 0) + pricing.effects.copy_out
    stretch = pricing.effects.stretch(pricing.workers)
    tasks = [] if total else [Task("update", (), workload.update_time)]
    for layer in workload.layers:
        waits = tuple(arrivals.get(layer.name, ()))
        if per_byte and layer.gradient_bytes:
            tasks.append(Task("update", (layer.name,), per_byte * layer.gradient_bytes, waits))
        tasks.append(Task("forward", (layer.name,), layer.forward_time * stretch, waits))
    return tasks
