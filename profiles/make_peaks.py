"""Make peaks.json, how far published peaks of memory lay from predicted ones, for the verdict of what fits.

    OSFMODEL_DATA=... python profiles/make_peaks.py [OUTPUT_FOLDER] [--errors]

Counted runs are those of OSFMODEL_DATA/sharded that state their peak: of nanotron every EACH-th, as its grid has 1,000.
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
from collections.abc import Iterator
from math import exp, log
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple
from unittest.mock import patch

from osfmodel.cost.clusters import load_cluster
from osfmodel.counting import load_workload
from osfmodel.counting.groups import Parallelism
from osfmodel.entities.files import documents, profiles
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.ledger.sources.peak_memory import judge
from osfmodel.planning.scaling.replicas import replica_workload
from osfmodel.planning.scaling.scale import ScaleOptions, ScaleTask
from osfmodel.planning.what_if import WhatIf
from osfmodel.solve import verdicts
from osfmodel.solve.solution import MemoryLimit
from osfmodel.solve.verdicts import (
    DATA,
    LEVELS,
    PIPELINE,
    PROFILED,
    TENSOR,
    JudgedPeak,
    PeakCell,
    PeaksFile,
    peaks_document,
    setup_of,
)

EACH = 2
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
"""What is known before any peak is judged."""
LLAMA_70B = (
    '{"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, '
    '"num_key_value_heads": 8, "vocab_size": 128256, "rms_norm_eps": 1e-5, "tie_word_embeddings": false, '
    '"max_position_embeddings": 131072, "num_hidden_layers": LAYERS}'
)


class PublishedPeak(NamedTuple):
    """A run as it is asked for. reserved: whether the source publishes reserved bytes, not allocated ones."""

    source: str
    words: str
    cluster: str
    gpus: int
    plan: str
    groups: Parallelism
    micro_batches: int
    bytes: float
    reserved: bool


def table(name: str) -> list[dict[str, str]]:
    """The rows of a table of published runs."""
    with (Path(os.environ["OSFMODEL_DATA"]) / "sharded" / name).open(encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def simumax(folder: Path) -> Iterator[PublishedPeak]:
    """Megatron's runs of Llama 3 70B with 12 layers on B200, each three times in the table."""
    seen = set()
    for row in table("simumax/b200_llama70b_deepseekv2.csv"):
        if row["model"] != "llama3_70b" or row["case"] in seen:
            continue
        seen.add(row["case"])
        config = folder / f"llama3_70b-{row['layers']}.json"
        config.write_text(LLAMA_70B.replace("LAYERS", row["layers"]), encoding="utf-8")
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


def nanotron() -> Iterator[PublishedPeak]:
    """The runs of Llama 3.2 1B and 3.1 8B of the Ultra-Scale Playbook on H100, with a step of 256 samples."""
    names = {"1B": "llama3.2-1b", "8B": "llama3-8b"}
    for row in table("nanotron-ultrascale/benchmarks_1b_8b.csv")[::EACH]:
        data, batch, count = (int(row[one]) for one in ("data_parallel", "microbatch_samples", "grad_accumulation"))
        if data * batch * count != 256:
            continue
        groups = Parallelism(tensor=int(row["tensor_parallel"]), pipeline=int(row["pipeline_parallel"]))
        words = f"{names[row['model']]}:h100,seq4096,batch{batch},bf16,stack=nanotron"
        plan = "zero-1" if row["zero_stage"] == "1" else "ddp"
        size, cluster = float(row["gpu_memory_gb"]) * 1e9, "nccl:h100x8,400Gbps,efa"
        yield PublishedPeak("nanotron", words, cluster, int(row["gpus"]), plan, groups, count, size, True)


def errors(folder: Path) -> Iterator[tuple[JudgedPeak, bool]]:
    """Each run with log(measured / predicted) of what a step holds, and whether the measured bytes are reserved."""
    for run in (*simumax(folder), *torchtitan(), *nanotron()):
        cluster = load_cluster(run.cluster)
        one = run.groups == Parallelism()
        made = load_workload(run.words) if one else replica_workload(run.words, cluster, run.groups)
        options = ScaleOptions((run.plan,), ROOM, WhatIf(accumulate=run.micro_batches), groups=run.groups)
        row = ScaleTask.of(made, cluster, options).point(made, run.gpus).best
        assert row.peak is not None
        groups = (run.groups.tensor, run.groups.context, run.groups.pipeline)
        judged = JudgedPeak(run.source, setup_of(False, groups), log(run.bytes / row.peak.bytes))
        yield judged, run.reserved
    for seen in judge(load_measurements("memory")).rows:
        if seen.predicted is not None and not seen.fitted:
            yield JudgedPeak("memory", PROFILED, log(seen.measured / seen.predicted)), False


def reserved_ratio(found: list[tuple[JudgedPeak, bool]]) -> float:
    """Reserved bytes for each that is predicted to be held, of data-parallel runs."""
    own = [run for run, reserved in found if reserved and run.setup == DATA]
    each = [median(run.error for run in own if run.source == source) for source in {run.source for run in own}]
    return round(exp(mean(each)), 3)


def main() -> None:
    """Write the file, or print the errors."""
    arguments = [one for one in sys.argv[1:] if one != "--errors"]
    with tempfile.TemporaryDirectory() as folder, patch.object(verdicts, "bundled_peaks", lambda: NOTHING_YET):
        found = list(errors(Path(folder)))
    ratio = reserved_ratio(found)
    if "--errors" in sys.argv:
        for key in dict.fromkeys((run.source, run.setup) for run, _ in found):
            own = sorted(exp(run.error) - 1 for run, _ in found if (run.source, run.setup) == key)
            ends = f"{own[0]:+.0%} to {own[-1]:+.0%}"
            print(f"{key[0]:12s} {key[1]:30s} {len(own):4d} runs, measured {median(own):+.1%} ({ends})")
        print(f"reserved for each byte: {ratio}")
        return
    judged = [run._replace(error=run.error - log(ratio) * reserved) for run, reserved in found]
    made = peaks_document(judged, dict.fromkeys(KINDS, ratio))
    output = Path(arguments[0]) if arguments else Path(__file__).parent
    profiles.write_text(output / "peaks.json", documents.encode(made))


if __name__ == "__main__":
    main()
