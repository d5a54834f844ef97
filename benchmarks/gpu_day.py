"""A day on a GPU: what osf says of this machine against what it does. Run by benchmarks/gpu_day.sh.

    python benchmarks/gpu_day.py FOLDER [--small]      # ten minutes on an H100; --small: a minute on a CPU
    python benchmarks/gpu_day.py FOLDER --page         # FOLDER/gpu-day.md from what FOLDER has

Parts, each with its time, and what failed beside what did not:

kernels   ``osf bench --kernels``: kernels.json, which then stands for the GPU
profiles  ``osf profile`` of three models in eager PyTorch: compiled ones hide their layers, and are among the steps
steps     GPT-2s under FSDP2 in one process, eager and compiled: seconds of a step, and peaks of allocated and reserved
          memory, against ``osf scale`` with the words of the data sheet (of kernels.json on a CPU): also its verdict,
          and what its model of the allocator reserves against the segments of torch's snapshot
ranks     DDP and FSDP2 with one and two processes that share the GPU over gloo: memory of a rank; the time of two on
          one GPU is nothing that is predicted
traces    ``osf explain`` of what torch.profiler wrote of the two ranks of DDP

On a CPU the peak is that of torch's MemTracker, and nothing is reserved. Figures are in FOLDER/gpu-day.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from kernels import VOCABULARY, SmallModel  # noqa: E402

from osfmodel.entities.gpus import gpu_name  # noqa: E402
from tests.live.launching import free_port  # noqa: E402

MIB = 2**20
STEPS, WARM_UP = (8, 4) if torch.cuda.is_available() else (3, 1)
LIMIT = 240
"""Seconds after which processes are ended."""


class Step(NamedTuple):
    """A GPT-2, its micro-batch and its stack; sizes as SmallModel has them."""

    blocks: int
    width: int
    heads: int
    tokens: int
    samples: int
    stack: str = "eager"

    @property
    def name(self) -> str:
        """A word for it."""
        return "-".join(map(str, self))

    def words(self, folder: Path, gpu: str) -> str:
        """The workload in words, whose configuration is written into the folder."""
        config = {"model_type": "gpt2", "n_embd": self.width, "n_layer": self.blocks, "n_head": self.heads}
        path = folder / f"gpt2-{self.blocks}-{self.width}-{self.tokens}.json"
        path.write_text(json.dumps({**config, "n_positions": self.tokens, "vocab_size": VOCABULARY}), encoding="utf-8")
        dtype = "bf16" if gpu_here() else "fp32"
        return f"{path}:{gpu},seq{self.tokens},batch{self.samples},{dtype},stack={self.stack}"


LARGE = tuple(
    Step(*sizes, stack)
    for sizes in ((12, 768, 12, 1024, 16), (24, 1024, 16, 1024, 8), (36, 1280, 20, 2048, 4), (24, 2048, 16, 2048, 4))
    for stack in ("eager", "compile")
)
SMALL = (Step(2, 128, 4, 64, 4), Step(2, 256, 4, 128, 2))


def gpu_here() -> bool:
    """Whether there is a GPU."""
    return torch.cuda.is_available()


def small(batch_size: int = 8) -> tuple[nn.Module, Any, Any]:
    """A narrow GPT-2, as a factory of osf profile."""
    return SmallModel(4, 256, 4, 128), torch.randint(VOCABULARY, (batch_size, 128)), lambda loss: loss


def deep(batch_size: int = 8) -> tuple[nn.Module, Any, Any]:
    """A GPT-2 of usual size on a GPU, a deeper narrow one without."""
    model, tokens = (SmallModel(12, 768, 12, 1024), 1024) if gpu_here() else (SmallModel(8, 128, 4, 64), 64)
    return model, torch.randint(VOCABULARY, (batch_size, tokens)), lambda loss: loss


def images(batch_size: int = 16) -> tuple[nn.Module, Any, Any]:
    """Convolutions."""
    sizes = (3, 64, 128, 256) if gpu_here() else (3, 16, 32, 32)
    layers = [part for pair in pairwise(sizes) for part in (nn.Conv2d(*pair, 3), nn.ReLU())]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(sizes[-1], 10))
    batch = torch.randn(batch_size, 3, 64, 64), torch.randint(10, (batch_size,))
    return model, batch, nn.functional.cross_entropy


FACTORIES = ("small", "deep", "images")
MEMORY = ("allocated", "reserved", "segments")


def wrapped(model: nn.Module, way: str, step: Step) -> nn.Module:
    """The model under DDP or FSDP2, its blocks compiled where the stack says so."""
    if step.stack == "compile":
        for block in model.blocks:  # type: ignore[union-attr]
            block.compile()
    if way == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if gpu_here() else MixedPrecisionPolicy()
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def rank(folder: Path, way: str, step: Step, traced: bool) -> None:
    """One process of a job: rank 0 writes what it measured."""
    device = torch.device("cuda", 0) if gpu_here() else torch.device("cpu")
    single = os.environ["WORLD_SIZE"] == "1"
    dist.init_process_group("nccl" if gpu_here() and single else "gloo")
    torch.manual_seed(1)
    model = wrapped(SmallModel(*step[:4]).to(device), way, step)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = torch.randint(VOCABULARY, (step.samples, step.tokens), device=device)
    narrow = torch.autocast("cuda", torch.bfloat16) if gpu_here() and way == "ddp" else nullcontext()

    def train() -> float:
        begin = time.perf_counter()
        with narrow:
            loss = model(data)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if gpu_here():
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    for _ in range(WARM_UP):
        train()
    if gpu_here():
        torch.cuda.reset_peak_memory_stats()
    seconds = median(train() for _ in range(STEPS))
    found = {"seconds": seconds, **memory(model, optimizer, train)}
    if traced:
        activities = [torch.profiler.ProfilerActivity.CPU]
        activities += [torch.profiler.ProfilerActivity.CUDA] if gpu_here() else []
        schedule = torch.profiler.schedule(wait=1, warmup=1, active=3)
        path = folder / "traces" / f"rank{dist.get_rank()}.json"
        path.parent.mkdir(exist_ok=True)
        with torch.profiler.profile(
            activities=activities,
            schedule=schedule,
            record_shapes=True,
            on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
        ) as profiler:
            for _ in range(5):
                train()
                profiler.step()
    if dist.get_rank() == 0:
        place = folder / f"{way}-{os.environ['WORLD_SIZE']}-{step.name}.json"
        place.write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # models hold the group until the exit, at which gloo may abort


def memory(model: nn.Module, optimizer: torch.optim.Optimizer, train: Callable[[], float]) -> dict[str, float]:
    """Peaks in bytes; of reserved segments what the allocator's snapshot has as well, and the largest free block."""
    if gpu_here():
        segments = torch.cuda.memory._snapshot()["segments"]
        free = [block["size"] for one in segments for block in one["blocks"] if block["state"] == "inactive"]
        return {
            "allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
            "segments": sum(one["total_size"] for one in segments),
            "largest_free": max(free, default=0),
        }
    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    with tracker:
        train()
    return {"allocated": tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]}


