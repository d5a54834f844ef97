"""How fast osfmodel is. Run it by itself on a quiet machine:

    python benchmarks/speed.py [--repeats 7] [--json]

It takes about 20 seconds on two quiet cores, more on busy ones, and says on stderr which round of what it is at. Each
figure is the median of repeats, with the smallest and the largest. The parts are interleaved, so that a drift of
the machine touches all alike. Whole-process figures are ratios to ``python -c "import numpy"`` measured in turn with
them, with bytecode compiled as in an installed package: the warm-up compiles it. Targets are what we aim for on two
cores of a shared machine; a miss is printed as a miss.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np

import osfmodel as osf
from osfmodel.cost import Cost
from osfmodel.entities.workload import Gradients
from osfmodel.solve.exact import merge

LENGTHS = (161, 1000, 5000)
AIMS_MS = {161: 1.0, 1000: 10.0, 5000: 60.0, 100_000: 500.0}


def stretched(count: int, seconds: float, total_bytes: float) -> Gradients:
    """ResNet-50's gradients repeated to ``count`` tensors, scaled to the given backward time and bytes."""
    base = osf.load_workload("resnet50-v100")
    copies = -(-count // len(base.gradients))
    steps = np.diff([base.forward_time, *base.gradients.ready_times])
    ready = np.cumsum(np.tile(steps, copies)[:count])
    sizes = np.tile(np.array(base.gradients.sizes, dtype=float), copies)[:count]
    sizes = np.maximum(4, sizes * (total_bytes / sizes.sum()) // 4 * 4).astype(int)
    times = tuple((ready * (seconds / ready[-1])).tolist())
    names = tuple(f"t{i}" for i in range(count))
    return Gradients(names, times, tuple(sizes.tolist()), ("float32",) * count, times)


def interleaved(what: str, parts: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each part, all parts once per round, after one that does not count; says each round on stderr."""
    seconds: dict[str, list[float]] = {name: [] for name in parts}
    for repeat in range(repeats + 1):
        counted = f"round {repeat} of {repeats}" if repeat else "warm-up"
        print(f"{what}: {counted}", file=sys.stderr, flush=True)
        for name, part in parts.items():
            start = time.perf_counter()
            part()
            if repeat:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def exact_plans(repeats: int) -> list[dict[str, object]]:
    """Gradients to bucket ends, under measured tables and an affine cost.

    ``optimum`` finds the least time, ``plan`` also few and early buckets that attain it. The backlog regime is the
    hardest for tables: ten times the bytes, so that the channel never catches up and no choice can be ruled out.
    """
    regimes: dict[str, tuple[Cost, tuple[int, ...]]] = {
        "table azure-a100-hdr, 64 workers (20 sizes)": (osf.cost_of(osf.load_cluster("azure-a100-hdr"), 64), LENGTHS),
        "table aws-10g-pair, 2 workers (29 sizes)": (osf.cost_of(osf.load_cluster("aws-10g-pair"), 2), LENGTHS),
        "table k80-10gbe-osu, 8 workers (256 sizes)": (osf.cost_of(osf.load_cluster("k80-10gbe-osu"), 8), LENGTHS),
        "table k80-10gbe-osu, 8 workers, backlog": (osf.cost_of(osf.load_cluster("k80-10gbe-osu"), 8), LENGTHS),
        "affine v100-10gbe, 16 workers": (osf.cost_of(osf.load_cluster("v100-10gbe"), 16), (*LENGTHS, 100_000)),
    }
    parts: dict[str, Callable[[], object]] = {}
    for regime, (cost, lengths) in regimes.items():
        for count in lengths:
            gradients = stretched(count, 0.0956, 1e9 if "backlog" in regime else 100e6)
            problem = merge.MergeProblem.of(gradients, osf.Limits())
            parts[f"{regime} | {count} | optimum"] = lambda problem=problem, cost=cost: merge.sweep(problem, cost)
            parts[f"{regime} | {count} | plan"] = lambda g=gradients, cost=cost: merge.optimal_ends(g, cost)
    rows = []
    for name, seconds in interleaved("exact plans", parts, repeats).items():
        regime, count, what = name.split(" | ")
        aim = AIMS_MS[int(count)]
        milliseconds = [second * 1e3 for second in seconds]
        rows.append({"part": f"{what}, {count} tensors, {regime}", **spread(milliseconds), "unit": "ms", "aim": aim})
    return rows


def predictions(repeats: int) -> list[dict[str, object]]:
    """Predictions per second, plan given: the timeline alone, and with all that is computed when it is read."""
    workload, cluster = osf.load_workload("resnet50-v100"), osf.load_cluster("v100-10gbe")
    plan = osf.predict(workload, cluster, "ddp", 16).plan

    def hundred(read: tuple[str, ...] = ()) -> None:
        for _ in range(100):
            prediction = osf.predict(workload, cluster, plan, 16)
            for name in read:
                getattr(prediction, name)

    parts = {
        "predictions of a given plan, 161 tensors": hundred,
        "with bound, error band, warnings and frameworks": lambda: hundred(("gap", "band", "warnings", "runs_on")),
    }
    return [
        {"part": name, **spread([100 / second for second in seconds]), "unit": "per second", "aim": aim}
        for (name, seconds), aim in zip(interleaved("predictions", parts, repeats).items(), (2000, None), strict=True)
    ]


def processes(repeats: int) -> list[dict[str, object]]:
    """Whole processes as multiples of importing numpy, pair by pair."""
    subject = ["resnet50-v100", "--cluster", "v100-56gib", "--workers", "16"]
    commands = {
        "numpy": [sys.executable, "-c", "import numpy"],
        "osf predict (table)": [sys.executable, "-m", "osfmodel", "predict", *subject],
        "osf predict --json": [sys.executable, "-m", "osfmodel", "predict", *subject, "--json"],
        "osf tune --for ddp": [sys.executable, "-m", "osfmodel", "tune", *subject],
        "osf tune --for horovod": [sys.executable, "-m", "osfmodel", "tune", *subject, "--for", "horovod"],
    }
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else our modules are compiled each time, and numpy's are not
        parts = {
            name: lambda command=command: subprocess.run(command, check=True, capture_output=True, env=environment)
            for name, command in commands.items()
        }
        seconds = interleaved("whole processes", parts, max(repeats, 9))
    rows = []
    for name in list(commands)[1:]:
        ratios = [mine / base for mine, base in zip(seconds[name], seconds["numpy"], strict=True)]
        aim = 3.0 if "predict" in name else None
        rows.append({"part": f"{name}, whole process", **spread(ratios), "unit": "x import numpy", "aim": aim})
    return rows


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def growth(rows: list[dict[str, object]]) -> list[str]:
    """Exponent of L between the shortest and the longest problem of each regime: 1 is linear, 2 is quadratic."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        what, count, regime = str(row["part"]).split(", ", 2)
        if what == "optimum":
            found.setdefault(regime, {})[int(count.split()[0])] = float(row["median"])  # type: ignore[arg-type]
    lines = []
    for regime, times in found.items():
        low, high = min(times), max(times)
        exponent = np.log(times[high] / times[low]) / np.log(high / low)
        lines.append(f"growth of the optimum with L, {regime}: L^{exponent:.2f} from {low} to {high} tensors")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    plans = exact_plans(arguments.repeats)
    rows = [*plans, *predictions(arguments.repeats), *processes(arguments.repeats)]
    if arguments.json:
        print(json.dumps({"rows": rows, "growth": growth(plans)}, indent=1))
        return
    for row in rows:
        median, least, most = (f"{row[key]:.4g}" for key in ("median", "least", "most"))
        verdict = ""
        if row["aim"] is not None:
            more = row["unit"] == "per second"
            met = row["median"] >= row["aim"] if more else row["median"] <= row["aim"]  # type: ignore[operator]
            verdict = f"  aim {row['aim']:g}: {'met' if met else 'MISSED'}"
        print(f"{row['part']:<75} {median:>8} {row['unit']} ({least} to {most}){verdict}")
    print(*growth(plans), sep="\n")


if __name__ == "__main__":
    main()
