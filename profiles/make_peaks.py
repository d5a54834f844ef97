"""Make peaks.json, how far published peaks of memory lay from predicted ones, for the verdict of what fits.

    OSFMODEL_DATA=... python profiles/make_peaks.py [OUTPUT_FOLDER] [--errors]

Counted runs are those of OSFMODEL_DATA/sharded that state their peak. With groups inside a replica, one that states
reserved bytes counts only where these are NEAR of what its GPU has or more: messages of groups keep freed blocks from
being taken again, and PyTorch gives segments back only as memory runs out, so what such a run reserved far below that
is no more than a bound of what it needs.
nanotron's are of its first rank, in a pipeline of the first stage: ``log_throughput`` of its ``helpers.py`` writes
``torch.cuda.max_memory_reserved() / 1024**3`` of rank 0, and says GB.
Runs that state no peak did run: where more is predicted than their GPU has, they took at most that; the others say
nothing but how many they are. NeMo's are left out, as they do not say what they recompute.
Profiled runs are those of the ledger's source ``memory``, at other batch sizes than their profile's. What PyTorch
reserves for each allocated byte is the median of the data-parallel runs whose source publishes reserved bytes, each
source weighing the same; other kinds of set-up have too few that are predicted well to tell the two apart.
``--errors`` prints the errors by source instead.
"""

from __future__ import annotations

import csv
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from math import ceil, exp, log
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec

from osfmodel.cost.clusters import load_cluster
from osfmodel.counting import load_workload
from osfmodel.counting.groups import Parallelism
from osfmodel.entities.files import documents, profiles
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.entities.workload import Workload
from osfmodel.ledger.sources.peak_memory import judge
from osfmodel.planning.scaling import replicas
from osfmodel.planning.scaling.replicas import replica_workload
from osfmodel.planning.scaling.scale import ScaleOptions, ScaleTask, room_of
from osfmodel.planning.scaling.strategies import NEAR
from osfmodel.planning.what_if import WhatIf
from osfmodel.solve import verdicts
from osfmodel.solve.solution import MemoryLimit
from osfmodel.solve.verdicts import (
    DATA,
    LEVELS,
    PIPELINE,
    PROFILED,
    TENSOR,
    PeakCell,
    PeaksFile,
    setup_of,
)

EACH = 4
"""Of nanotron's grid of 1,000 ``benchmarks/verdicts.py`` judges every EACH-th run."""
ROOM = MemoryLimit(10**13)
"""No limit: those runs did run."""
GIB = 2**30
KINDS = (PROFILED, DATA, TENSOR, PIPELINE)
NOTHING_YET = PeaksFile(
    documents.SCHEMA_VERSION,
    "peaks",
    list(LEVELS),
    dict.fromkeys(KINDS, 1.0),
    [PeakCell(kind, [0.0] * len(LEVELS), 0, []) for kind in KINDS],
)
"""Everything known before any peak is judged."""
LLAMA = (
    '{"model_type": "llama", "hidden_size": %d, "intermediate_size": %d, "num_hidden_layers": %d, "vocab_size": %d, '
    '"rms_norm_eps": 1e-5, "tie_word_embeddings": false, "max_position_embeddings": 262144, '
)
LIKE_LLAMA = LLAMA + '"num_attention_heads": 32, "num_key_value_heads": 32}'
LIKE_LLAMA_70B = LLAMA + '"num_attention_heads": 64, "num_key_value_heads": 8}'
MPT = {
    "768": "mpt-125m", "1024": "mpt-350m", "1536": "mpt-760m", "2048": "mpt-1b", "2560": "mpt-3b", "4096": "mpt-7b",
    "5120": "mpt-13b", "7168": "mpt-30b", "8192": "mpt-70b",
}  # fmt: skip
"""Models by their width."""


class JudgedPeak(NamedTuple):
    """A published peak.

    error: log(measured / predicted)
    seen:  whether it is known; else the run only counts among those of its source
    """

    source: str
    setup: str
    error: float
    seen: bool = True


