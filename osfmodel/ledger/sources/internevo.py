"""InternEvo: InternLM-7B under ZeRO-1 over all ranks or over the 8 of a node, on 8 to 1,024 A100 with RoCE.

Ranks own whole tensors: after the update each broadcasts what it owns to its group (``HybridZeroOptimizer``).
Gradients are all-reduced between all ranks in buckets of 512 MiB during the backward of the last micro-batch. Weights
and gradients are in bfloat16.

A series is one table: of micro-batches of 2 in 4, of the same with packed samples, and of packed samples that are
recomputed. The pace comes from 8 GPUs, where both groups are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from osfmodel.cost.pricing import Pricing
from osfmodel.entities.measurement import Measurement
from osfmodel.entities.modules import OWNERS
from osfmodel.entities.plan import Plan, grouped_plan
from osfmodel.entities.sharding import ParameterGroup, Sharding
from osfmodel.entities.units import MIB
from osfmodel.entities.workload import Workload
from osfmodel.ledger.sources.decoders import ATTENTION, Decoder, MicroBatch, workload
from osfmodel.ledger.sources.stated import StatedRun
from osfmodel.solve.caps import bounded_layout

INTERNLM_7B = Decoder(32, 4096, 11008, 103168, biased=ATTENTION)
BUCKET_BYTES = 512 * MIB
"""``reduce_bucket_size`` of InternEvo's configurations."""
NODE = 8
ALL_RANKS = "all"
REPEATED = (16, 32, 64, 128, 256, 1024)
"""Numbers of GPUs whose figures with packed samples, to the last digit, are those of the first table."""


def settings(runs: Sequence[Measurement]) -> list[StatedRun | str]:
    """The settings of these runs, or why they cannot be predicted."""
    return [_left_out(run) or _setting(run) for run in runs]


def _left_out(run: Measurement) -> str:
    """The reason why a run is not predicted; "" if it is."""
    if run.condition("tensor_parallel") != "1":
        return "tensor parallelism, whose collectives osfmodel does not price"
    step = tuple(map(run.condition, ("packed", "recomputed", "batch_size", "micro_batches")))
    if step == ("yes", "no", "2", "4") and run.workers in REPEATED:
        return "repeats a figure of the first table"
    if run.condition("zero_group") == ALL_RANKS and run.workers <= NODE:
        return "all ranks are those of a node: the same as ZeRO over 8"
    return ""


def _setting(run: Measurement) -> StatedRun:
    recomputed, packed = run.condition("recomputed"), run.condition("packed")
    step = MicroBatch(
        int(run.condition("sequence")), int(run.condition("batch_size")), run.condition("gpu"),
        recomputed=recomputed == "yes", dtype="bfloat16", flat=False,
    )  # fmt: skip
    whole = run.condition("zero_group") == ALL_RANKS
    return StatedRun(
        (packed, recomputed),
        (run.workers,),
        partial(workload, run.workload, INTERNLM_7B, step),
        partial(plan, 1 if whole else run.workers // NODE),
        int(run.condition("micro_batches")),
        alike=False,
    )


def plan(replicas: int, model: Workload, pricing: Pricing, micro_batches: int) -> Plan:
    """Buckets in ready order, sent during backward, and owners in each of ``replicas``."""
    groups = bounded_layout(model.gradients, BUCKET_BYTES)
    rules = Sharding((ParameterGroup(),) * len(groups), replicas, asynchronous=True, micro_batches=micro_batches)
    return replace(grouped_plan(model, groups), strategy=OWNERS, sharding=rules)


FITTED_ON = "the pace of computation of each table, on its run with 8 GPUs; network from data sheets"
