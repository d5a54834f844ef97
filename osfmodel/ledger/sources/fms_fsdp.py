"""IBM's fms-fsdp: Llama 2 of 7 to 70 billion parameters under FSDP1 with compiled blocks, on 128 A100 or 96 H100.

7B has a replica on each node (HSDP) and recomputes nothing, the others are sharded between all GPUs and recompute some
blocks: as much as the published utilisation of hardware is above that of the model, which does not depend on the time.
Sequences of 4,096, micro-batches of 2, bfloat16. The network of a node is stated, its fabric is not.

No model was run on two numbers of GPUs. So a series is a kind of GPU: its pace comes from 7B, and the larger models
are predicted by their operations. Errors hold whatever larger matrices gain, so that they say little about a
prediction from a profile: these runs have no part in error bands.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from osfmodel.entities.measurement import Measurement
from osfmodel.ledger.sources.decoders import Decoder, MicroBatch, workload
from osfmodel.ledger.sources.stated import StatedRun, fsdp

DIMENSIONS = {
    "llama2-7b": Decoder(32, 4096, 11008, 32000),
    "llama2-13b": Decoder(40, 5120, 13824, 32000),
    "llama2-34b": Decoder(48, 8192, 22016, 32000, keys=1024),
    "llama2-70b": Decoder(80, 8192, 28672, 32000, keys=1024),
}
"""As published with Llama 2 and Code Llama; 34B and 70B have 8 groups of queries."""


def settings(runs: Sequence[Measurement]) -> list[StatedRun | str]:
    """The settings of these runs."""
    return list(map(_setting, runs))


def _setting(run: Measurement) -> StatedRun:
    decoder = DIMENSIONS[run.workload]
    step = MicroBatch(
        int(run.condition("sequence")), int(run.condition("batch_size")), run.condition("gpu"),
        recomputed=float(run.condition("recomputed")),
    )  # fmt: skip
    return StatedRun(
        run.condition("gpu"),
        (decoder.layers,),
        partial(workload, run.workload, decoder, step),
        fsdp(run.plan),
        int(run.condition("micro_batches")),
        alike=True,
    )


FITTED_ON = "the pace of computation of each kind of GPU, on 7B; network from data sheets"
