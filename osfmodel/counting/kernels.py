"""Times of the kernels of a GPU by their shape, measured with nothing beside them: a law and its residuals.

The law takes a kernel's operations at the rate of the data sheet, its bytes at the bandwidth of memory, and a launch,
one after the other. What measured kernels take beyond that is a table over the logarithms of their sizes, linear
between its nodes; products have one more term, for a last wave of tiles that is not full. ``python
profiles/make_kernels.py profiles`` makes the files in ``profiles/kernels`` from measured tables.

A GPU without a table has the residuals of the GPU that is most like it, with the law of its own data sheet.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from osfmodel.entities.display import brief
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.errors import DataError
from osfmodel.entities.files.profiles import bundled_file
from osfmodel.entities.gpus import GPUS, Gpu, generation_of, gpu_called
from osfmodel.entities.rounding import plain_sum

FOLDER = "kernels"
LAUNCH = 3e-6
"""Seconds that the smallest kernels take."""
TILES = ((128, 256), (128, 128), (256, 128), (64, 256))
"""Rows and columns of the result that a multiprocessor computes at once, as libraries choose them."""
CHOSEN = 8
"""Experts that a token passes in the table of experts."""
WIDE = "bfloat16"
"""The type whose residuals all types have that a table does not hold."""


class Residuals(NamedTuple):
    """Values over a grid: of each axis the nodes, ascending; values in the order of the last axis first.

    A value is 100 x ln(time / law).
    """

    nodes: tuple[tuple[float, ...], ...]
    values: tuple[int, ...]

    def at(self, *sizes: float) -> float:
        """ln(time / law) of these sizes; beyond the grid that of its edge."""
        corners = [(0, 1.0)]
        for nodes, size in zip(self.nodes, sizes, strict=True):
            place = min(max(bisect_right(nodes, size) - 1, 0), len(nodes) - 2)
            low, high = nodes[place], nodes[place + 1]
            part = min(max(math.log(size / low) / math.log(high / low), 0.0), 1.0)
            corners = [
                (index * len(nodes) + place + more, weight * share)
                for index, weight in corners
                for more, share in ((0, 1 - part), (1, part))
                if share
            ]
        return plain_sum(weight * self.values[index] for index, weight in corners) / 100


class Products(NamedTuple):
    """Residuals of matrix products: over rows, columns and inner size, and a weight for the waves of each of TILES."""

    table: Residuals
    waves: tuple[float, ...]


def unfilled(rows: float, columns: float, multiprocessors: int) -> tuple[float, ...]:
    """For each of TILES ln(what is computed / what is needed): of tiles beyond the edge, and of waves not filled."""
    found = []
    for high, wide in TILES:
        tiles = math.ceil(rows / high) * math.ceil(columns / wide)
        needed = rows / high * columns / wide
        found.append(math.log(math.ceil(tiles / multiprocessors) * multiprocessors / needed))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """Times of kernels on a GPU.

    gpu:             whose data sheet has the rates and the bandwidth
    multiprocessors: of the GPU; of one that was not measured, as many fewer than of the measured one as it is slower
    products:        by type of element
    attention:       over tokens, heads of all samples, and the width of a head
    experts:         over rows of an expert, experts, and the width inside of one; None where not measured
    by_chosen:       exponent of the experts that a token passes, over CHOSEN, in the time of experts
    source:          of the table
    """

    gpu: Gpu
    multiprocessors: int
    products: Mapping[str, Products]
    attention: Residuals
    experts: Residuals | None
    by_chosen: float
    source: str
    _kept: dict[tuple[float, float, float, str], float] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    __repr__ = brief

    def product(self, rows: float, inner: float, columns: float, dtype: str) -> float:
        """Seconds of a product of ``rows`` x ``inner`` and ``inner`` x ``columns``."""
        key = (rows, inner, columns, dtype)
        if key not in self._kept:
            self._kept[key] = self._product(*key)
        return self._kept[key]

    def _product(self, rows: float, inner: float, columns: float, dtype: str) -> float:
        own = self.products.get(dtype) or self.products[WIDE]
        table = own.table
        waves = unfilled(max(rows, table.nodes[0][0]), max(columns, table.nodes[1][0]), self.multiprocessors)
        beyond = table.at(rows, columns, inner) + plain_sum(map(float.__mul__, own.waves, waves))
        moved = (rows * inner + inner * columns + rows * columns) * width_of(dtype)
        operations = 2 * rows * inner * columns
        return max(self.law(operations, moved, dtype) * math.exp(beyond), operations / self.gpu.rate(dtype))

    def attend(self, tokens: float, heads: float, width: float, operations: float, moved: float, dtype: str) -> float:
        """Seconds of forward of attention of so many tokens and heads of all samples, by its operations and bytes."""
        return self.law(operations, moved, dtype) * math.exp(self.attention.at(tokens, heads, width))

    def expert_factor(self, rows: float, experts: float, inner: float, chosen: int) -> float:
        """Factor on the law of the products of experts with so many rows each; a token passes ``chosen`` of them."""
        if self.experts is None:
            return 1.0
        return math.exp(self.experts.at(rows, experts, inner) + self.by_chosen * math.log(chosen / CHOSEN))

    def law(self, operations: float, moved: float, dtype: str) -> float:
        """Seconds of so many operations and bytes at the rates of the data sheet, and of a launch."""
        return operations / self.gpu.rate(dtype) + moved / self.gpu.bandwidth + LAUNCH


def width_of(dtype: str) -> int:
    """Bytes of an element of a product's matrices."""
    return {"float8": 1, "tf32": 4}.get(dtype) or element_bytes(dtype)


