"""Times of the kernels of a GPU by their shape, measured with nothing beside them: a law and its residuals.

The law takes a kernel's operations at the rate of the data sheet, its bytes at the bandwidth of memory, and a launch,
one after the other. What measured kernels take beyond that is a table over the logarithms of their sizes, linear
between its nodes; products have one more term, for a last wave of tiles that is not full. ``python
profiles/make_kernels.py profiles`` makes them from measured tables, ``osf bench --kernels`` on the device at hand,
backward too, with figures of its own in place of a data sheet.

A GPU without a table has the residuals of the GPU that is most like it, with the law of its own data sheet.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from osfmodel.counting.recipes import FLOAT8, RECIPES, rate_type
from osfmodel.entities.display import brief
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.errors import DataError, UsageError
from osfmodel.entities.files import profiles
from osfmodel.entities.gpus import GPUS, Gpu, generation_of, gpu_called
from osfmodel.entities.measurement import NO_GPU, Source
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
LAUNCHED = 5e-6
"""Seconds that a processor takes to launch a kernel from Python, in the runs that were learned from."""
LARGEST = 2000.0
"""Largest absolute value in a table: 100 x ln of a factor of 5 x 10^8."""
ByType = TypeVar("ByType")


class Residuals(NamedTuple):
    """Values over a grid: of each axis the nodes, ascending; values in the order of the last axis first.

    A value is 100 x ln(time / law).
    """

    nodes: tuple[tuple[float, ...], ...]
    values: tuple[float, ...]

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
    """Residuals of matrix products: over rows, columns and inner size, and a weight for the waves of each of TILES.

    gradients: those of products for the gradients of inputs and of matrices, where these were measured apart
    """

    table: Residuals
    waves: tuple[float, ...]
    gradients: tuple[Residuals, ...] = ()

    def at(self, rows: float, columns: float, inner: float, operand: int) -> float:
        """ln(time / law) without waves. operand: 0 for a product of forward, 1 and 2 for gradients as above."""
        table = self.gradients[operand - 1] if operand and self.gradients else self.table
        return table.at(rows, columns, inner)


class AttentionTimes(NamedTuple):
    """Residuals of attention over tokens, heads of all samples, and the width of a head.

    Where measured, also over the part of the keys that is seen (half, if causal), and over heads for each head of keys.

    backward: ln(backward / forward), over the same; None where it was not measured
    """

    forward: Residuals
    backward: Residuals | None = None

    def at(self, sizes: Sequence[float]) -> float:
        """ln(forward / law) of sizes in the order above."""
        return self.forward.at(*sizes[: len(self.forward.nodes)])

    def again(self, sizes: Sequence[float], usual: float) -> float:
        """Time of backward over that of forward; ``usual`` where it was not measured."""
        return math.exp(self.backward.at(*sizes[: len(self.backward.nodes)])) if self.backward else usual


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
    attention:       by type of element
    experts:         over rows of an expert, experts, and the width inside of one; None where not measured
    by_chosen:       exponent of the experts that a token passes, over CHOSEN, in the time of experts
    source:          of the table
    launch:          seconds that the smallest kernels take
    pace:            seconds of a launch by the processor, over LAUNCHED
    device:          "cuda" or "cpu" of figures that were all measured on one machine; "" for a data sheet's
    spread:          of such figures, quartiles over median
    """

    gpu: Gpu
    multiprocessors: int
    products: Mapping[str, Products]
    attention: Mapping[str, AttentionTimes]
    experts: Residuals | None
    by_chosen: float
    source: str
    launch: float = LAUNCH
    pace: float = 1.0
    device: str = ""
    spread: float = 0.0
    _kept: dict[tuple[float, float, float, str, int], float] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    __repr__ = brief

    def product(self, rows: float, inner: float, columns: float, dtype: str, operand: int = 0) -> float:
        """Seconds of a product of ``rows`` x ``inner`` and ``inner`` x ``columns``; operand: as of Products."""
        key = (rows, inner, columns, dtype, operand)
        if key not in self._kept:
            self._kept[key] = self._product(*key)
        return self._kept[key]

    def _product(self, rows: float, inner: float, columns: float, dtype: str, operand: int) -> float:
        own = _of_type(self.products, dtype)
        beyond = own.at(rows, columns, inner, operand)
        if own.waves:
            least = own.table.nodes
            waves = unfilled(max(rows, least[0][0]), max(columns, least[1][0]), self.multiprocessors)
            beyond += plain_sum(map(float.__mul__, own.waves, waves))
        operations, moved = product_work(rows, inner, columns, dtype)
        return max(self.law(operations, moved, dtype) * math.exp(beyond), operations / self.gpu.rate(rate_type(dtype)))

    def attending(self, dtype: str) -> AttentionTimes:
        """The tables of attention in a type."""
        return _of_type(self.attention, dtype)

    def expert_factor(self, rows: float, experts: float, inner: float, chosen: int) -> float | None:
        """Factor on the law of the products of experts with so many rows each; a token passes ``chosen`` of them.

        None where experts were not measured.
        """
        if self.experts is None:
            return None
        return math.exp(self.experts.at(rows, experts, inner) + self.by_chosen * math.log(chosen / CHOSEN))

    def basis(self, setting: str) -> Source:
        """The source of a workload that is counted by them."""
        what, sheet = "the dimensions of the model and {}", "counted from dimensions and data sheets, not measured"
        if not self.device:
            return Source(what.format("the GPU's data sheet"), f"{sheet}: {setting}", "facts", self.gpu.called)
        gpu = NO_GPU if self.device == "cpu" else self.gpu.called
        return Source(what.format("kernels measured on its device"), f"{self.source}; {setting}", "facts", gpu)

    def law(self, operations: float, moved: float, dtype: str) -> float:
        """Seconds of so many operations and bytes at the rates of the data sheet, and of a launch."""
        return operations / self.gpu.rate(rate_type(dtype)) + moved / self.gpu.bandwidth + self.launch


