"""Time of a counted model on a GPU, and what it keeps in memory.

A matrix product takes as long as the GPU's kernels of its shape (``counting.kernels``), slowed by the clock that
training has; all else is bound by memory. Backward has a product for the gradient of each input and each matrix, of
their own shapes, and moves twice as much, but for what is frozen; attention without stored scores (flash) computes its
first product once more. What software fuses, moves and launches is its stack (``counting.stacks``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import exp, hypot, prod
from types import MappingProxyType
from typing import Any, NamedTuple

from osfmodel.counting.kernels import KernelTimes, attention_work, gpu_of, kernels_of, width_of
from osfmodel.counting.modules import Model, Module, Product, unnamed
from osfmodel.counting.recipes import RECIPES, gathered_type, rate_type, wide_type
from osfmodel.counting.stacks import STACKS, Learned, Stack, Traffic, fused_columns, learned
from osfmodel.counting.training import (
    BUDGET,
    FULL,
    NOTHING,
    SELECTIVE,
    TrainingSetup,
    activations,
    activations_away,
    beside_moves,
    host_share,
    repeated_parts,
    update_on_host,
)
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.gpus import Gpu
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.savings import OPTIMIZER, Segment
from osfmodel.entities.workload import Layer, Workload

PARAMETERS = "float32"
"""Type of parameters, gradients and optimizer state, under mixed precision too."""
ADAM_BYTES, ADAM_STATE = 28, 8
"""Bytes for each parameter that an update of Adam moves (weight and two moments read and written, gradient read), and
that its moments take."""
SCORES_BACKWARD = 2.5 / 0.9
"""Time of attention in backward, over that of forward: five products for two, at 0.9 of the rate. The medians of shapes
measured on A100 and B200, published with SimuMax, are 0.86 and 0.93."""
HALF = 0.5
"""Part of the products that selective checkpointing repeats."""
PACKED = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a parameter in 4 bits (NF4, double quantisation): a scale of 8 bits for 64, one of 32 for 256 of these."""
LEARNED_ON = 8
"""Workers of most runs that were learned from: what computing takes beside others is in them."""


class Waits(NamedTuple):
    """Seconds of a module's messages.

    forward, backward: exposed in each pass
    hidden, hidden_backward: beside the computation of the whole block in each pass, and exposed beyond that
    """

    forward: float = 0.0
    backward: float = 0.0
    hidden: float = 0.0
    hidden_backward: float = 0.0


def workload_of(
    model: Model,
    setting: TrainingSetup,
    name: str,
    taught: Learned | None = None,
    beside: Mapping[str, Waits] = MappingProxyType({}),
) -> Workload:
    """The workload of ``model`` on one GPU; the times are learned from published runs, not measured.

    taught: by default what the bundled file says
    beside: messages of a module, by its name
    """
    clock = Roofline.of(setting, taught)
    layers = tuple(_layers(model, clock, beside))
    whole = plain_sum(layer.forward_time + layer.backward_time for layer in layers)
    twice = Roofline(clock.kernels, clock.taught, replace(setting, batch=2 * setting.batch))
    besides = {name: Waits(*(2 * seconds for seconds in own)) for name, own in beside.items()}
    longer = plain_sum(map(plain_sum, timed(model, twice, besides).values()))
    experts = any(module.experts for module in model.modules)
    away = OPTIMIZER in setting.offload
    master = element_bytes(PARAMETERS) * ((clock.stack.master or away) and clock.width < element_bytes(PARAMETERS))
    update, moved = ADAM_BYTES * model.trained / clock.gpu.bandwidth, 0.0
    if away:
        update, moved = update_on_host(clock.gpu.host, model.trained, ADAM_BYTES)
    return Workload(
        name,
        layers,
        setting.batch,
        update,
        clock.kernels.basis(f"{setting.dtype}, batch {setting.batch}"),
        segments=() if setting.checkpointing == FULL or setting.offload else tuple(_segments(model, layers)),
        state_bytes=0 if away else (ADAM_STATE + master) * model.trained,
        weight_bytes=(1 + clock.stack.twice) * clock.width * model.trained if master else None,
        fixed_bytes=sum(map(clock.frozen, model.modules)) or None,
        profiled_workers=LEARNED_ON,
        doubt=hypot(clock.taught.doubt(setting.gpu, setting.stack, setting.dtype, experts), clock.kernels.spread),
        computed_in=gathered_type(setting.dtype),
        sample_tokens=model.tokens or None,
        ideal_time=ideal_time(model, setting),
        fixed_share=min(max(2 - longer / whole, 0.0), 1.0),
        offload=host_share(model, setting.offload, activations_away(model, setting), moved, ADAM_STATE)
        if setting.offload
        else None,
    )


def ideal_time(model: Model, setting: TrainingSetup) -> float:
    """Seconds of a micro-batch on a GPU that reaches the rate of its data sheet throughout."""
    return model.utilised * setting.batch / gpu_of(setting.gpu).rate(rate_type(setting.dtype))


