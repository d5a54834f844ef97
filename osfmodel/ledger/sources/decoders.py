"""Decoder-only transformers from their published dimensions: parameters, and computation by floating-point operations.

A matrix product of a parameter takes 2 operations for each of its elements and tokens in forward, attention 4 for each
token, width and length of the sequence; backward takes twice as many, and once more the part of a block that is
recomputed. That is how the sources of sharded runs count as well. Times are operations at one pace, which a recipe
finds on one run. The update of Adam is bound by memory: it moves ADAM_BYTES for each parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import NamedTuple

from osfmodel.cost.pricing import Pricing
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.measurement import Measurement, Source
from osfmodel.entities.modules import OWNERS
from osfmodel.entities.plan import Plan, grouped_plan
from osfmodel.entities.sharding import ParameterGroup, Sharding
from osfmodel.entities.units import MIB
from osfmodel.entities.workload import Layer, Workload
from osfmodel.ledger.recipe import StatedRun, fsdp
from osfmodel.solve.caps import bounded_layout

ADAM_BYTES = 28
"""Bytes that an update moves for each parameter: float32 weight and both moments, read and written; gradient, read."""
MEMORY_RATES = {"A100-40GB": 1555e9, "A100-64GB": 1640e9, "A100-80GB": 2039e9, "H100-80GB": 3350e9}
"""Bytes per second of a GPU's memory, of data sheets (64GB: the GPU of Leonardo)."""


LEAST_WORKERS = 8
"""Workers beside which a GPU's pace was measured, in all sources; more in some series."""
TERA = 1e12
ATTENTION, ALL = "attention", "all"


class Decoder(NamedTuple):
    """Dimensions of a model.

    gated:     whether the feed-forward part has three matrices instead of two
    tied:      whether the head is the embedding
    keys:      width of keys and of values; 0 for that of the model
    positions: number of learned positions
    biased:    which parts have biases: "" for none, ATTENTION for its projections, or ALL, norms included
    """

    layers: int
    width: int
    feed_forward: int
    vocabulary: int
    gated: bool = True
    tied: bool = False
    keys: int = 0
    positions: int = 0
    biased: str = ""


class MicroBatch(NamedTuple):
    """A micro-batch on a GPU of MEMORY_RATES.

    sequence, batch: tokens of a sample, and samples
    recomputed: part of the forward of blocks that is repeated in backward
    dtype:      of parameters, in memory
    flat:       whether the parameters of a block are one (FSDP1's FlatParameter)
    """

    sequence: int
    batch: int
    gpu: str
    recomputed: float = 0
    dtype: str = "float32"
    flat: bool = True


