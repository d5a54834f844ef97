"""MosaicML's throughput tables of GPT-like models of 125 M to 70 B parameters under FSDP1, on 8 to 256 A100.

Known: dimensions, micro-batches and their number, checkpointing, mixed precision (``PURE`` gathers and reduces in
bfloat16, ``DEFAULT`` of January 2023 gathers in float32 and reduces in bfloat16), RoCE of 1600 Gbit/s a node. Groups
are blocks; the embedding, which is the head as well, is in the root. Every micro-batch reduces.

A series has one model, length of sequence, GPU and set of tables; the pace comes from its smallest number of GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from osfmodel.entities.measurement import Measurement
from osfmodel.ledger.sources.decoders import ALL, Decoder, MicroBatch, workload
from osfmodel.ledger.sources.stated import StatedRun, fsdp

VOCABULARY, EXPANSION = 50368, 4
DIMENSIONS = {
    "mpt-125m": (12, 768),
    "mpt-350m": (24, 1024),
    "mpt-760m": (24, 1536),
    "mpt-1b": (24, 2048),
    "mpt-3b": (32, 2560),
    "mpt-7b": (32, 4096),
    "mpt-13b": (40, 5120),
    "mpt-30b": (48, 7168),
    "mpt-70b": (80, 8192),
}
"""Layers and width."""


def settings(runs: Sequence[Measurement]) -> list[StatedRun | str]:
    """The settings of these runs."""
    return list(map(_setting, runs))


def _setting(run: Measurement) -> StatedRun:
    said = dict(run.conditions)
    sequence, batch, micro_batches = int(said["sequence"]), int(said["batch_size"]), int(said["micro_batches"])
    layers, width = DIMENSIONS[run.workload]
    decoder = Decoder(
        layers, width, EXPANSION * width, VOCABULARY, gated=False, tied=True, positions=sequence, biased=ALL
    )
    step = MicroBatch(sequence, batch, said["gpu"], recomputed=said["recomputed"] == "yes")
    return StatedRun(
        (said["system"], run.workload, sequence, said["gpu"]),
        (run.workers,),
        partial(workload, run.workload, decoder, step),
        fsdp(run.plan),
        micro_batches,
        alike=True,
    )


FITTED_ON = "the pace of computation of each series, on its run with the fewest GPUs; network from data sheets"