@dataclass(frozen=True, slots=True)
class Roofline:
    """Times of modules on a GPU under a setting, in seconds for a whole micro-batch."""

    kernels: KernelTimes
    taught: Learned
    setting: TrainingSetup

    @classmethod
    def of(cls, setting: TrainingSetup, taught: Learned | None = None) -> Roofline:
        """The times on the GPU of ``setting``, with what was learned."""
        return cls(kernels_of(setting.gpu), taught or learned(), setting)

    @property
    def gpu(self) -> Gpu:
        """The GPU, by whose data sheet kernels are timed."""
        return self.kernels.gpu

    @property
    def stack(self) -> Stack:
        """The software that runs the model."""
        return STACKS[self.setting.stack]

    @property
    def passes(self) -> Traffic:
        """Parts of the counted elements that the stack moves."""
        return self.taught.passes[self.stack.like]

    def product(self, module: Module, product: Product, in_block: bool, columns: int = 0) -> tuple[float, float, float]:
        """Times of a product with parameters: forward, and the gradients of its input and of its matrix.

        One outside blocks, as of a head, is in no recipe.
        columns: of all matrices that are one product with it; its share of their time is its own
        """
        dtype = self.setting.dtype if in_block else self.wide
        rows, inner, wide = product.rows * self.samples(module), product.inner, columns or product.columns
        clock = self.taught.clock(self.setting.gpu, dtype)
        if product.times > 1:
            return (self._grouped(module, product, dtype) / clock,) * 3
        share = product.columns / wide / clock
        spared = self.moving(rows * inner * (1 - 1 / product.taps))  # a convolution reads inputs once for all its taps
        least = 2 * rows * inner * wide / self.gpu.rate(rate_type(dtype))
        return tuple(  # type: ignore[return-value]
            max(self.kernels.product(*sizes, dtype, operand) - spared, least) * share
            for operand, sizes in enumerate(((rows, inner, wide), (rows, wide, inner), (wide, rows, inner)))
        )

    def _grouped(self, module: Module, product: Product, dtype: str) -> float:
        """Time of products of one shape that one kernel computes; for experts at most that of one after the other."""
        samples = self.samples(module)
        rows = product.rows * samples
        read = rows * product.inner / product.taps
        moved = (read + rows * product.columns + product.inner * product.columns) * product.times * width_of(dtype)
        whole = self.kernels.law(product.operations * samples, moved, dtype)
        if not module.experts:
            return whole
        apart = product.times * self.kernels.product(rows, product.inner, product.columns, dtype)
        factor = self.kernels.expert_factor(rows, product.times, module.products[-1].inner, module.chosen)
        return apart if factor is None else min(whole * factor, apart)

    def scores(self, module: Module, product: Product) -> tuple[float, float]:
        """Forward and backward of a product inside attention, in no recipe: half of those of attention's two."""
        dtype, heads = self.wide, product.times * self.setting.batch
        width, keys = sorted((product.inner, product.columns))
        tokens = min(product.rows, 2 * keys)  # causal attention sees half of the keys; a window, those inside it
        sharing = 2 * product.rows * width * product.times / module.keys if module.keys else 1
        sizes = (tokens, heads, width, keys / product.rows, max(sharing, 1))
        table, work = self.kernels.attending(dtype), attention_work(product.rows, heads, width, keys, dtype)
        alone = self.kernels.law(*work, dtype) * exp(table.at(sizes)) / 2
        forward = alone / self.taught.attending(self.setting.gpu, self.stack.attention)
        return forward, forward * table.again(sizes, SCORES_BACKWARD)

    def moving(self, elements: float) -> float:
        """Time to read or write elements."""
        return elements * self.width / self.gpu.bandwidth

    @property
    def wide(self) -> str:
        """The type of computation where it is in no recipe."""
        return wide_type(self.setting.dtype)

    @property
    def width(self) -> int:
        """Bytes of an element of activations."""
        return self.setting.width

    def samples(self, module: Module) -> int:
        """Samples of a micro-batch for which a module works: 1 for one that runs once."""
        return self.setting.samples(module)

    def times(
        self, module: Module, in_block: bool, columns: int = 0, again: tuple[float, float] = (1.0, 1.0)
    ) -> tuple[float, float]:
        """Forward and backward of a module; both begin by unpacking a matrix in 4 bits.

        columns: of all matrices that are one product with its own
        again:   parts of its forward, and of its attention alone, that are repeated where checkpointing says so
        """
        products = [self.product(module, one, in_block, columns) for one in module.products]
        scores = [self.scores(module, one) for one in module.scores]
        passes = self.passes
        part = passes.loss if module.products and not in_block else passes.moved
        elements = module.moved * part + module.unfused * self.stack.unfused
        moved = self.moving(elements * self.samples(module))
        casts = self.casts(module) if in_block and self.setting.dtype in RECIPES else 0.0
        unpacked = self.unpacking(module)
        multiplied = plain_sum(one[0] for one in products)
        attended = plain_sum(one[0] for one in scores)
        forward = multiplied + attended + moved + casts + unpacked
        if not module.passes:
            return forward, 0.0
        selected = attended if self.stack.core else moved + HALF * multiplied
        repeated = {NOTHING: 0.0, SELECTIVE: selected, FULL: forward, BUDGET: forward}
        repeats = again[0] * repeated[self.setting.checkpointing] + (again[1] - again[0]) * attended
        repeats = repeats if in_block else 0.0
        through = module.reached or not module.products
        summed = 0 if module.frozen else module.elements * self.stack.gradients / self.gpu.bandwidth
        through_scores, moved = plain_sum(one[1] for one in scores) * through, 2 * moved * through
        gradients = plain_sum(one[1] * module.reached + one[2] * module.weighed for one in products)
        return forward, gradients + through_scores + moved + casts + summed + repeats + unpacked * through

    def casts(self, module: Module) -> float:
        """Seconds to scale and cast the matrices of products, in forward; as many again in backward."""
        elements = sum(
            (self.samples(module) * one.rows * (one.inner + one.columns) + one.inner * one.columns) * one.times
            for one in module.products
        )
        return self.moving(elements * self.passes.casts) * self.taught.slower(self.setting.dtype)

    def unpacking(self, module: Module) -> float:
        """Seconds to write a matrix that is kept in 4 bits in the type of computation."""
        return self.moving(module.elements * (1 + PACKED / self.width)) if module.packed else 0.0

    def frozen(self, module: Module) -> int:
        """Bytes of the parameters of a module that are not trained, which are in the type of computation."""
        if not module.frozen:
            return 0
        matrix = max(map(prod, dict(module.parameters).values())) if module.packed else 0
        return (module.elements - matrix) * self.width + round(matrix * PACKED)