def block(decoder: Decoder) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters of a block, in forward order."""
    width, inner = decoder.width, decoder.feed_forward
    parts = {
        "norm1": (width,),
        "attention.qkv": (width + 2 * (decoder.keys or width), width),
        "attention.out": (width, width),
        "norm2": (width,),
        "mlp.up": (inner, width),
        **({"mlp.gate": (inner, width)} if decoder.gated else {}),
        "mlp.down": (width, inner),
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in parts.items():
        shapes[f"{name}.weight"] = shape
        if decoder.biased == ALL or name.startswith(decoder.biased or ALL):
            shapes[f"{name}.bias"] = shape[:1]
    return shapes


def workload(name: str, decoder: Decoder, step: MicroBatch, pace: float) -> Workload:
    """The model on one GPU, at ``pace`` seconds for 10^12 floating-point operations."""
    layers = tuple(_layers(decoder, step, pace))
    update = ADAM_BYTES * sum(layer.elements for layer in layers) / MEMORY_RATES[step.gpu]
    conditions = f"counted from published dimensions; {step.batch} samples of {step.sequence} tokens"
    source = Source("the dimensions that the source publishes", conditions, "facts", step.gpu)
    return Workload(name, layers, step.batch, update, source, profiled_workers=LEAST_WORKERS)


def _layers(decoder: Decoder, step: MicroBatch, pace: float) -> Iterator[Layer]:
    tokens = step.sequence * step.batch
    embedding = (decoder.vocabulary + decoder.positions, decoder.width)
    yield _layer("embedding.weight", embedding, step.dtype, 0)
    attention = 4 * step.sequence * decoder.width * tokens
    for number in range(decoder.layers):
        shapes = block(decoder)
        if step.flat:
            elements = sum(map(prod, shapes.values()))
            operations = 2 * sum(_products(shape) for shape in shapes.values()) * tokens + attention
            yield _layer(f"layers.{number}", (elements,), step.dtype, operations * pace / TERA, step.recomputed)
            continue
        for key, shape in shapes.items():
            operations = 2 * _products(shape) * tokens + attention * (key == "attention.out.weight")
            yield _layer(f"layers.{number}.{key}", shape, step.dtype, operations * pace / TERA, step.recomputed)
    head = 2 * decoder.vocabulary * decoder.width * tokens * pace / TERA
    norm = decoder.width * (1 + (decoder.biased == ALL))
    yield _layer("norm.weight", (norm,), step.dtype, head if decoder.tied else 0)
    if not decoder.tied:
        yield _layer("head.weight", (decoder.vocabulary, decoder.width), step.dtype, head)


def _products(shape: tuple[int, ...]) -> int:
    """Elements of a parameter that is multiplied with each token; 0 for a norm or a bias."""
    return prod(shape) if len(shape) > 1 else 0


def _layer(name: str, shape: tuple[int, ...], dtype: str, forward: float, recomputed: float = 0) -> Layer:
    size = prod(shape) * element_bytes(dtype)
    return Layer(name, forward, (2 + recomputed) * forward, size, dtype, shape=shape)


VOCABULARY, EXPANSION = 50368, 4
MOSAICML = {
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


def mosaicml(runs: Sequence[Measurement]) -> list[StatedRun | str]:
    """MosaicML's throughput tables of GPT-like models of 125 M to 70 B parameters under FSDP1, on 8 to 256 A100.

    Known: dimensions, micro-batches and their number, checkpointing, mixed precision (``PURE`` gathers and reduces in
    bfloat16, ``DEFAULT`` of January 2023 gathers in float32 and reduces in bfloat16), RoCE of 1600 Gbit/s a node.
    Groups are blocks; the embedding, which is the head as well, is in the root. Every micro-batch reduces.

    A series has one model, length of sequence, GPU and set of tables; the pace comes from its smallest number of GPUs.
    """
    return list(map(_mosaicml, runs))


def _mosaicml(run: Measurement) -> StatedRun:
    said = dict(run.conditions)
    sequence, batch, micro_batches = int(said["sequence"]), int(said["batch_size"]), int(said["micro_batches"])
    layers, width = MOSAICML[run.workload]
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


MOSAICML_FITTED_ON = "the pace of computation of each series, on its run with the fewest GPUs; network from data sheets"


MODALITIES = {
    "modalities-2.7b": Decoder(32, 2560, 6784, 50304),
    "modalities-6.7b": Decoder(32, 4096, 11008, 50304),
    "modalities-13b": Decoder(40, 5120, 13824, 50304),
}
SHORT_OF_MEMORY = ("modalities-13b", 8)
HYBRID = "hsdp:bf16"


def modalities(runs: Sequence[Measurement]) -> list[StatedRun | str]:
    """Modalities on Leonardo: Llama-like models of 2.7 to 13 B parameters, with FULL_SHARD and HYBRID_SHARD of FSDP1.

    Nodes of 4 A100 with 64 GB and 400 Gbit/s of InfiniBand; 8 to 256 GPUs, bfloat16 throughout, wrapped by block,
    nothing recomputed. HYBRID_SHARD has a replica on each node. The dimensions of 2.7B are published; those of 6.7B and
    13B are Llama's, which the published utilisation fits.

    A series has one model and micro-batch, whatever is sharded; the pace comes from 8 GPUs, of HYBRID_SHARD where it
    was run. 13B takes more than twice the time for each token of smaller models on 8 GPUs, and not on more: 26 GB of
    weights, gradients and optimizer state and some 35 GB of activations do not fit well into 64 GB. That run is left
    out, so that the pace of 13B comes from 16 GPUs (chosen with these figures in view).
    """
    return list(map(_modalities, runs))


def _modalities(run: Measurement) -> StatedRun | str:
    if run.workload not in MODALITIES:
        return "a single run of dimensions that are not published"
    if (run.workload, run.workers) == SHORT_OF_MEMORY:
        return "short of memory: 2.3 times as long as on 16 GPUs"
    sequence, batch = int(run.condition("sequence")), int(run.condition("batch_size"))
    step = MicroBatch(sequence, batch, run.condition("gpu"))
    return StatedRun(
        (run.workload, batch),
        (run.workers, run.plan != HYBRID),
        partial(workload, run.workload, MODALITIES[run.workload], step),
        fsdp(run.plan),
        int(run.condition("micro_batches")),
        alike=True,
    )


MODALITIES_FITTED_ON = (
    "the pace of computation of each model and micro-batch, on its fewest GPUs; network from data sheets"
)


INTERNLM_7B = Decoder(32, 4096, 11008, 103168, biased=ATTENTION)
BUCKET_BYTES = 512 * MIB
"""``reduce_bucket_size`` of InternEvo's configurations."""
NODE = 8
ALL_RANKS = "all"
REPEATED = (16, 32, 64, 128, 256, 1024)
"""Numbers of GPUs whose figures with packed samples, to the last digit, are those of the first table."""