def width_of(dtype: str) -> float:
    """Bytes of an element of a product's matrices."""
    return RECIPES[dtype].width if dtype in RECIPES else {"tf32": 4}.get(dtype) or element_bytes(dtype)


def _of_type(tables: Mapping[str, ByType], dtype: str) -> ByType:
    """The table of a type, of float8 for all recipes, or of WIDE, or else the first."""
    return tables.get(FLOAT8 if dtype in RECIPES else dtype) or tables.get(WIDE) or next(iter(tables.values()))


def product_work(rows: float, inner: float, columns: float, dtype: str) -> tuple[float, float]:
    """Operations of a product, and bytes that it moves."""
    return 2 * rows * inner * columns, (rows * inner + inner * columns + rows * columns) * width_of(dtype)


def attention_work(tokens: float, heads: float, width: float, seen: float, dtype: str) -> tuple[float, float]:
    """Operations of the two products of attention that sees so many keys, and bytes that it moves."""
    return 4 * tokens * seen * heads * width, 4 * tokens * heads * width * width_of(dtype)


def in_file(gpu: str) -> bool:
    """Whether a GPU in words is a file of ``osf bench --kernels``."""
    return gpu.endswith(".json")


def gpu_of(gpu: str) -> Gpu:
    """The figures of a GPU by name or by such a file. Raises UsageError for an unknown name, DataError for a file."""
    return kernels_of(gpu).gpu if in_file(gpu) else gpu_called(gpu)


def kernels_of(gpu: str) -> KernelTimes:
    """The kernels of a GPU by its name in GPUS, from its own table or that of the GPU most like it; or by a file."""
    return _kernels_of(gpu, profiles.written(gpu))


@lru_cache(maxsize=64)
def _kernels_of(gpu: str, _: tuple[int, ...]) -> KernelTimes:
    if in_file(gpu):
        return kernels_in(Path(gpu))
    table = kernels_in(profiles.bundled_file(FOLDER) / f"{most_like(GPUS[gpu])}.json")
    part = half_rate(GPUS[gpu]) / half_rate(table.gpu)
    return replace(table, gpu=GPUS[gpu], multiprocessors=max(1, round(table.multiprocessors * part)))


def kernels_in(path: Path) -> KernelTimes:
    """The kernels in a file, by the data sheet of its GPU, or by the figures in it. Raises DataError for any fault."""
    try:
        return profiles.read(path, _decoded)
    except DataError as error:
        bundled = path.parent == profiles.bundled_file(FOLDER)
        made = "my-gpu.json" if path.exists() else path  # what is there is never overwritten
        remedy = "install osfmodel again" if bundled else f"make one of this machine: osf bench --kernels -o {made}"
        raise DataError(f"{error}; {remedy}") from None