def _layers(model: Model, clock: Roofline, beside: Mapping[str, Waits]) -> Iterator[Layer]:
    """A layer for each parameter. The last of a module, whose gradient is ready first, has the module's time."""
    stays, peaks = activations(model, clock.setting)
    beside_it = _frozen_beside(model, clock)
    times = timed(model, clock, beside)
    for module, own, peak in zip(model.modules, stays, peaks, strict=True):
        forward, backward = times[module.name]
        trained = () if module.frozen else module.parameters
        shapes = trained or (("", ()),)
        for place, (parameter, shape) in enumerate(shapes):
            last = place == len(shapes) - 1
            yield Layer(
                f"{module.name}.{parameter}" if parameter else module.name,
                forward if last else 0.0,
                backward if last else 0.0,
                _bytes(shape) if trained else 0,
                PARAMETERS,
                activation_bytes=own if last else 0,
                peak_bytes=peak,
                frozen_bytes=beside_it.get(module.name) if place == 0 else None,
                shape=shape,
            )


def timed(
    model: Model, clock: Roofline, beside: Mapping[str, Waits] = MappingProxyType({})
) -> dict[str, tuple[float, float]]:
    """Seconds of forward and backward of each module by name, with what it takes besides.

    A block takes at least what the stack's host does for it, and each pass of it what its messages take.
    """
    columns = fused_columns(model) if clock.stack.fused else {}
    found: dict[str, tuple[float, float]] = {}
    blocks: dict[str, list[float]] = {}
    messages: dict[str, list[float]] = {}
    known: dict[Any, tuple[float, float]] = {}  # most blocks are alike
    again = repeated_parts(model, clock.setting)
    for module in model.modules:
        block = model.block_of(module)
        wide = columns.get(module.name, 0)
        form = (*unnamed(module), bool(block), wide, again[module.name])
        if form not in known:
            known[form] = clock.times(module, bool(block), wide, again[module.name])
        forward, backward = known[form]
        more = beside.get(module.name, Waits())
        found[module.name] = forward + more.forward, backward + more.backward
        sums = blocks.setdefault(block, [0.0, 0.0]), messages.setdefault(block, [0.0, 0.0])
        sent = more.forward + more.hidden, more.backward + more.hidden_backward
        for sum_of, own in zip(sums, (found[module.name], sent), strict=True):
            sum_of[0] += own[0]
            sum_of[1] += own[1]
    full = clock.setting.checkpointing == FULL
    hosts = [clock.stack.host_time(repeated, clock.kernels.pace) for repeated in (False, True)]
    for module in model.modules:
        if not (block := model.block_of(module)):
            continue
        passes, host = blocks[block], hosts[full and again[module.name][0] > 0]
        least = [max(own, sent) for own, sent in zip(passes, messages[block], strict=True)]
        longer = max(1.0, host / plain_sum(least)) if any(least) else 1.0
        if least != passes or longer > 1:
            forward, backward = (whole / own * longer if own else 1.0 for whole, own in zip(least, passes, strict=True))
            found[module.name] = found[module.name][0] * forward, found[module.name][1] * backward
    return beside_moves(model, activations_away(model, clock.setting), found, clock.gpu.host.link)


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


def _segments(model: Model, layers: tuple[Layer, ...]) -> Iterator[Segment]:
    """The blocks as parts that can be recomputed."""
    for name in model.blocks:
        inside = [layer for layer in layers if layer.name.startswith(f"{name}.")]
        yield Segment(name, inside[0].name, inside[-1].name, sum(layer.activation_bytes or 0 for layer in inside))