def internevo(runs: Sequence[Measurement]) -> list[StatedRun | str]:
    """InternEvo: InternLM-7B under ZeRO-1 over all ranks or over the 8 of a node, on 8 to 1,024 A100 with RoCE.

    Ranks own whole tensors: after the update each broadcasts what it owns to its group (``HybridZeroOptimizer``).
    Gradients are all-reduced between all ranks in buckets of 512 MiB during the backward of the last micro-batch.
    Weights and gradients are in bfloat16.

    A series is one table: of micro-batches of 2 in 4, of the same with packed samples, and of packed samples that are
    recomputed. The pace comes from 8 GPUs, where both groups are the same.
    """
    return [_internevo_left_out(run) or _internevo(run) for run in runs]


def _internevo_left_out(run: Measurement) -> str:
    """The reason why a run is not predicted; "" if it is."""
    if run.condition("tensor_parallel") != "1":
        return "tensor parallelism, whose collectives osfmodel does not price"
    step = tuple(map(run.condition, ("packed", "recomputed", "batch_size", "micro_batches")))
    if step == ("yes", "no", "2", "4") and run.workers in REPEATED:
        return "repeats a figure of the first table"
    if run.condition("zero_group") == ALL_RANKS and run.workers <= NODE:
        return "all ranks are those of a node: the same as ZeRO over 8"
    return ""


def _internevo(run: Measurement) -> StatedRun:
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
        partial(internevo_plan, 1 if whole else run.workers // NODE),
        int(run.condition("micro_batches")),
        alike=False,
    )


def internevo_plan(replicas: int, model: Workload, pricing: Pricing, micro_batches: int) -> Plan:
    """Buckets in ready order, sent during backward, and owners in each of ``replicas``."""
    groups = bounded_layout(model.gradients, BUCKET_BYTES)
    rules = Sharding((ParameterGroup(),) * len(groups), replicas, asynchronous=True, micro_batches=micro_batches)
    return replace(grouped_plan(model, groups), strategy=OWNERS, sharding=rules)


INTERNEVO_FITTED_ON = "the pace of computation of each table, on its run with 8 GPUs; network from data sheets"


FMS_FSDP = {
    "llama2-7b": Decoder(32, 4096, 11008, 32000),
    "llama2-13b": Decoder(40, 5120, 13824, 32000),
    "llama2-34b": Decoder(48, 8192, 22016, 32000, keys=1024),
    "llama2-70b": Decoder(80, 8192, 28672, 32000, keys=1024),
}
"""As published with Llama 2 and Code Llama; 34B and 70B have 8 groups of queries."""


def fms_fsdp(runs: Sequence[Measurement]) -> list[StatedRun | str]:
    """IBM's fms-fsdp: Llama 2 of 7 to 70 billion parameters under FSDP1 with compiled blocks, on 128 A100 or 96 H100.

    7B has a replica on each node (HSDP) and recomputes nothing, the others are sharded between all GPUs and recompute
    some blocks: as much as the published utilisation of hardware is above that of the model, which does not depend on
    the time. Sequences of 4,096, micro-batches of 2, bfloat16. The network of a node is stated, its fabric is not.

    No model was run on two numbers of GPUs. So a series is a kind of GPU: its pace comes from 7B, and the larger models
    are predicted by their operations. Errors hold whatever larger matrices gain, so that they say little about a
    prediction from a profile: these runs have no part in error bands.
    """
    return list(map(_fms_fsdp, runs))


def _fms_fsdp(run: Measurement) -> StatedRun:
    decoder = FMS_FSDP[run.workload]
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


FMS_FSDP_FITTED_ON = "the pace of computation of each kind of GPU, on 7B; network from data sheets"
