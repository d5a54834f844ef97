"""Modalities on Leonardo: Llama-like models of 2.7 to 13 billion parameters, with FULL_SHARD and HYBRID_SHARD of FSDP1.

Nodes of 4 A100 with 64 GB and 400 Gbit/s of InfiniBand; 8 to 256 GPUs, bfloat16 throughout, wrapped by block, nothing
recomputed. HYBRID_SHARD has a replica on each node. The dimensions of 2.7B are published; those of 6.7B and 13B are
Llama's, which the published utilisation fits.

A series has one model and micro-batch, whatever is sharded; the pace comes from 8 GPUs, of HYBRID_SHARD where it was
run. 13B takes more than twice the time for each token of smaller models on 8 GPUs, and not on more: 26 GB of weights,
gradients and optimizer state and some 35 GB of activations do not fit well into 64 GB. That run is left out, so that
the pace of 13B comes from 16 GPUs (chosen with these figures in view).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from osfmodel.entities.measurement import Measurement
from osfmodel.ledger.sources.decoders import Decoder, MicroBatch, workload
from osfmodel.ledger.sources.stated import StatedRun, fsdp

DIMENSIONS = {
    "modalities-2.7b": Decoder(32, 2560, 6784, 50304),
    "modalities-6.7b": Decoder(32, 4096, 11008, 50304),
    "modalities-13b": Decoder(40, 5120, 13824, 50304),
}
SHORT_OF_MEMORY = ("modalities-13b", 8)
HYBRID = "hsdp:bf16"


def settings(runs: Sequence[Measurement]) -> list[StatedRun | str]:
    """The settings of these runs, or why they cannot be predicted."""
    return list(map(_setting, runs))


def _setting(run: Measurement) -> StatedRun | str:
    if run.workload not in DIMENSIONS:
        return "a single run of dimensions that are not published"
    if (run.workload, run.workers) == SHORT_OF_MEMORY:
        return "short of memory: 2.3 times as long as on 16 GPUs"
    sequence, batch = int(run.condition("sequence")), int(run.condition("batch_size"))
    step = MicroBatch(sequence, batch, run.condition("gpu"))
    return StatedRun(
        (run.workload, batch),
        (run.workers, run.plan != HYBRID),
        partial(workload, run.workload, DIMENSIONS[run.workload], step),
        fsdp(run.plan),
        int(run.condition("micro_batches")),
        alike=True,
    )


FITTED_ON = "the pace of computation of each model and micro-batch, on its fewest GPUs; network from data sheets"
