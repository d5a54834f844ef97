"""Verdicts of osf compare on real jobs: pairs of the same job, and pairs with a slowdown that was put there.

    python benchmarks/compare_runs.py [--runs 20] [--steps 40] [--layer-ms 12.5] [--computing] [--busy] [--keep FILE]
    python benchmarks/compare_runs.py --read FILE ...

Needs PyTorch. A run is a new job of 2 processes under DDP over gloo. Computation sleeps, or, with --computing, is real
matrix products; communication is real. Runs of four settings take turns: the job, the same again, and the job with 2 %
and 5 % more time in each layer. With --busy, two processes that never rest share the processors. Null pairs are all
pairs of runs of the same job; the others have a run of the job and the slower one of the same turn. Some 7 seconds a
run: a step of 8 layers takes 0.1 s. --keep writes the step times, --read judges those that were kept, and the repeated
runs in profiles/measurements.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from osfmodel.diagnosis.comparing.statistics import FASTER, SAME, SLOWER, UNSURE, StepSeries, spread_of, step_change
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.show.compared import noise_floor

LAYERS, WIDTH, WARM_UPS = 8, 256, 5
ROWS_A_SECOND = 1.2e6
"""Rows of a matrix product that a core multiplies in about a second."""
SETTINGS = {"job": 1.0, "again": 1.0, "2% slower": 1.02, "5% slower": 1.05}
STEPS = (3, 10, 40)
"""Numbers of first steps that are judged."""
REPEATS = (3, 5)
"""Numbers of runs a side, beside one."""
QUIET = 0.01
"""Spread below which both runs of a pair count as quiet."""
REPEATED = ("emulated-ddp", "emulated-horovod", "emulated-runtime", "emulated-sparse")


class Job(NamedTuple):
    """Seconds of each layer, forward and backward together, and whether it computes in them or sleeps."""

    layer_time: float
    computing: bool


def train(rank: int, place: str, steps: int, slower: float, job: Job, told: multiprocessing.Queue) -> None:
    """One rank of a run: the step times of rank 0 go to ``told``."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(_model(slower, job), bucket_cap_mb=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(256, WIDTH)
    times = []
    for _ in range(WARM_UPS + steps):
        start = time.perf_counter()
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - start)
    dist.barrier()
    if rank == 0:
        told.put(times[WARM_UPS:])
        told.close()
        told.join_thread()
    os._exit(0)  # gloo may abort an interpreter that ends


def _model(slower: float, job: Job):
    """Linear layers, each of which sleeps in forward and backward, or multiplies in proportion."""
    import torch  # noqa: PLC0415

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, values, weight):
            ctx.save_for_backward(values, weight)
            _work(values, slower / 3, job)
            return values[:1] @ weight + values

        @staticmethod
        def backward(ctx, gradient):
            values, _ = ctx.saved_tensors
            _work(values, 2 * slower / 3, job)
            return gradient, values[:1].T @ gradient[:1]

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            weights = (torch.nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH) for _ in range(LAYERS))
            self.weights = torch.nn.ParameterList(weights)

        def forward(self, values):
            for weight in self.weights:
                values = Layer.apply(values, weight)
            return values

    return Model()


def _work(values, part: float, job: Job) -> None:
    """Sleep for a part of a layer's time, or multiply as many rows as take some such time."""
    if not job.computing:
        time.sleep(part * job.layer_time)
        return
    matrix, rows = values[:200], round(part * ROWS_A_SECOND * job.layer_time)
    for start in range(0, rows, 200):
        matrix[: min(200, rows - start)] @ values.T @ values


def run(context, steps: int, slower: float, job: Job) -> list[float]:
    """The step times of a new job of two processes."""
    told = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (f"{folder}/store", steps, slower, job, told)
        ranks = [context.Process(target=train, args=(rank, *arguments)) for rank in range(2)]
        for rank in ranks:
            rank.start()
        times = told.get(timeout=120)
        for rank in ranks:
            rank.join()
    return times


def _spin() -> None:
    while True:
        pass