def _decoded(content: bytes) -> KernelTimes:
    try:
        return _kernels(json.loads(content))
    except KeyError as error:
        raise DataError(f"is no table of kernels (it has no {error})") from None
    except (UsageError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        why = "a field is empty, or of another type" if isinstance(error, (TypeError, AttributeError)) else error
        raise DataError(f"is no table of kernels ({why})") from None


def _kernels(said: Any) -> KernelTimes:
    if not isinstance(said, dict) or (said.get("kind"), said.get("schema_version")) != ("kernels", 1):
        raise ValueError("its 'kind' is not 'kernels', or its 'schema_version' not 1")
    experts, own = said.get("experts"), said["gpu"]
    sheet = own if isinstance(own, dict) else {}
    products = {dtype: _products(one) for dtype, one in said["products"].items()}
    attention = {dtype: _attention(one) for dtype, one in said["attention"].items()}
    if not products or not attention:
        raise ValueError("it has no products or no attention")
    return KernelTimes(
        _gpu(sheet) if sheet else gpu_called(own),
        max(1, int(_positive(said["multiprocessors"], "multiprocessors"))),
        products,
        attention,
        _table(experts) if experts else None,
        _numbers([experts["chosen"]])[0] if experts else 0.0,
        str(said["source"]),
        _positive(sheet["launch_s"], "launch_s") if sheet else LAUNCH,
        _positive(sheet["host_launch_s"], "host_launch_s") / LAUNCHED if sheet else 1.0,
        str(sheet["device"]) if sheet else "",
        _numbers([said.get("spread", 0)])[0],
    )


def _gpu(said: Mapping[str, Any]) -> Gpu:
    """A GPU by measured figures; words about networks do not know it."""
    rates = {str(dtype): _positive(rate, f"rate of {dtype}") for dtype, rate in said["operations_per_s"].items()}
    if not rates:
        raise ValueError("it has no operations_per_s")
    memory = round(_positive(said["memory_bytes"], "memory_bytes"))
    bandwidth = _positive(said["bytes_per_s"], "bytes_per_s")
    return Gpu(str(said["called"]), rates, bandwidth, memory, memory, "host", 0.0, False, 0, "", 0.0, 1)


def _products(said: Mapping[str, Any]) -> Products:
    gradients = said.get("gradients") or ()
    if len(gradients) not in (0, 2):
        raise ValueError("its gradients are not two lists")
    tables = [_table({**said, "values": values}) for values in (said["values"], *gradients)]
    return Products(tables[0], _numbers(said.get("waves", ())), tuple(tables[1:]))


def _attention(said: Mapping[str, Any]) -> AttentionTimes:
    backward = said.get("backward")
    return AttentionTimes(_table(said, 5), _table({**said, "values": backward}, 5) if backward else None)


def _positive(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"its {name} is {value!r:.40}, not a number above 0")
    return float(value)


def _table(said: Mapping[str, Any], axes: int = 3) -> Residuals:
    """A table over three axes, or up to ``axes``."""
    nodes = tuple(tuple(_positive(node, "node") for node in axis) for axis in said["nodes"])
    values = _numbers(said["values"])
    if not 3 <= len(nodes) <= axes:
        raise ValueError(f"a table has {len(nodes)} axes, not {axes}")
    if any(len(axis) < 2 or any(low >= high for low, high in pairwise(axis)) for axis in nodes):
        raise ValueError("the nodes of an axis do not ascend, or are fewer than 2")
    if len(values) != math.prod(map(len, nodes)):
        raise ValueError(f"it has {len(values)} values for {math.prod(map(len, nodes))} nodes")
    return Residuals(nodes, values)


def _numbers(values: Iterable[Any]) -> tuple[float, ...]:
    found = tuple(map(float, values))
    if not all(abs(value) <= LARGEST for value in found):
        raise ValueError(f"a value is not a number between -{LARGEST:g} and {LARGEST:g}")
    return found


@cache
def measured() -> tuple[str, ...]:
    """Names of the GPUs that have a table."""
    return tuple(sorted(path.stem for path in profiles.bundled_file(FOLDER).glob("*.json")))


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