def peaks_document(judged: Iterable[JudgedPeak], reserved: dict[str, float]) -> dict[str, Any]:
    """The JSON-ready form of ``profiles/peaks.json``; quantiles are rounded up to a thousandth."""
    runs = list(judged)
    cells = []
    for setup in dict.fromkeys(run.setup for run in runs):
        own = [run for run in runs if run.setup == setup]
        sources = sorted({run.source for run in own})
        for without in ("", *sources):
            kept = [run for run in own if run.source != without]
            if any(run.seen for run in kept):
                there = sorted({run.source for run in kept})
                cells.append(PeakCell(setup, _quantiles(kept), len(kept), there, without))
    made = PeaksFile(documents.SCHEMA_VERSION, "peaks", list(LEVELS), reserved, cells)
    return msgspec.to_builtins(made)  # type: ignore[no-any-return]


def _quantiles(runs: list[JudgedPeak]) -> list[float]:
    """Quantiles at LEVELS in which each source weighs the same, less its part of runs that are not seen."""
    each = {source: sum(run.source == source for run in runs) for source in {run.source for run in runs}}
    ordered = sorted((run.error, 1 / each[run.source]) for run in runs if run.seen)
    every = sum(share for _, share in ordered)
    found, places = [], iter(LEVELS)
    level, weight = next(places), 0.0
    for error, share in ordered:
        weight += share / every
        while weight >= level - 1e-9:
            found.append(ceil(error * 1000) / 1000)
            following = next(places, None)
            if following is None:
                return found
            level = following
    return found


class PublishedPeak(NamedTuple):
    """A run as it is asked for.

    bytes:    of its peak; None for a run that says only that it ran
    reserved: whether the source publishes reserved bytes, not allocated ones
    """

    source: str
    words: str
    cluster: str
    gpus: int
    plan: str
    groups: Parallelism
    micro_batches: int
    bytes: float | None
    reserved: bool


