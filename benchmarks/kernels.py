"""Errors of ``osf bench --kernels`` on this machine: kernels of sizes between its nodes, and steps of small models.

    python benchmarks/kernels.py [--surface my-gpu.json] [--seconds 60] [--shapes 60] [--steps 5] [--processor-time]

Measures a surface, or reads one; then random sizes that are no nodes, by turns, against what it says of them; then
forward and backward of GPT-2s with few blocks in eager PyTorch against words with that surface. On a CPU that others
use too, ``OMP_NUM_THREADS=1`` and ``--processor-time`` leave out when its one thread had to wait.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from osfmodel.counting import load_workload  # noqa: E402
from osfmodel.counting.kernels import KernelTimes, attention_work, kernels_in, product_work  # noqa: E402
from osfmodel.runtime.bench.device import MeasuredDevice  # noqa: E402
from osfmodel.runtime.bench.surface import KernelKind, KernelSample, measured_surface  # noqa: E402

SEED, ROUNDS = 45, 7
LARGEST = {"cpu": 4e9, "cuda": 1e13}
"""Most operations of a kernel that is left out."""
MODELS = ((2, 256, 4, 128, 8), (4, 512, 8, 256, 4), (4, 512, 8, 512, 4), (2, 1024, 16, 512, 2), (4, 1024, 8, 1024, 1))
"""Blocks, width, heads, tokens, and samples."""
VOCABULARY = 8192


def between(draw: random.Random, low: int, high: int) -> int:
    """A multiple of 8, even in logarithms."""
    return 8 * round(math.exp(draw.uniform(math.log(low), math.log(high))) / 8)


def left_out(device: MeasuredDevice, kernels: KernelTimes, count: int) -> Iterator[tuple[KernelSample, float]]:
    """Random kernels of each kind, and the seconds that the surface says."""
    draw, most = random.Random(SEED), LARGEST[device.device.type]
    for dtype in kernels.products:
        for operand in range(1 if dtype == "float8" else 3):
            for _ in range(count // 3):
                work = (math.inf, 0.0)
                while work[0] > most:
                    sizes = [16 * (between(draw, 64, 8192) // 16) for _ in range(3)]
                    work = product_work(*sizes, dtype)
                call = device.product(dtype, operand, *sizes)
                sample = KernelSample(KernelKind("products", dtype, operand), (), work, lambda call=call: call)
                yield sample, kernels.product(*sizes, dtype, operand)
    for dtype in kernels.attention:
        for _ in range(count // 3):
            work = (math.inf, 0.0)
            while work[0] > most:
                tokens, seen, sharing = between(draw, 128, 4096), draw.choice((0.5, 1.0)), draw.choice((1, 2, 4))
                sizes = (tokens, sharing * draw.randint(1, 24), draw.choice((64, 80, 96, 128)), seen, sharing)
                work = attention_work(*sizes[:3], tokens * seen, dtype)
            table = kernels.attending(dtype)
            forward = kernels.law(*work, dtype) * math.exp(table.at(sizes))
            for operand, said in enumerate((forward, forward * table.again(sizes, math.nan))):
                call = device.attention(dtype, operand, sizes)
                yield KernelSample(KernelKind("attention", dtype, operand), (), work, lambda call=call: call), said


def misses(device: MeasuredDevice, kernels: KernelTimes, count: int) -> None:
    """Print median and 95 % quantile of |said / measured - 1| by kind."""
    pairs = list(left_out(device, kernels, count))
    for _ in range(ROUNDS):
        for sample, _ in pairs:
            sample.take(device)
    by_kind: dict[KernelKind, list[float]] = {}
    for sample, said in pairs:
        by_kind.setdefault(sample.kind, []).append(said / sample.time - 1)
    for kind, errors in by_kind.items():
        print(
            f"{kind.kind:10s} {kind.dtype:9s} {('forward', 'backward', 'backward, matrix')[kind.operand]:17s}", end=""
        )
        print(f"{len(errors):4d} sizes: {shown(errors)}", flush=True)
    print(f"all {shown([error for errors in by_kind.values() for error in errors])}")


def shown(errors: Sequence[float]) -> str:
    """Median and 95 % quantile of sizes, and the median with its sign."""
    sizes = [abs(error) for error in errors]
    return f"median {median(sizes):.1%}, p95 {quantiles(sizes, n=20)[-1]:.1%}, bias {median(errors):+.1%}"


class Block(torch.nn.Module):
    """A block of GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, nn = heads, torch.nn
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.outputs = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: Any) -> Any:
        batch, tokens, width = hidden.shape
        three = self.inputs(self.first(hidden)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(*three, is_causal=True)
        hidden = hidden + self.outputs(mixed.transpose(1, 2).reshape(batch, tokens, width))
        inner = torch.nn.functional.gelu(self.up(self.second(hidden)), approximate="tanh")
        return hidden + self.down(inner)


class SmallModel(torch.nn.Module):
    """GPT-2 with few blocks, and its loss."""

    def __init__(self, blocks: int, width: int, heads: int, tokens: int) -> None:
        super().__init__()
        self.words, self.places = torch.nn.Embedding(VOCABULARY, width), torch.nn.Embedding(tokens, width)
        self.blocks = torch.nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.last = torch.nn.LayerNorm(width)

    def forward(self, samples: Any) -> Any:
        places = torch.arange(samples.shape[1], device=samples.device)
        hidden = self.last(self.blocks(self.words(samples) + self.places(places)))
        logits = (hidden @ self.words.weight.t().to(hidden.dtype)).float()
        return torch.nn.functional.cross_entropy(logits.view(-1, VOCABULARY), samples.view(-1))


def step_time(device: MeasuredDevice, sizes: tuple[int, ...], dtype: str, steps: int) -> float:
    """Seconds of forward and backward: the median of steps."""
    *of_model, samples = sizes
    model = SmallModel(*of_model).to(device.device, getattr(torch, dtype))
    data = torch.randint(VOCABULARY, (samples, of_model[-1]), device=device.device)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(data).backward()
        if device.gpu:
            torch.cuda.synchronize()

    times = []
    for _ in range(steps + 2):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return median(times[2:])


def models(device: MeasuredDevice, surface: str, steps: int) -> None:
    """Print predicted and measured steps of small models."""
    for dtype, short in (("float32", "fp32"), ("bfloat16", "bf16")):
        if dtype not in kernels_in(Path(surface)).products:
            continue
        for blocks, width, heads, tokens, samples in MODELS:
            config = {"model_type": "gpt2", "n_embd": width, "n_layer": blocks, "n_head": heads, "n_positions": tokens}
            with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
                json.dump({**config, "vocab_size": VOCABULARY}, file)
            said = load_workload(f"{file.name}:{surface},seq{tokens},batch{samples},{short}")
            predicted = said.forward_time + said.backward_time
            measured = step_time(device, (blocks, width, heads, tokens, samples), dtype, steps)
            print(f"{short} {blocks} blocks of {width:4d}, {samples} x {tokens:4d} tokens: measured", end=" ")
            print(
                f"{measured * 1e3:7.1f} ms, predicted {predicted * 1e3:7.1f} ms, ratio {predicted / measured:.2f}",
                end="",
            )
            print(f", band {said.doubt:.0%}", flush=True)
            Path(file.name).unlink()


def main() -> None:
    """Measure, and print what is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--surface")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--shapes", type=int, default=60)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--processor-time", action="store_true")
    asked = parser.parse_args()
    if asked.processor_time:
        time.perf_counter = time.process_time  # of MeasuredDevice too
    surface = asked.surface or tempfile.mkstemp(suffix=".json")[1]
    if not asked.surface:
        Path(surface).write_text(json.dumps(measured_surface(asked.seconds, print, print)), encoding="utf-8")
    device, kernels = MeasuredDevice(), kernels_in(Path(surface))
    print(kernels.source)
    misses(device, kernels, asked.shapes)
    models(device, surface, asked.steps)


if __name__ == "__main__":
    main()
