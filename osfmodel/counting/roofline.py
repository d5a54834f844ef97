"""Time of a counted model on a GPU by a roofline, and what it keeps in memory.

A matrix product takes its operations at the part of the GPU's rate that such products reach, and its bytes at that of
the memory's bandwidth, one after the other; all else is bound by memory. Backward has two products for each of forward
and moves twice as much, but for what is frozen; attention without stored scores (flash) computes its first product once
more.

The part of a GPU's data sheet that training reaches, by kind of work, was learned from published runs:
``python profiles/make_efficiency.py profiles`` makes the file from the bundled measurements.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import accumulate
from math import prod
from types import MappingProxyType

from osfmodel.counting.modules import Model, Module, Product
from osfmodel.entities.display import brief
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.errors import DataError, UsageError, require_positive
from osfmodel.entities.files.profiles import bundled_file
from osfmodel.entities.gpus import Gpu, generation_of, gpu_called
from osfmodel.entities.records import dataclass
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.segments import Segment
from osfmodel.entities.source import Source
from osfmodel.entities.workload import Layer, Workload

FILE = "efficiency.json"


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Parts of a data sheet's rates, each above 0.

    matrix:    of matrix products, besides the time to move their matrices
    attention: of products inside attention, of the rate of matrix products
    memory:    of the bandwidth of memory, for all that moves elements, inputs and outputs of products among them
    doubt:     relative half width that covered 90 % of step times of sources that had no part in it
    """

    matrix: float
    attention: float
    memory: float
    doubt: float
    __repr__ = brief

    def __post_init__(self) -> None:
        for name in ("matrix", "attention", "memory"):
            require_positive(getattr(self, name), f"{name} of an efficiency")


def efficiency_of(gpu: str) -> Efficiency:
    """The efficiency that runs on GPUs of this generation reached; that of all others where there were none."""
    learned = _learned()
    return learned.get(generation_of(gpu)) or learned["any"]


@cache
def _learned() -> Mapping[str, Efficiency]:
    """Efficiencies by generation of GPUs, "any" among them. Raises DataError for a damaged file."""
    path = bundled_file(FILE)
    try:
        rows = json.loads(path.read_bytes())["efficiencies"]
        return {name: Efficiency(**row) for name, row in rows.items()}
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path} is damaged ({error}): install osfmodel again") from None


