"""The best merging of messages where some tensors are sent sparsely, dense and sparse ones apart.

A sparse tensor stands in the dynamic programme with the bytes of which an all-reduce takes as long as the all-gather of
its entries, and is ready when it has been selected.
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
"""Ends the dtype of what is sent sparsely while messages are merged: it shares none with what is dense."""


def plan_chosen(workload: Workload, pricing: Pricing, choice: Retention, density: float | None, limits: Limits) -> Plan:
    """The plan for what was chosen. Raises PlanError where the limits allow none."""
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
    """``workload`` with the layers of ``sparse`` as the merging sees them."""
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