def job(folder: Path, way: str, step: Step, world: int, traced: bool = False) -> dict[str, float]:
    """Measurements of ``world`` processes. Raises RuntimeError with the last line of one that failed."""
    words = [sys.executable, __file__, str(folder), "--rank", way, "--step", step.name, *["--traced"] * traced]
    places = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world)}
    started = [
        subprocess.Popen(words, env={**places, "RANK": str(one)}, stderr=subprocess.PIPE, text=True)
        for one in range(world)
    ]
    try:
        said = [process.communicate(timeout=LIMIT)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    for process, text in zip(started, said, strict=True):
        if process.returncode:
            raise RuntimeError(next(iter(reversed(text.strip().splitlines())), f"exit code {process.returncode}"))
    return json.loads((folder / f"{way}-{world}-{step.name}.json").read_text(encoding="utf-8"))


def osf(*words: str) -> str:
    """The output of an osf command. Raises RuntimeError with its last line where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "osfmodel", *words], capture_output=True, text=True, check=False, cwd=ROOT, timeout=LIMIT
    )
    if done.returncode:
        raise RuntimeError(next(iter(reversed(done.stderr.strip().splitlines())), f"exit code {done.returncode}"))
    return done.stdout


def said_of(folder: Path, gpu: str, way: str, step: Step, world: int) -> Mapping[str, Any]:
    """The point that ``osf scale`` says of a job."""
    cluster = "ring:10us,100Gbps"  # of one process, or for memory alone
    words = step.words(folder, gpu)
    plan = "fsdp2" if way == "fsdp2" else "ddp"
    said = osf("scale", words, "--cluster", cluster, "--workers", str(world), "--plan", plan, "--json")
    point: Mapping[str, Any] = json.loads(said)["points"][0]
    return point


def compared(folder: Path, gpu: str, way: str, step: Step, world: int, traced: bool = False) -> dict[str, Any]:
    """Measured and said of a job, as one row."""
    found = job(folder, way, step, world, traced)
    point = said_of(folder, gpu, way, step, world)
    band = point.get("error_band") or {}
    return {
        "way": way,
        "world": world,
        "step": step.name,
        "measured": found,
        "said": {
            "seconds": point["step_time_s"],
            "low": band.get("low_s"),
            "high": band.get("high_s"),
            "allocated": point.get("peak_memory_bytes"),
            "reserved": point.get("reserved_memory_bytes"),
            "segments": point.get("reserved_memory_bytes"),
            "fits": point.get("fits"),
        },
    }


def parts(folder: Path, few: bool) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The parts of a day by name."""
    steps, surface = SMALL if few else LARGE, folder / "kernels.json"
    sheet = gpu_name(torch.cuda.get_device_name()) if gpu_here() else ""
    gpu = sheet or str(surface)

    def kernels() -> str:
        osf("bench", "--kernels", "--seconds", "5" if few else "60", "-o", str(surface))
        return str(json.loads(surface.read_text(encoding="utf-8"))["source"])

    yield "kernels", kernels
    for name in FACTORIES:

        def profiled(name: str = name) -> float:
            path = folder / f"profile-{name}.json"
            path.unlink(missing_ok=True)
            amount = ("--steps", "3", "--warm-up", "1") if few else ()
            osf("profile", f"benchmarks.gpu_day:{name}", *amount, "-o", str(path))
            layers = json.loads(path.read_text(encoding="utf-8"))["layers"]
            return float(sum(one["forward_time_s"] + one["backward_time_s"] for one in layers))

        yield f"profile {name}", profiled
    for step in steps:
        yield f"step {step.name}", lambda step=step: compared(folder, gpu, "fsdp2", step, 1)
    for way, world in (("ddp", 1), ("ddp", 2), ("fsdp2", 2)):
        asked = (way, steps[0], world, way == "ddp")
        yield f"ranks {way} {world}", lambda asked=asked: compared(folder, gpu, *asked)
    yield "traces", lambda: osf("explain", *map(str, sorted((folder / "traces").glob("rank*.json")))).rstrip()


def day(folder: Path, few: bool) -> dict[str, Any]:
    """Run all parts; one that fails leaves the reason."""
    found: dict[str, Any] = {"machine": machine(), "parts": {}}
    for name, part in parts(folder, few):
        began = time.monotonic()
        try:
            row = {"found": part()}
        except Exception as error:  # the day goes on
            row = {"failed": f"{type(error).__name__}: {error}"}
        row["took_s"] = round(time.monotonic() - began, 1)
        print(f"{name}: {row.get('failed', 'done')} ({row['took_s']} s)", flush=True)
        found["parts"][name] = row
        (folder / "gpu-day.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def machine() -> str:
    """The device and the software."""
    device = torch.cuda.get_device_name() if gpu_here() else f"{platform.machine()} CPU, {os.cpu_count()} cores"
    return f"{device}, torch {torch.__version__}, CUDA {torch.version.cuda or '-'}, Python {platform.python_version()}"


def page(found: Mapping[str, Any]) -> Iterator[str]:
    """Lines of the page."""
    yield from ("# A day on a GPU", "", f"`benchmarks/gpu_day.sh` wrote this. {found['machine']}.", "")
    memory = " | ".join(f"{kind} | error" for kind in MEMORY)
    yield f"| processes | step | measured | said | error | in band | {memory} | fits |"
    yield "|---" * (7 + 2 * len(MEMORY)) + "|"
    parts_of = found["parts"]
    for row in (one.get("found") for name, one in parts_of.items() if name.startswith(("step", "ranks"))):
        if row:
            yield f"| {row['world']} {row['way']} | {row['step']} | {' | '.join(cells(row))} |"
    yield ""
    yield "A step is blocks, width, heads, tokens, samples and stack of a GPT-2 with AdamW. Two share the device."
    yield "Segments are those of torch's snapshot, against what osf models as reserved. All of these ran."
    for name, one in parts_of.items():
        if name.startswith("profile") and "found" in one:
            yield f"\n`osf {name}`: {one['found'] * 1e3:.3g} ms of forward and backward."
    if "found" in parts_of.get("kernels", {}):
        yield f"\n`osf bench --kernels`: {parts_of['kernels']['found']}."
    if "found" in parts_of.get("traces", {}):
        yield from (
            "",
            "`osf explain` of the two ranks of DDP:",
            "",
            "```",
            parts_of["traces"]["found"].rstrip(),
            "```",
        )
    yield from (f"\n{name} failed: {one['failed']}" for name, one in parts_of.items() if "failed" in one)


def cells(row: Mapping[str, Any]) -> list[str]:
    """Time, its error and band, and both kinds of memory with theirs."""
    measured, said = row["measured"], row["said"]
    told = row["world"] == 1
    low, high = said["low"], said["high"]
    inside = "-" if not told or low is None else "yes" if low <= measured["seconds"] <= high else "no"
    off = f"{said['seconds'] / measured['seconds'] - 1:+.0%}" if told else "-"
    found = [f"{measured['seconds'] * 1e3:.3g} ms", f"{said['seconds'] * 1e3:.3g} ms" if told else "-", off, inside]
    for kind in MEMORY:
        own, other = measured.get(kind), said.get(kind)
        found += [f"{own / MIB:,.0f} MiB" if own else "-", f"{other / own - 1:+.0%}" if own and other else "-"]
    return [*found, said.get("fits") or "-"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--page", action="store_true")
    for name in ("--rank", "--step"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--traced", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    folder = asked.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if asked.rank:
        *sizes, stack = asked.step.split("-")
        rank(folder, asked.rank, Step(*map(int, sizes), stack), asked.traced)
    kept = folder / "gpu-day.json"
    found = json.loads(kept.read_text(encoding="utf-8")) if asked.page else day(folder, asked.small)
    (folder / "gpu-day.md").write_text("\n".join(page(found)) + "\n", encoding="utf-8")
    failed = [name for name, one in found["parts"].items() if "failed" in one]
    raise SystemExit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