NOTHING, SELECTIVE, FULL = "none", "selective", "full"
CHECKPOINTING = (NOTHING, SELECTIVE, FULL)
"""Activation checkpointing: of nothing, of all that is no product, or of whole blocks."""
WIDTHS = {"float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2, "float8": 2}
"""Bytes of an element of activations, by type of computation."""
FLOAT8 = "float8"
"""Type in which no run was learned from."""
PARAMETERS = "float32"
"""Type of parameters, gradients and optimizer state, under mixed precision too."""
ADAM_BYTES, ADAM_STATE = 28, 8
"""Bytes for each parameter that an update of Adam moves (weight and two moments read and written, gradient read), and
that its moments take."""
SCORES_BACKWARD = 2.5
"""Products of attention in backward, over those of forward: five for two."""
PACKED = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a parameter in 4 bits (NF4, double quantisation): a scale of 8 bits for 64, one of 32 for 256 of these."""
FUSED = 0.5
"""Part of the elements that a compiled model moves apart from products, since neighbours are one kernel."""
LEARNED_ON = 8
"""Workers of most runs that efficiencies were learned from: what computing takes beside others is in them."""


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """How a model is trained on one GPU.

    gpu:           its name, as in GPUS
    dtype:         of computation
    batch:         samples of a micro-batch
    checkpointing: one of CHECKPOINTING
    compiled:      whether torch.compile fuses what moves elements
    """

    gpu: str
    dtype: str = "bfloat16"
    batch: int = 1
    checkpointing: str = NOTHING
    compiled: bool = False
    __repr__ = brief

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise UsageError(f"a micro-batch of {self.batch} samples: it must have 1 or more")
        gpu_called(self.gpu).rate(self.dtype)


def workload_of(
    model: Model,
    setting: TrainingSetup,
    name: str,
    efficiency: Efficiency | None = None,
    beside: Mapping[str, tuple[float, float]] = MappingProxyType({}),
) -> Workload:
    """The workload of ``model`` on one GPU; the times are learned from published runs, not measured.

    efficiency: by default that of the bundled file for GPUs of this generation
    beside:     seconds of forward and backward that a module takes besides, by its name
    """
    gpu = gpu_called(setting.gpu)
    learned = efficiency or efficiency_of(gpu.called)
    clock = Roofline(gpu, learned, setting)
    layers = tuple(_layers(model, clock, beside))
    fixed = plain_sum(clock.fixed(module, bool(model.block_of(module))) for module in model.modules)
    whole = plain_sum(layer.forward_time + layer.backward_time for layer in layers)
    conditions = f"counted from dimensions and data sheets, not measured: {setting.dtype}, batch {setting.batch}"
    return Workload(
        name,
        layers,
        setting.batch,
        ADAM_BYTES * model.trained / (gpu.bandwidth * learned.memory),
        Source("the dimensions of the model and the GPU's data sheet", conditions, "facts", gpu.called),
        segments=() if setting.checkpointing == FULL else tuple(_segments(model, layers)),
        state_bytes=ADAM_STATE * model.trained,
        fixed_bytes=sum(map(clock.frozen, model.modules)) or None,
        profiled_workers=LEARNED_ON,
        doubt=max(learned.doubt, efficiency_of("").doubt) if setting.dtype == FLOAT8 else learned.doubt,
        computed_in="" if setting.dtype in (PARAMETERS, "tf32") else setting.dtype,
        sample_tokens=model.tokens or None,
        ideal_time=ideal_time(model, setting),
        fixed_share=fixed / whole,
    )


def ideal_time(model: Model, setting: TrainingSetup) -> float:
    """Seconds of a micro-batch on a GPU that reaches the rate of its data sheet throughout."""
    return model.utilised * setting.batch / gpu_called(setting.gpu).rate(setting.dtype)


@dataclass(frozen=True, slots=True)
class Roofline:
    """Times of modules on a GPU under a setting, in seconds for a whole micro-batch."""

    gpu: Gpu
    learned: Efficiency
    setting: TrainingSetup

    def product(self, product: Product, in_block: bool = True) -> float:
        """Time of a product with parameters; one outside blocks, as of a head, is not in float8."""
        rows, operations = product.rows * self.setting.batch, product.operations * self.setting.batch
        read = rows * product.inner / product.taps
        moved = (read + rows * product.columns + product.inner * product.columns) * product.times
        dtype = self.setting.dtype if in_block else self.wide
        rate = self.gpu.rate(dtype) * self.learned.matrix
        return operations / rate + self.moving(moved)

    def scores(self, product: Product) -> float:
        """Time of a product inside attention, which is not in float8."""
        rate = self.gpu.rate(self.wide) * self.learned.attention
        return product.operations * self.setting.batch / rate

    def moving(self, elements: float) -> float:
        """Time to read or write elements."""
        return elements * self.width / (self.gpu.bandwidth * self.learned.memory)

    @property
    def wide(self) -> str:
        """The type of computation where it is not float8."""
        return "bfloat16" if self.setting.dtype == FLOAT8 else self.setting.dtype

    @property
    def width(self) -> int:
        """Bytes of an element of activations."""
        return WIDTHS[self.setting.dtype]

    def times(self, module: Module, in_block: bool) -> tuple[float, float]:
        """Forward and backward of a module; both begin by unpacking a matrix in 4 bits."""
        products = plain_sum(self.product(one, in_block) for one in module.products)
        scores = plain_sum(map(self.scores, module.scores))
        moved = self.moving(module.moved * self.setting.batch * (FUSED if self.setting.compiled else 1))
        unpacked = self.unpacking(module)
        forward = products + scores + moved + unpacked
        if not module.passes:
            return forward, 0.0
        again = {NOTHING: 0.0, SELECTIVE: moved, FULL: forward}[self.setting.checkpointing] if in_block else 0.0
        through = module.reached or not module.products
        scores, moved = SCORES_BACKWARD * scores * through, 2 * moved * through
        return forward, module.passes * products + scores + moved + again + unpacked * through

    def unpacking(self, module: Module) -> float:
        """Seconds to write a matrix that is kept in 4 bits in the type of computation."""
        return self.moving(module.elements * (1 + PACKED / self.width)) if module.packed else 0.0

    def fixed(self, module: Module, in_block: bool) -> float:
        """Seconds of forward and backward to read matrices, which do not grow with the batch."""
        again = self.setting.checkpointing == FULL and in_block and module.passes > 0
        matrices = sum(product.inner * product.columns * product.times for product in module.products)
        unpacked = (1 + module.reached + again) * self.unpacking(module)
        return (1 + module.passes + again) * self.moving(matrices) + unpacked

    def frozen(self, module: Module) -> int:
        """Bytes of the parameters of a module that are not trained, which are in the type of computation."""
        if not module.frozen:
            return 0
        matrix = max(map(prod, dict(module.parameters).values())) if module.packed else 0
        return (module.elements - matrix) * self.width + round(matrix * PACKED)

    def kept(self, module: Module, in_block: bool) -> int:
        """Bytes that a module keeps from forward to backward; with whole blocks recomputed, while one is."""
        elements = module.kept
        if self.setting.checkpointing == SELECTIVE and in_block:
            elements = min(elements, sum(product.rows * product.columns for product in module.products))
        return max(0, elements) * self.setting.batch * self.width


def _layers(model: Model, clock: Roofline, beside: Mapping[str, tuple[float, float]]) -> Iterator[Layer]:
    """A layer for each parameter. The last of a module, whose gradient is ready first, has the module's time."""
    kept = [clock.kept(module, bool(model.block_of(module))) for module in model.modules]
    stays, beside_it = _staying(model, clock, kept), _frozen_beside(model, clock)
    for module, own, peak in zip(model.modules, stays, _held(model, clock, kept, stays), strict=True):
        forward, backward = clock.times(module, bool(model.block_of(module)))
        more = beside.get(module.name, (0.0, 0.0))
        trained = () if module.frozen else module.parameters
        shapes = trained or (("", ()),)
        for place, (parameter, shape) in enumerate(shapes):
            last = place == len(shapes) - 1
            yield Layer(
                f"{module.name}.{parameter}" if parameter else module.name,
                forward + more[0] if last else 0.0,
                backward + more[1] if last else 0.0,
                _bytes(shape) if trained else 0,
                PARAMETERS,
                activation_bytes=own if last else 0,
                peak_bytes=peak,
                frozen_bytes=beside_it.get(module.name) if place == 0 else None,
                shape=shape,
            )


def _frozen_beside(model: Model, clock: Roofline) -> dict[str, int]:
    """Bytes of the frozen parameters of each block, and outside blocks, by the first module there that is trained."""
    first: dict[str, str] = {}
    sizes: dict[str, int] = {}
    for module in model.modules:
        block = model.block_of(module)
        sizes[block] = sizes.get(block, 0) + clock.frozen(module)
        if module.parameters and not module.frozen:
            first.setdefault(block, module.name)
    return {name: sizes[block] for block, name in first.items() if sizes[block]}


def _bytes(shape: tuple[int, ...]) -> int:
    size = element_bytes(PARAMETERS)
    for length in shape:
        size *= length
    return size


def _staying(model: Model, clock: Roofline, kept: list[int]) -> list[int]:
    """Bytes that stay after the forward of each module: all that it keeps, or, of a recomputed block, its input."""
    if clock.setting.checkpointing != FULL:
        return kept
    first = {model.block_of(module): place for place, module in reversed(list(enumerate(model.modules)))}
    return [
        own if not model.block_of(module) or first[model.block_of(module)] == place else 0
        for place, (module, own) in enumerate(zip(model.modules, kept, strict=True))
    ]


def _held(model: Model, clock: Roofline, kept: list[int], stays: list[int]) -> Iterator[int]:
    """Bytes of activations in the backward of each module: what stays, its recomputed block, gradients beside it."""
    again: dict[str, int] = {}
    for module, own, staying in zip(model.modules, kept, stays, strict=True):
        again[model.block_of(module)] = again.get(model.block_of(module), 0) + own - staying
    for module, before in zip(model.modules, accumulate(stays), strict=True):
        beside = max((product.rows * max(product.inner, product.columns) for product in module.products), default=0)
        beside *= module.passes > 0
        unpacked = module.elements * clock.width if module.packed else 0
        yield before + again[model.block_of(module)] + 2 * beside * clock.setting.batch * clock.width + unpacked


def _segments(model: Model, layers: tuple[Layer, ...]) -> Iterator[Segment]:
    """The blocks as parts that can be recomputed."""
    for name in model.blocks:
        inside = [layer for layer in layers if layer.name.startswith(f"{name}.")]
        yield Segment(name, inside[0].name, inside[-1].name, sum(layer.activation_bytes or 0 for layer in inside))
