"""Measure the kernels of the device at hand for words that name their file: products, attention, a copy and a launch.

Each kernel runs once, those with few operations first, until its kind has had its share of the time. Then all of them
take turns until time is over, so that a slow spell meets all alike, and the median counts. A size that there was no
time for has the residual of the nearest one. The law, and the reader of the file, are those of ``counting.kernels``.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from itertools import product
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from osfmodel.counting.kernels import attention_work, product_work
from osfmodel.entities.display import how_many
from osfmodel.entities.measurement import WIDE
from osfmodel.runtime.bench.device import Call, MeasuredDevice
from osfmodel.runtime.profiler.conditions import gpu_of, machine, processor
from osfmodel.runtime.profiler.steps import spread

SIZES = ((64, 256, 512, 1024, 2048, 4096, 8192, 16384),) * 3
"""Nodes of rows, columns and inner sizes of products."""
ATTENDED = ((128, 256, 512, 1024, 4096, 16384), (4, 32, 256), (64, 128), (0.5, 1.0), (1, 4))
"""Nodes of attention: tokens, heads, width of a head, part of the keys seen (half: causal), heads for each of keys."""
HEADS = (4, 1, 4, 4, 4)
"""Weights of the axes of attention in the distance to the nearest measured node: heads change times least."""
USUAL = {"products": (2, 2, 2), "attention": (2, 0, 0, 0, 0)}
"""Places of each kind that are measured in any time."""
MOST, LEAST = 15, 3
"""Maximum of rounds, and the number that the first pass leaves time for."""
BRIEF, CALLS, LONG = 3e-4, 5, 3e-3
"""Seconds of a sample of a brief kernel, which runs up to CALLS times in it, and of kernels that are warmed up."""
TICK = 1e-9
"""Seconds that a clock tells apart, and a kernel takes at least."""
ROOM = 0.1
"""Part of memory that the inputs and the result of a kernel may take."""


class KernelKind(NamedTuple):
    """Kernels that share a table. operand: 0 in forward; in backward 1, and of products also 2."""

    kind: str
    dtype: str
    operand: int


@dataclass(slots=True)
class KernelSample:
    """A kernel at a place of the grid of its kind.

    work:    operations and bytes of the law
    prepare: makes its inputs, and the call to time
    seconds: measured, of which the first are not counted if there are others
    """

    kind: KernelKind
    place: tuple[int, ...]
    work: tuple[float, float]
    prepare: Callable[[], Call]
    seconds: list[float] = field(default_factory=list)

    @property
    def time(self) -> float:
        """The median of the seconds."""
        return median(self.seconds[1:] or self.seconds)

    def take(self, device: MeasuredDevice) -> None:
        """Measure once more; a short one runs once before, since libraries compile it or choose its algorithm anew."""
        known, call = self.time if self.seconds else math.inf, self.prepare()
        if known < LONG:
            call()
        taken = device.seconds(call, min(CALLS, max(1, round(BRIEF / known))), self.kind.kind)
        self.seconds.append(max(taken, TICK))


def kernels_to_measure(device: MeasuredDevice) -> Iterator[KernelSample]:
    """All kernels, each for what memory it needs."""
    types = device.types()
    for dtype, operand, place in product(types, range(3), _places(SIZES)):
        rows, columns, inner = _at(SIZES, place)
        work = product_work(rows, inner, columns, dtype)
        if work[1] < ROOM * device.memory and (dtype != "float8" or not operand):
            prepare = partial(device.product, dtype, operand, rows, inner, columns)
            yield KernelSample(KernelKind("products", dtype, operand), place, work, prepare)
    half = [dtype for dtype in ("bfloat16", "float16") if dtype in types]
    for dtype, operand, place in product((*half[:1], "float32"), range(2), _places(ATTENDED)):
        sizes = _at(ATTENDED, place)
        tokens, heads, width, seen, _ = sizes
        work = attention_work(tokens, heads, width, tokens * seen, dtype)
        if work[1] < ROOM * device.memory:
            prepare = partial(device.attention, dtype, operand, sizes)
            yield KernelSample(KernelKind("attention", dtype, operand), place, work, prepare)


def measured_surface(seconds: float, tell: Callable[[str], None], doubt: Callable[[str], None]) -> dict[str, Any]:
    """The content of a file of kernels, measured in so many seconds. Raises RuntimeError as torch does.

    tell, doubt: receive progress, and reasons not to trust it
    """
    end = time.monotonic() + seconds
    device = MeasuredDevice()
    (launch, host), bandwidth = device.launches(), device.bandwidth()
    groups: dict[tuple[str, str], list[KernelSample]] = defaultdict(list)
    for one in kernels_to_measure(device):
        groups[one.kind.kind, one.kind.dtype].append(one)
    for one in (one for own in groups.values() for one in own if one.place == USUAL[one.kind.kind]):
        one.take(device)  # libraries start up in the first
        one.take(device)
    first = time.monotonic() + (end - time.monotonic()) / (1 + LEAST)
    for place, (names, own) in enumerate(groups.items()):
        _first_pass(device, own, time.monotonic() + (first - time.monotonic()) / (len(groups) - place))
        tell(f"{' in '.join(names)}: {sum(bool(one.seconds) for one in own)} of {len(own)} sizes")
    for (kind, dtype), own in groups.items():
        if not any(one.seconds for one in own):
            doubt(f"no {kind} in {dtype} ran here: words cannot name that type with the file")
    known = [one for own in groups.values() for one in own if one.seconds]
    rounds = _take_turns(device, known, end)
    width = median(spread(one.seconds[1:]) for one in known)
    if width > WIDE:
        doubt(f"kernels spread by {width:.0%} (quartiles over median): something else was running, measure again")
    if rounds < LEAST:
        doubt(f"{len(known)} kernels were timed {how_many(rounds, 'time')} each, which is few: give more --seconds")
    said = f"{len(known)} kernels in {rounds} rounds, which spread by {width:.0%}; {machine(device.device)}"
    made = f"osf bench --kernels on {datetime.now(timezone.utc):%Y-%m-%d}: {said}"
    return {**document(device, known, (launch, host, bandwidth), made), "spread": round(width, 4)}


def _first_pass(device: MeasuredDevice, samples: Sequence[KernelSample], until: float) -> None:
    """Measure kernels of a kind and type once, small ones first, as far as their rates let them end in time."""
    rate = max(one.work[0] / one.seconds[-1] for one in samples if one.seconds)
    for one in sorted(samples, key=lambda one: one.work[0]):
        if time.monotonic() + one.work[0] / rate > until:
            return
        with suppress(RuntimeError, TypeError):  # not enough memory, or this torch cannot
            one.take(device)
            rate = max(rate, one.work[0] / one.seconds[-1])


def _take_turns(device: MeasuredDevice, samples: Sequence[KernelSample], end: float) -> int:
    """Measure all samples by turns until the end; rounds that were done."""
    for number in range(MOST):
        for one in samples:
            if time.monotonic() > end:
                return number
            one.take(device)
    return MOST


def document(
    device: MeasuredDevice, known: Sequence[KernelSample], figures: tuple[float, float, float], source: str
) -> dict[str, Any]:
    """The content of a file; figures: seconds of a launch by the device and by its host, bytes per second of memory."""
    launch, host, bandwidth = figures
    found: dict[KernelKind, dict[tuple[int, ...], KernelSample]] = defaultdict(dict)
    rates: dict[str, float] = {}
    for one in known:
        found[one.kind][one.place] = one
        if one.kind.kind == "products":
            rates[one.kind.dtype] = max(rates.get(one.kind.dtype, 0.0), one.work[0] / one.time)

    def beyond(kind: KernelKind) -> dict[tuple[int, ...], float]:
        return {
            place: math.log(one.time / (one.work[0] / rates[kind.dtype] + one.work[1] / bandwidth + launch))
            for place, one in found[kind].items()
        }

    products: dict[str, Any] = {}
    for dtype in rates:
        kinds = [own for operand in range(3) if (own := KernelKind("products", dtype, operand)) in found]
        values, *gradients = (_filled(SIZES, beyond(own)) for own in kinds)
        products[dtype] = {"nodes": SIZES, "values": values, "gradients": gradients}
    attention: dict[str, Any] = {}
    for dtype in dict.fromkeys(kind.dtype for kind in found if kind.kind == "attention"):
        forward, backward = (found[KernelKind("attention", dtype, operand)] for operand in range(2))
        again = {
            place: math.log(backward[place].time / one.time) for place, one in forward.items() if place in backward
        }
        values = _filled(ATTENDED, beyond(KernelKind("attention", dtype, 0)), HEADS)
        attention[dtype] = {"nodes": ATTENDED, "values": values, "backward": _filled(ATTENDED, again, HEADS)}
    return {
        "schema_version": 1,
        "kind": "kernels",
        "gpu": {
            "called": gpu_of(device.device) if device.gpu else processor(),
            "device": device.device.type,
            "memory_bytes": device.memory,
            "bytes_per_s": bandwidth,
            "operations_per_s": rates,
            "launch_s": launch,
            "host_launch_s": host,
        },
        "source": source,
        "multiprocessors": device.multiprocessors,
        "products": products,
        "attention": attention,
    }


def _places(axes: Sequence[Sequence[float]]) -> Iterator[tuple[int, ...]]:
    """The places of a grid, the last axis first, as tables have them."""
    return product(*(range(len(axis)) for axis in axes))


def _at(axes: Sequence[Sequence[float]], place: Sequence[int]) -> list[Any]:
    """The sizes at a place."""
    return [axis[index] for axis, index in zip(axes, place, strict=True)]


def _filled(
    axes: Sequence[Sequence[float]], found: dict[tuple[int, ...], float], apart: Sequence[float] = (1, 1, 1)
) -> list[float]:
    """100 x the value at each place, or at the nearest that has one; ``apart``: weights of distances along the axes."""
    known, values = np.array(list(found)), list(found.values())
    nearest = (found.get(at, values[int((np.abs(known - at) @ apart).argmin())]) for at in _places(axes))
    return [round(100 * value, 1) for value in nearest]
