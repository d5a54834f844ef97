"""A GPU, or a CPU without one, as kernels are measured on it: its clock, random matrices, products and attention."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

from osfmodel.entities.errors import UsageError
from osfmodel.runtime.profiler.driving import default_device

Call = Callable[[], Any]
TYPES = {
    "bfloat16": "bfloat16",
    "float16": "float16",
    "float32": "float32",
    "tf32": "float32",
    "float8": "float8_e4m3fn",
}
"""Types of computation, and torch's names of their elements."""
AMPERE = 8
"""First major version of CUDA's capability with TF32."""
PROBE, TRIES = {"cpu": 512, "cuda": 4096}, 8
"""Edge of the products by which types are tried, and how often: one that takes longer than float32 has no units."""
AHEAD = {"products": 50_000, "attention": 400_000}
"""Cycles for each call that a GPU waits first, so that its processor is ahead and launches are not timed."""
COPIED, BLOCK = 1 << 28, 1 << 20
"""Bytes of a copy, which caches do not hold, and elements after which random ones are repeated."""
LAUNCHES, ROUNDS = 200, 9


class MeasuredDevice:
    """The device at hand, and what is timed on it. All calls raise RuntimeError as torch does.

    memory:          bytes
    multiprocessors: of a GPU; threads of a CPU
    """

    def __init__(self) -> None:
        import torch

        self.torch, self.device = torch, torch.device(default_device())
        self.gpu = self.device.type == "cuda"
        sheet = torch.cuda.get_device_properties(self.device) if self.gpu else None
        self.memory = int(sheet.total_memory) if sheet else _memory_of_host()
        self.multiprocessors = int(sheet.multi_processor_count) if sheet else torch.get_num_threads()
        self._random: dict[tuple[str, int], Any] = {}

    def random(self, dtype: str, place: int, count: int) -> Any:
        """A run of random elements, the same for all kernels of a type; two of these are kept, at places 0 and 1."""
        own = self._random.get((dtype, place))
        if own is None or len(own) < count:
            generator = self.torch.Generator(self.device).manual_seed(place)
            block = self.torch.randn(min(count, BLOCK), generator=generator, device=self.device)
            block = block.repeat(-(-count // len(block))).to(self.torch.bfloat16 if dtype == "float8" else block.dtype)
            self._random[dtype, place] = own = block.to(getattr(self.torch, TYPES[dtype]))
        return own[:count]

    def seconds(self, call: Call, calls: int = 1, kind: str = "products") -> float:
        """Seconds of a call, in the mean of so many in a row; on a GPU by its own clock."""
        if not self.gpu:
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            return (time.perf_counter() - begin) / calls
        first, last = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.torch.cuda._sleep(calls * AHEAD[kind])
        first.record()
        for _ in range(calls):
            call()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3 / calls

    def launches(self) -> tuple[float, float]:
        """Seconds of the smallest kernel, and seconds that the processor takes to launch it."""
        call, own, host = partial(self.torch.zeros(1, device=self.device).add_, 1), [], []
        for _ in range(ROUNDS + 1):
            own.append(self.seconds(call, LAUNCHES))
            begin = time.perf_counter()
            for _ in range(LAUNCHES):
                call()
            host.append((time.perf_counter() - begin) / LAUNCHES)
        return median(own[1:]), median(host[1:])

    def bandwidth(self) -> float:
        """Bytes per second that a large copy reads and writes together."""
        read = self.torch.ones(COPIED, dtype=self.torch.uint8, device=self.device)
        copy = partial(self.torch.zeros_like(read).copy_, read)
        return 2 * COPIED / median([self.seconds(copy) for _ in range(ROUNDS + 1)][1:])

    def product(self, dtype: str, operand: int, rows: int, inner: int, columns: int) -> Call:
        """A product as training has it; operand: 0 in forward, 1 and 2 for the gradients of inputs and of matrices."""
        torch = self.torch
        left, right = self.random(dtype, 0, rows * inner), self.random(dtype, 1, inner * columns)
        torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
        if dtype == "float8":
            one = torch.ones((), device=self.device)
            left, right = left.view(rows, inner), right.view(columns, inner).t()
            return lambda: torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        if not operand:
            return partial(torch.nn.functional.linear, left.view(rows, inner), right.view(columns, inner))
        left = left.view(rows, inner) if operand == 1 else left.view(inner, rows).t()
        return partial(torch.mm, left, right.view(inner, columns))

    def attention(self, dtype: str, operand: int, sizes: Sequence[float]) -> Call:
        """Attention in forward, or for operand 1 in backward after an untimed forward.

        sizes: tokens, heads, width of a head, part of the keys that is seen (below 1: causal), heads for each of keys
        """
        torch, (seen, sharing) = self.torch, sizes[3:]
        tokens, heads, width = map(int, sizes[:3])
        torch.set_float32_matmul_precision("highest")

        def inputs(place: int, count: int, of: int = 1) -> list[Any]:
            runs = self.random(dtype, place, of * tokens * count * width).view(of, 1, tokens, count, width)
            return [one.transpose(1, 2).detach().requires_grad_() for one in runs]

        all_of = [*inputs(0, heads), *inputs(1, int(heads // sharing), 2)]
        more = {"enable_gqa": True} if sharing > 1 else {}
        call = partial(torch.nn.functional.scaled_dot_product_attention, *all_of, is_causal=seen < 1, **more)
        if not operand:
            return call
        made = call()
        return partial(torch.autograd.grad, made, all_of, torch.ones_like(made), retain_graph=True)

    def types(self) -> list[str]:
        """The types whose products the device has units for."""
        known: dict[str, float] = {}
        for dtype in ("float32", *TYPES):
            if dtype == "tf32" and (not self.gpu or self.torch.cuda.get_device_capability()[0] < AMPERE):
                continue
            try:
                call = self.product(dtype, 0, *(PROBE[self.device.type],) * 3)
                known[dtype] = min(self.seconds(call) for _ in range(TRIES))
            except (RuntimeError, AttributeError, TypeError, ValueError):
                continue  # this torch, or the device, has no such products
        return [dtype for dtype in TYPES if known.get(dtype, math.inf) <= known["float32"]]


def _memory_of_host() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        raise UsageError(
            "osf bench --kernels: this system does not tell its memory: measure a GPU, or on Linux"
        ) from None