@cache
def kernels_of(gpu: str) -> KernelTimes:
    """The kernels of a GPU by its name in GPUS: by its own table, or by that of the GPU most like it."""
    table = kernels_in(bundled_file(FOLDER) / f"{most_like(GPUS[gpu])}.json")
    part = half_rate(GPUS[gpu]) / half_rate(table.gpu)
    return replace(table, gpu=GPUS[gpu], multiprocessors=max(1, round(table.multiprocessors * part)))


@cache
def kernels_in(path: Path) -> KernelTimes:
    """The kernels in a file, by the data sheet of its GPU. Raises DataError for a damaged file."""
    try:
        said = json.loads(path.read_bytes())
        return KernelTimes(
            gpu_called(said["gpu"]),
            int(said["multiprocessors"]),
            {dtype: Products(_table(own), tuple(own["waves"])) for dtype, own in said["products"].items()},
            _table(said["attention"]),
            _table(said["experts"]) if said.get("experts") else None,
            float(said["experts"]["chosen"]) if said.get("experts") else 0.0,
            str(said["source"]),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path} is no table of kernels ({error}): install osfmodel again") from None


def _table(said: Mapping[str, Any]) -> Residuals:
    nodes = tuple(tuple(map(float, axis)) for axis in said["nodes"])
    values = tuple(map(int, said["values"]))
    if len(values) != math.prod(map(len, nodes)) or any(len(axis) < 2 for axis in nodes):
        raise ValueError("its values are not as many as its nodes")
    return Residuals(nodes, values)


@cache
def measured() -> tuple[str, ...]:
    """Names of the GPUs that have a table."""
    return tuple(sorted(path.stem for path in bundled_file(FOLDER).glob("*.json")))


def most_like(gpu: Gpu, among: Sequence[str] | None = None) -> str:
    """The GPU with a table that is most like it: of its generation if one is, by rate for each byte, then by rate."""
    names = measured() if among is None else among
    own = [name for name in names if generation_of(GPUS[name].called) == generation_of(gpu.called)]

    def far(name: str) -> tuple[bool, float]:
        other = GPUS[name]
        rates, widths = math.log(half_rate(gpu) / half_rate(other)), math.log(gpu.bandwidth / other.bandwidth)
        return other is not gpu, math.hypot(rates - widths, rates / 4)

    return min(own or names, key=far)


def half_rate(gpu: Gpu) -> float:
    """Operations per second in 16 bits, or in 32 where a GPU has no products of 16."""
    return next(gpu.rates[dtype] for dtype in (WIDE, "float16", "float32") if dtype in gpu.rates)