def measured(runs: int, steps: int, job: Job, busy: bool) -> dict[str, list[list[float]]]:
    """The step times of so many runs of each of SETTINGS, by turns."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed"])
    others = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(2 * busy)]
    for other in others:
        other.start()
    found: dict[str, list[list[float]]] = {name: [] for name in SETTINGS}
    for turn in range(runs):
        for name, slower in SETTINGS.items():
            found[name].append(run(context, steps, slower, job))
        print(f"turn {turn + 1} of {runs}", file=sys.stderr)
    for other in others:
        other.terminate()
    return found


def judge(found: dict[str, list[list[float]]], title: str) -> None:
    """Print rows of a table: verdicts on null pairs and on slower runs, by the numbers of steps and of runs a side."""
    same = [*found["job"], *found["again"]]
    print(f"| {title}: pairs | steps | runs | {SLOWER} | {FASTER} | {SAME} | {UNSURE} | change | interval, half |")
    print("|---|---|---|---|---|---|---|---|---|")
    for steps in (count for count in STEPS if count <= len(same[0])):
        cut = {name: [StepSeries(tuple(times[:steps])) for times in runs] for name, runs in found.items()}
        _row("same job", steps, 1, [((a,), (b,)) for a, b in combinations([*cut["job"], *cut["again"]], 2)])
        for count in REPEATS:
            _row("same job", steps, count, _pairs(cut["job"], cut["again"], count))
        for name in ("2% slower", "5% slower"):
            for count in (1, *REPEATS):
                _row(name, steps, count, _pairs(cut["again"], cut[name], count))
    print()


Pair = tuple[tuple[StepSeries, ...], tuple[StepSeries, ...]]


def _pairs(first: Sequence[StepSeries], second: Sequence[StepSeries], count: int) -> list[Pair]:
    """``count`` runs in a row of both, as often as there are such."""
    places = range(len(first) - count + 1)
    return [(tuple(first[at : at + count]), tuple(second[at : at + count])) for at in places]


def _row(name: str, steps: int, runs: int, pairs: Sequence[Pair]) -> None:
    if not pairs:
        return
    changes = [step_change(*pair) for pair in pairs]
    counts = Counter(change.verdict for change in changes)
    verdicts = " | ".join(str(counts[verdict]) for verdict in (SLOWER, FASTER, SAME, UNSURE))
    middle, half = median(one.median for one in changes), median(one.noise for one in changes)
    print(f"| {name}: {len(pairs)} | {steps} | {runs} | {verdicts} | {middle:+.1%} | {noise_floor(half)} |")


def judge_repeated() -> None:
    """Print rows of a table: verdicts on the repeats of bundled runs, as pairs, and with 2 % and 5 % more."""
    print(
        f"| repeats of | pairs | {SLOWER} or {FASTER} | {SAME} | {UNSURE} | 2 % in the interval | 5 % found | quiet |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in REPEATED:
        groups: dict[object, list[StepSeries]] = {}
        for one in load_measurements(name):
            key = (one.workload, one.cluster, one.plan, one.workers, one.shared_conditions)
            groups.setdefault(key, []).append(StepSeries(one.samples))
        pairs = [pair for runs in groups.values() for pair in combinations(runs, 2)]
        null = Counter(step_change((a,), (b,)).verdict for a, b in pairs)
        little, slower = ([step_change((a,), (_slower(b, by),)) for a, b in pairs] for by in (1.02, 1.05))
        holding = sum(change.low <= 0.02 <= change.high for change in little) / len(pairs)
        found = [change.verdict == SLOWER for change in slower]
        quiet = [one for one, pair in zip(found, pairs, strict=True) if max(map(spread_of, pair)) < QUIET]
        wrong = null[SLOWER] + null[FASTER]
        print(
            f"| {name} | {len(pairs)} | {wrong} | {null[SAME]} | {null[UNSURE]} | {holding:.1%} | "
            f"{sum(found) / len(found):.0%} | {sum(quiet)} of {len(quiet)} |"
        )
    print()


def _slower(run: StepSeries, by: float) -> StepSeries:
    return StepSeries(tuple(by * time for time in run.times))


def main() -> None:
    """Tables of verdicts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--layer-ms", type=float, default=12.5)
    parser.add_argument("--computing", action="store_true")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--read", type=Path, nargs="+", default=[])
    asked = parser.parse_args()
    if asked.read:
        judge_repeated()
        for path in asked.read:
            judge(json.loads(path.read_text(encoding="utf-8")), path.stem)
        return
    job = Job(asked.layer_ms / 1e3, asked.computing)
    found = measured(asked.runs, asked.steps, job, asked.busy)
    if asked.keep:
        rounded = {name: [[round(time, 6) for time in one] for one in runs] for name, runs in found.items()}
        asked.keep.write_text(json.dumps(rounded) + "\n", encoding="utf-8")
    judge(found, f"{'computing' if asked.computing else 'sleeping'}{', busy' if asked.busy else ''}")


if __name__ == "__main__":
    main()
