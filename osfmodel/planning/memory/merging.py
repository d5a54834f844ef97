"""The best merging of buckets if some tensors are sent sparsely; dense and sparse tensors are merged separately.

In the dynamic programme a sparse tensor has the bytes of an all-reduce that takes as long as the all-gather of
its entries, and is ready once its entries are selected.
"""

from __future__ import annotations

from dataclasses import replace

from osfmodel.cost.pricing import Pricing
from osfmodel.engine.sparse import Sparsity
from osfmodel.entities.plan import Block, Bucket, Plan
from osfmodel.entities.workload import Workload
from osfmodel.solve import SOLVERS
from osfmodel.solve.retention import Retention
from osfmodel.solve.solution import Limits, Question
from osfmodel.solve.under_effects import plan_under_effects

SPARSE = "_sparse"
"""Suffix of a sparse tensor's dtype during merging, so that it is not merged with dense tensors."""


def plan_chosen(workload: Workload, pricing: Pricing, choice: Retention, density: float | None, limits: Limits) -> Plan:
    """The plan for a choice of what to recompute and send sparsely. Raises PlanError if the limits allow none."""
    seen = _as_merged(workload.recomputing(choice.recompute or ()), pricing, choice.sparse, density)
    question = Question(seen, pricing, limits=limits)
    plan = plan_under_effects(question, SOLVERS["optimal"].solve, limited=bool(choice.sparse)).require_plan()
    sizes = dict(zip(workload.gradients.names, workload.gradients.sizes, strict=True))

    def real(bucket: Bucket) -> Bucket:
        sparse = bucket.blocks[0].layer in choice.sparse
        blocks = tuple(Block(block.layer, 0, sizes[block.layer]) for block in bucket.blocks)
        return Bucket(blocks, bucket.release_time, density if sparse else None)

    return replace(plan, buckets=tuple(map(real, plan.buckets)))


def _as_merged(workload: Workload, pricing: Pricing, sparse: frozenset[str], density: float | None) -> Workload:
    """``workload`` with the layers of ``sparse`` in the size and with the times that the merging uses."""
    if not sparse or density is None:
        return workload
    sparsity = Sparsity(workload, pricing.effects, pricing.workers)
    alone = {
        layer.name: Bucket((Block(layer.name, 0, layer.gradient_bytes),), density=density)
        for layer in workload.layers
        if layer.name in sparse
    }
    gathered = {name: sparsity.gathered_bytes(bucket) for name, bucket in alone.items()}
    total = sum(gathered.values())
    dense, gather = pricing.cost(), pricing.cost("all_gather")
    rate = (gather(total) / total) / (dense(workload.gradient_bytes) / workload.gradient_bytes or 1.0)
    layers = tuple(
        replace(
            layer,
            gradient_bytes=max(1, round(gathered[layer.name] * rate)),
            dtype=layer.dtype + SPARSE,
            backward_time=layer.backward_time + sparsity.sparsify(alone[layer.name].blocks[0], density),
        )
        if layer.name in sparse
        else layer
        for layer in workload.layers
    )
    return replace(workload, layers=layers)
