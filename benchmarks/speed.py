"""How fast osfmodel is, against what we aim for; with ``--before`` beside an older checkout:

    python benchmarks/speed.py [--before DIR] [--only WORD ...] [--repeats 5] [--calculon DIR] [--json]

Every figure is the median of processes of its own, with the least and the most; those before and after come by turns,
so that a drift of the machine touches both. Commands are whole: seconds, and MB of their largest resident set. Run it
by itself on a quiet machine; a miss is printed as a miss. ``--calculon``: a checkout of calculon-ai/calculon, which
models the training of language models; its predictions are timed on layouts that ours are timed on, and else left out.
All takes some 15 minutes, and says on stderr which row it is at.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import osfmodel as osf
from osfmodel.counting.groups import Parallelism
from osfmodel.entities.workload import Gradients
from osfmodel.planning.scaling.replicas import replica_workload
from osfmodel.planning.scaling.scale import ScaleOptions, scale
from osfmodel.solve import exact as merge
from osfmodel.targets import CONFIG_TARGETS

ROOT = Path(__file__).resolve().parents[1]
LARGEST = ("nasnetalarge-pipedream", "--cluster", "v100-10gbe", "--workers", "32")
LLAMA = ("llama3-8b:h100,seq4096,batch1,bf16", "nccl:h100x8,400Gbps,ib")
BATCHES, GPUS = [1, 2, 3, 4, 6, 8, 12, 16], [8 * count for count in range(1, 17)]


class Row(NamedTuple):
    """A figure, and what we aim for in its unit: seconds of a command of osfmodel, or a function of FIGURES."""

    name: str
    command: tuple[str, ...] = ()
    unit: str = "s"
    aim: float | None = None


def rate(one: Callable[[], Any], count: int) -> float:
    """Calls per second of a core, after some that do not count."""
    for _ in range(10):
        one()
    begun = time.process_time()
    for _ in range(count):
        one()
    return count / (time.process_time() - begun)


def predictions(workload: str, cluster: str, plan: str, workers: int, count: int) -> float:
    """Predictions of a named plan per second."""
    one, where = osf.load_workload(workload), osf.load_cluster(cluster)
    made = plan if plan != "ddp" else osf.predict(one, where, plan, workers).plan
    return rate(lambda: osf.predict(one, where, made, workers), count)


def swept(plans: list[str]) -> float:
    """Points of a sweep per second of a core: llama3-8b at several batch sizes, on several numbers of GPUs."""
    grid: dict[str, Any] = {"workloads": LLAMA[0], "clusters": LLAMA[1], "workers": GPUS}
    list(osf.sweep({**grid, "workers": [8], "plans": plans}))
    begun = time.process_time()
    found = osf.sweep({**grid, "plans": plans, "batch_sizes": BATCHES}).held
    return len(found) / (time.process_time() - begun)


def exact(count: int) -> float:
    """Milliseconds of the optimal plan of so many tensors, ResNet-50's repeated, under a table of 20 sizes."""
    known, cost = osf.load_workload("resnet50-v100"), osf.cost_of(osf.load_cluster("azure-a100-hdr"), 64)
    steps = np.diff([known.forward_time, *known.gradients.ready_times])
    ready = np.resize(steps, count).cumsum()
    times = tuple((ready * (0.0956 / ready[-1])).tolist())
    sizes = np.resize(np.array(known.gradients.sizes, dtype=float), count)
    whole = np.maximum(4, sizes * (100e6 / sizes.sum()) // 4 * 4).astype(int).tolist()
    names = tuple(f"t{number}" for number in range(count))
    gradients = Gradients(names, times, tuple(whole), ("float32",) * count, times)
    return 1e3 / rate(lambda: merge.optimal_ends(gradients, cost), 10)


LAYOUTS = [(tensor, pipeline, micro) for tensor in (1, 2, 4, 8) for pipeline in (4, 8, 16) for micro in (1, 2, 4)]
"""GPUs of a tensor- and of a pipeline-parallel group, and samples of a micro-batch: gpt3-175B on 1,024 A100."""


GPT3 = {"model_type": "gpt2", "n_embd": 12288, "n_layer": 96, "n_head": 96, "n_positions": 2048, "vocab_size": 51200}


def ours_beside_calculon() -> float:
    """Our predictions of LAYOUTS per second, each with memory, as ``osf scale`` makes them."""
    where = osf.load_cluster("nccl:a100x8,200Gbps,ib")

    def one(layout: tuple[int, int, int]) -> None:
        tensor, pipeline, micro = layout
        groups = Parallelism(tensor=tensor, pipeline=pipeline)
        workload = replica_workload(f"{file.name}:a100,seq2048,batch{micro},bf16,ac=full", where, groups)
        scale(workload, where, [1024], ScaleOptions(plans=("zero-1",), groups=groups))

    turns = cycle(LAYOUTS)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(GPT3, file)
        file.flush()
        return rate(lambda: one(next(turns)), len(LAYOUTS))


def calculon(folder: str) -> float:
    """Calculon's predictions of LAYOUTS per second; of the 36 it refuses 3 for lack of memory, which count as well."""
    sys.path.insert(0, folder)
    llm, read = import_module("calculon.llm").Llm, import_module("calculon.io").read_json_file
    files = ("models/gpt3-175B.json", "systems/a100_80g.json", "examples/3072_t4_p64_d12_mbs4_full.json")
    model, system, example = (read(str(Path(folder, name))) for name in files)
    where, silent = import_module("calculon.system").System(system), logging.getLogger("calculon")

    def one(layout: tuple[int, int, int]) -> None:
        tensor, pipeline, micro = layout
        data = 1024 // (tensor * pipeline)
        groups = {"num_procs": 1024, "tensor_par": tensor, "pipeline_par": pipeline, "data_par": data}
        asked = {**example, **groups, "batch_size": 1024, "microbatch_size": micro}
        found = llm(llm.Application(model), silent)
        try:
            found.compile(where, llm.Execution.from_json(asked))
            found.run(where)
        except llm.Error:
            return

    turns = cycle(LAYOUTS)
    return rate(lambda: one(next(turns)), len(LAYOUTS))


def start_up() -> float:
    """Seconds of a whole ``osf predict`` over those of importing numpy, by turns."""
    subject = ("predict", "resnet50-v100", "--cluster", "v100-56gib", "--workers", "16")
    commands = {"predict": ["-P", "-m", "osfmodel", *subject], "numpy": ["-P", "-c", "import numpy"]}
    found: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(5):
        for name, command in commands.items():
            begun = time.perf_counter()
            subprocess.run([sys.executable, *command], check=True, capture_output=True)
            found[name].append(time.perf_counter() - begun)
    return statistics.median(found["predict"]) / statistics.median(found["numpy"])


FIGURES: dict[str, tuple[Callable[[], float], str, float | None]] = {
    **{
        f"predictions of {plan}, llama3-8b, 64 workers": (partial(predictions, *LLAMA, plan, 64, 200), "/s", 500.0)
        for plan in ("fsdp2", "hsdp")
    },
    "predictions of a plain plan, 161 tensors": (
        partial(predictions, "resnet50-v100", "v100-10gbe", "ddp", 16, 2000), "/s", 3000.0
    ),
    "sweep of fsdp2 and hsdp, 256 points": (partial(swept, ["fsdp2", "hsdp"]), "/s", 500.0),
    "sweep of zero-1, zero-2 and zero-3, 384 points": (partial(swept, ["zero-1", "zero-2", "zero-3"]), "/s", 500.0),
    **{
        f"exact plan of {count} tensors": (partial(exact, count), "ms", aim)
        for count, aim in ((161, 1.0), (1000, 8.0), (5000, 60.0))
    },
    "osf predict over import numpy": (start_up, "x", 2.8),
    "36 layouts of gpt3-175b, 1,024 A100": (ours_beside_calculon, "/s", None),
}  # fmt: skip


def rows() -> list[Row]:
    """All figures but Calculon's."""
    scales = {
        "llama3-70b, 64..1024": (("64..1024", "--tp", "8", "--accumulate", "8"), 1.5),
        "llama3-405b, 1,024 GPUs, all strategies": (("1024", "--tp", "8"), 2.0),
    }
    rules = ("--split", "--forward-overlap", "--split --forward-overlap", "--channels 2")
    targets = [*CONFIG_TARGETS, "any", *(f"runtime {words}" for words in rules)]
    named = {name: f"{name.partition(',')[0]}:h100,seq4096,batch1,bf16" for name in scales}
    return [
        *(Row(f"tune --for {said}", ("tune", *LARGEST, "--for", *said.split()), aim=2.0) for said in targets),
        *(
            Row(f"scale {name}", ("scale", named[name], "--cluster", LLAMA[1], "--workers", *options), aim=aim)
            for name, (options, aim) in scales.items()
        ),
        *(Row(name, (), unit, aim) for name, (_, unit, aim) in FIGURES.items()),
    ]


def measured(row: Row, tree: Path, environment: dict[str, str], folder: str = "") -> tuple[float, float]:
    """The figure of a row in a checkout, and MB of the largest resident set. Raises SystemExit where it fails."""
    own = [__file__, "--figure", row.name, *(["--calculon", folder] if folder else [])]
    words = ["-P", "-m", "osfmodel", *row.command] if row.command else ["-P", *own]
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as wrong:
        begun = time.perf_counter()
        here = {**environment, "PYTHONPATH": str(tree)}
        running = subprocess.Popen([sys.executable, *words], stdout=said, stderr=wrong, env=here)
        _, status, used = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - begun
        said.seek(0)
        wrong.seek(0)
        if running.returncode:
            raise SystemExit(f"{row.name} in {tree}: {wrong.read().decode().strip().splitlines()[-1:]}")
        return (seconds if row.command else float(said.read()), used.ru_maxrss / 1024)


def main() -> None:
    """Measure the rows, and print each beside its aim."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, metavar="DIR", help="a checkout of an older commit")
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD", help="rows with one of these in their names")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--calculon", default="", metavar="DIR", help="a checkout of Calculon")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--figure", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.figure:
        print(calculon(asked.calculon) if asked.calculon else FIGURES[asked.figure][0]())
        return
    trees = {**({"before": asked.before.resolve()} if asked.before else {}), "after": ROOT}
    chosen = [(row, "", trees) for row in rows() if any(word in row.name for word in asked.only)]
    if asked.calculon:
        beside = Row("the same layouts by Calculon", unit="/s")
        chosen.append((beside, str(Path(asked.calculon).resolve()), {"after": ROOT}))
    else:
        print("Calculon is left out: give --calculon DIR", file=sys.stderr)
    found = []
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for row, folder, where in chosen:
            print(row.name, file=sys.stderr, flush=True)
            runs: dict[str, list[tuple[float, float]]] = {name: [] for name in where}
            for repeat in range(asked.repeats + 1):
                for name, tree in where.items():
                    one = measured(row, tree, environment, folder)
                    runs[name] += [one] if repeat else []  # the first compiles modules
            figures = {name: spread(values, row) for name, values in runs.items()}
            found.append({"row": row.name, "unit": row.unit, "aim": row.aim, **figures})
            if not asked.json:
                print(line(found[-1]), flush=True)
    if asked.json:
        print(json.dumps(found, indent=1))


def spread(runs: list[tuple[float, float]], row: Row) -> dict[str, float]:
    """Median, least and most of a figure; MB of a command."""
    values = [value for value, _ in runs]
    ends = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return {**ends, **({"mb": max(size for _, size in runs)} if row.command else {})}


def line(found: dict[str, Any]) -> str:
    """A row for people; of commands the aim for memory is 200 MB."""
    said, aim = [], found["aim"]
    for name in ("before", "after"):
        if one := found.get(name):
            size = f", {one['mb']:.0f} MB" if "mb" in one else ""
            ends = f"({one['least']:.3g} to {one['most']:.3g})"
            said.append(f"{name} {one['median']:.4g} {found['unit']} {ends}{size}")
    value = found["after"]["median"]
    met = aim is None or (value >= aim if found["unit"] == "/s" else value <= aim)
    met &= "mb" not in found["after"] or not found["row"].startswith("tune") or found["after"]["mb"] <= 200
    verdict = "" if aim is None else f"  aim {aim:g}: {'met' if met else 'MISSED'}"
    return f"{found['row']:<48} {'; '.join(said)}{verdict}"


if __name__ == "__main__":
    main()
