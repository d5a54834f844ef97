"""Groups of blocks for FSDP2 and HSDP: seconds of the search, and how close it comes to every grouping.

    python benchmarks/sharded_planning.py

The first table plans and tunes a model with the shapes of Llama 3 8B (291 tensors) for 64 GPUs; its compute times are
counted from FLOPs and no measurement. The second compares the search that changes groupings end by end, which is meant
for models of many blocks, with every grouping of models of six to nine blocks, drawn at random by a fixed seed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import osfmodel as osf
from osfmodel.entities.modules import SHARDED
from osfmodel.entities.plan import Objective
from osfmodel.solve import SOLVERS, Question
from osfmodel.solve.search import group_search
from tests.solve.test_sharded import drawn

WORKERS, TOKENS, FLOPS = 64, 8192, 400e12
"""GPUs, tokens of each in a step, and FLOP/s that matrix products are taken to reach."""
CLUSTERS = ("nccl:h100x8,400Gbps,ib", "nccl:h100x8,100Gbps,ib")
REPEATS, CASES, SEED = 5, 60, 20261124
WIDTH, INNER, KEYS, VOCABULARY, BLOCKS = 4096, 14336, 1024, 128256, 32


def matrix(name: str, rows: int, columns: int) -> osf.Layer:
    """A matrix in bfloat16 that multiplies all tokens."""
    forward = 2 * rows * columns * TOKENS / FLOPS
    return osf.Layer(name, forward, 2 * forward, 2 * rows * columns, "bfloat16", shape=(rows, columns))


def vector(name: str) -> osf.Layer:
    """The scale of a normalisation."""
    return osf.Layer(name, 1e-5, 1e-5, 2 * WIDTH, "bfloat16", shape=(WIDTH,))


def llama() -> osf.Workload:
    """The shapes of Llama 3 8B."""
    embedding = 2 * VOCABULARY * WIDTH
    layers = [osf.Layer("tok_embeddings.weight", 1e-3, 1e-3, embedding, "bfloat16", shape=(VOCABULARY, WIDTH))]
    for block in range(BLOCKS):
        layers.append(vector(f"layers.{block}.attention_norm.weight"))
        for name, rows, columns in (
            ("wq", WIDTH, WIDTH), ("wk", KEYS, WIDTH), ("wv", KEYS, WIDTH), ("wo", WIDTH, WIDTH)
        ):  # fmt: skip
            layers.append(matrix(f"layers.{block}.attention.{name}.weight", rows, columns))
        layers.append(vector(f"layers.{block}.ffn_norm.weight"))
        for name, rows, columns in (("w1", INNER, WIDTH), ("w2", WIDTH, INNER), ("w3", INNER, WIDTH)):
            layers.append(matrix(f"layers.{block}.feed_forward.{name}.weight", rows, columns))
    layers += [vector("norm.weight"), matrix("output.weight", VOCABULARY, WIDTH)]
    return osf.Workload("llama3-8b-shapes", tuple(layers), batch_size=1)


def taken(work) -> str:
    """Median and range of the seconds of several runs."""
    found = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return f"{median(found):.2f} ({min(found):.2f} to {max(found):.2f})"


def speed() -> None:
    """Print seconds to plan and to tune, and the gain over one group per block."""
    workload = llama()
    print(f"{len(workload.gradients)} tensors, {WORKERS} GPUs; seconds, median of {REPEATS}\n")
    print("| cluster | target | plan | tune | saved | interval | vs bound |\n|---|---|---|---|---|---|---|")
    for words in CLUSTERS:
        cluster = osf.load_cluster(words)
        pricing = osf.pricing_of(cluster, WORKERS, workload)
        for target, strategy in zip(("fsdp2", "hsdp"), SHARDED, strict=True):
            question = Question(workload, pricing, Objective(strategy=strategy))
            planned = taken(lambda question=question: SOLVERS["sharded"].solve(question))
            tuned = taken(lambda cluster=cluster, target=target: osf.tune(workload, cluster, WORKERS, target))
            (outcome,) = osf.tune(workload, cluster, WORKERS, target).outcomes
            saved, chance = 1 - outcome.tuned_time / outcome.default_time, outcome.chance
            interval = "the default" if chance is None else f"{chance.low:.1%} to {chance.high:.1%}"
            gap = outcome.tuned_time / outcome.lower_bound - 1
            print(f"| {words} | {target} | {planned} | {tuned} | {saved:.1%} | {interval} | {gap:.1%} |")


def quality() -> None:
    """Print how far the search end by end stays above every grouping."""
    above, few, random = [], group_search.FEW, np.random.default_rng(SEED)
    while len(above) < CASES:
        workload, pricing = drawn(random, 10)
        if len(group_search.blocks(workload)) < 6:
            continue
        times = []
        for group_search.FEW in (9, 0):  # every grouping, and the search
            solution = SOLVERS["sharded"].solve(Question(workload, pricing, Objective(strategy=SHARDED[0])))
            times.append(solution.require()[1].iteration_time)
        above.append(times[1] / times[0] - 1)
    group_search.FEW = few
    print(f"\nSearch end by end above every grouping, {CASES} models of six to nine blocks (seed {SEED}):")
    print(f"median {median(above):.2%}, above 0.1 % in {sum(one > 1e-3 for one in above)}, worst {max(above):.2%}.")


if __name__ == "__main__":
    speed()
    quality()