def table(name: str) -> list[dict[str, str]]:
    """The rows of a table of published runs."""
    path = Path(os.environ["OSFMODEL_DATA"]) / "sharded" / name
    with path.open(encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def simumax(folder: Path) -> Iterator[PublishedPeak]:
    """Megatron's runs of Llama 3 70B with 12 layers on B200, each three times in the table."""
    seen = set()
    for row in table("simumax/b200_llama70b_deepseekv2.csv"):
        if row["model"] != "llama3_70b" or row["case"] in seen:
            continue
        seen.add(row["case"])
        config = folder / f"llama3_70b-{row['layers']}.json"
        config.write_text(LIKE_LLAMA_70B % (8192, 28672, int(row["layers"]), 128256), encoding="utf-8")
        tensor, context, pipeline = (int(row[f"{one}_parallel"]) for one in ("tensor", "context", "pipeline"))
        words = f"{config}:b200,seq{row['seq_len_tokens']},batch1,bf16,stack=te"
        groups = Parallelism(tensor=tensor, context=context, pipeline=pipeline)
        size = float(row["peak_allocated_gib"]) * GIB
        yield PublishedPeak(
            "simumax", words, "nccl:b200x8", 8, "zero-1", groups, int(row["micro_batches"]), size, False
        )


def torchtitan() -> Iterator[PublishedPeak]:
    """FSDP2's runs of Llama 3.1 on H100, whose pipelines are not 1F1B."""
    names = {"Llama 3.1 8B": "llama3-8b", "Llama 3.1 70B": "llama3-70b", "Llama 3.1 405B": "llama3-405b"}
    for row in table("torchtitan/llama3_h100_202412.csv"):
        if int(row["pipeline_parallel"] or 1) > 1 or not row["memory_gib"]:
            continue
        dtype = "fp8" if row["float8"] == "True" else "bf16"
        stack = "compile" if row["torch_compile"] == "True" else "eager"
        again = (row["activation_checkpointing"] or "none").split()[0]
        said = f"h100,seq{row['seq_len_tokens']},batch{row['microbatch_samples']},{dtype},ac={again},stack={stack}"
        groups = Parallelism(tensor=int(row["tensor_parallel"] or 1), context=int(row["context_parallel"] or 1))
        size = float(row["memory_gib"]) * GIB
        words = f"{names[row['model']]}:{said}"
        yield PublishedPeak(
            "torchtitan", words, "nccl:h100x8,400Gbps", int(row["gpus"]), "fsdp2", groups, 1, size, True
        )


def nanotron(each: int = EACH) -> Iterator[PublishedPeak]:
    """The runs of Llama 3.2 1B and 3.1 8B of the Ultra-Scale Playbook on H100, with a step of 256 samples."""
    names = {"1B": "llama3.2-1b", "8B": "llama3-8b"}
    for row in table("nanotron-ultrascale/benchmarks_1b_8b.csv")[::each]:
        data, batch, count = (int(row[one]) for one in ("data_parallel", "microbatch_samples", "grad_accumulation"))
        if data * batch * count != 256:
            continue
        groups = Parallelism(tensor=int(row["tensor_parallel"]), pipeline=int(row["pipeline_parallel"]))
        words = f"{names[row['model']]}:h100,seq4096,batch{batch},bf16,stack=nanotron"
        plan = "zero-1" if row["zero_stage"] == "1" else "ddp"
        size, cluster = float(row["gpu_memory_gb"]) * GIB, "nccl:h100x8,400Gbps,efa"
        yield PublishedPeak("nanotron", words, cluster, int(row["gpus"]), plan, groups, count, size, True)


def ran(folder: Path) -> Iterator[PublishedPeak]:
    """Runs that say only that they ran."""
    gpus = {"a100_80gb": "a100", "a100_40gb": "a100-40gb"}
    for row in table("mosaicml-llm-foundry/mosaicgpt_training_2023-04.csv"):
        if row["activation_cpu_offload"] != "True" and row["throughput_tokens_per_s_per_gpu"]:
            gpu = gpus[row["gpu"]]
            again = ",ac=full" * (row["activation_checkpointing"] == "True")
            said = f"{gpu},seq{row['seq_len_tokens']},batch{row['microbatch_samples']},bf16{again}"
            words, cluster = f"{MPT[row['d_model']]}:{said}", f"nccl:{gpu}x8,200Gbps"
            counts = int(row["gpus"]), "fsdp2", Parallelism(), int(row["grad_accumulation"])
            yield PublishedPeak("mosaicml", words, cluster, *counts, None, reserved=True)
    small = folder / "modalities.json"
    small.write_text(LIKE_LLAMA % (2560, 6784, 32, 50304), encoding="utf-8")
    for row in table("modalities/scaling_leonardo.csv"):
        if row["params_billion"] == "2.7":
            words = f"{small}:a100-64gb,seq{row['seq_len_tokens']},batch{row['microbatch_samples']},bf16"
            plan = "hsdp" if row["sharding"] == "HYBRID_SHARD" else "fsdp2"
            counts = int(row["gpus"]), plan, Parallelism(), int(row["grad_accumulation"] or 1)
            yield PublishedPeak("modalities", words, "nccl:a100x4,100Gbps", *counts, None, reserved=True)
    large = folder / "internevo.json"
    large.write_text(LIKE_LLAMA % (4096, 11008, 32, 103168), encoding="utf-8")
    for row in table("internevo/train_performance_7b.csv"):
        if row["pack_sample_into_one"] != "True" and row["tokens_per_gpu_per_s"]:
            again = ",ac=full" * (row["activation_checkpointing"] == "True")
            words = f"{large}:a100,seq{row['seq_len_tokens']},batch{row['microbatch_samples']},bf16{again}"
            counts = int(row["gpus"]), "zero-1", Parallelism(tensor=int(row["tensor_parallel"])), int(row["micro_num"])
            yield PublishedPeak("internevo", words, "nccl:a100x8,400Gbps/node,roce", *counts, None, reserved=True)


def first_stage(
    workload: Workload, groups: Parallelism, micro_batches: int, ranks: int, size: float
) -> tuple[int, float]:
    """The first stage, in the place of the fullest."""
    return replicas._stages(workload, groups, micro_batches)[0]


class Judged(NamedTuple):
    """A run, whether its bytes are reserved ones, and whether they are only known to be no more."""

    run: JudgedPeak
    reserved: bool
    bounded: bool = False

    def as_reserved(self, ratio: float) -> JudgedPeak:
        """The run against what is predicted to be reserved."""
        error = self.run.error - log(ratio) * self.reserved
        return self.run._replace(error=error, seen=not self.bounded or error < 0)


def errors(folder: Path) -> Iterator[Judged]:
    """Each run with log(measured / predicted) of what a step holds."""
    for run in (*simumax(folder), *torchtitan(), *nanotron(1), *ran(folder)):
        room = room_of(load_workload(run.words), run.groups)
        assert room is not None
        plenty = run.reserved and run.bytes is not None and run.bytes < NEAR * room.bytes
        if plenty and run.groups != Parallelism():
            continue
        cluster = load_cluster(run.cluster)
        one = run.groups == Parallelism()
        made = load_workload(run.words) if one else replica_workload(run.words, cluster, run.groups)
        options = ScaleOptions((run.plan,), ROOM, WhatIf(accumulate=run.micro_batches), groups=run.groups)
        with patch.object(replicas, "_fullest", first_stage if run.source == "nanotron" else replicas._fullest):
            row = ScaleTask.of(made, cluster, options).point(made, run.gpus).best
        assert row.peak is not None
        groups = (run.groups.tensor, run.groups.context, run.groups.pipeline)
        size = room.bytes if run.bytes is None else run.bytes
        judged = JudgedPeak(run.source, setup_of(False, groups), log(size / row.peak.bytes))
        yield Judged(judged, run.reserved, run.bytes is None)
    for seen in judge(load_measurements("memory")).rows:
        if seen.predicted is not None and not seen.fitted:
            yield Judged(JudgedPeak("memory", PROFILED, log(seen.measured / seen.predicted)), reserved=False)


def reserved_ratio(found: list[Judged]) -> float:
    """Reserved bytes for each that is predicted to be held, of data-parallel runs."""
    own = [one.run for one in found if one.reserved and not one.bounded and one.run.setup == DATA]
    each = [median(run.error for run in own if run.source == source) for source in {run.source for run in own}]
    return round(exp(mean(each)), 3)


def main() -> None:
    """Write the file, or print the errors."""
    arguments = [one for one in sys.argv[1:] if one != "--errors"]
    with tempfile.TemporaryDirectory() as folder, patch.object(verdicts, "bundled_peaks", lambda: NOTHING_YET):
        found = list(errors(Path(folder)))
    ratio = reserved_ratio(found)
    if "--errors" in sys.argv:
        runs = [one.as_reserved(ratio) for one in found]
        for key in dict.fromkeys((run.source, run.setup) for run in runs):
            own = sorted(exp(run.error) - 1 for run in runs if (run.source, run.setup) == key)
            ends = f"{own[0]:+.0%} to {own[-1]:+.0%}"
            print(f"{key[0]:12s} {key[1]:30s} {len(own):4d} runs, measured {median(own):+.1%} ({ends})")
        print(f"reserved for each byte: {ratio}")
        return
    judged = [one.as_reserved(ratio) for one in found]
    made = peaks_document(judged, dict.fromkeys(KINDS, ratio))
    output = Path(arguments[0]) if arguments else Path(__file__).parent
    profiles.write_text(output / "peaks.json", documents.encode(made))


if __name__ == "__main__":
    main()
