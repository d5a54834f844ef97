"""How a model is trained on one GPU, and the activations that it keeps in memory for that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from osfmodel.counting.kernels import gpu_of
from osfmodel.counting.modules import Model, Module
from osfmodel.counting.recipes import RECIPES, rate_type, wide_type
from osfmodel.counting.stacks import EAGER, STACKS
from osfmodel.entities.display import brief
from osfmodel.entities.errors import UsageError

NOTHING, SELECTIVE, FULL = "none", "selective", "full"
CHECKPOINTING = (NOTHING, SELECTIVE, FULL)
"""Activation checkpointing: of nothing, of all that is no product, or of whole blocks. Selective checkpointing is
torchtitan's: a block keeps its input and the results of attention and of every second product, and repeats the rest."""
WIDTHS = {"float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of an element of activations, by their type."""


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """How a model is trained on one GPU.

    gpu:           its name, as in GPUS, or a file of osf bench --kernels
    dtype:         of computation; one of RECIPES for a narrow one
    batch:         samples of a micro-batch
    checkpointing: one of CHECKPOINTING
    stack:         one of STACKS
    """

    gpu: str
    dtype: str = "bfloat16"
    batch: int = 1
    checkpointing: str = NOTHING
    stack: str = EAGER
    __repr__ = brief

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise UsageError(f"a micro-batch of {self.batch} samples: it must have 1 or more")
        gpu_of(self.gpu).rate(rate_type(self.dtype))

    @property
    def width(self) -> int:
        """Bytes of an element of activations."""
        return WIDTHS[wide_type(self.dtype)]

    def samples(self, module: Module) -> int:
        """Samples of a micro-batch for which a module works: 1 for one that runs once."""
        return 1 if module.once else self.batch


def activations(model: Model, setting: TrainingSetup) -> tuple[list[int], list[int]]:
    """For each module, bytes of activations that stay after its forward, and all that are there in its backward.

    In backward a block has what it repeated besides what stays, and a module the gradients of its input and output.
    """
    stack = STACKS[setting.stack]

    def sized(elements: Iterator[float]) -> list[int]:
        return [
            setting.samples(module)
            * (round(max(0, own) * setting.width) + module.logits * (module.loss or stack.logit)[0])
            for module, own in zip(model.modules, elements, strict=True)
        ]

    whole = sized(_all(model, setting))
    kinds = {SELECTIVE: _selected, FULL: _inputs}
    stays = whole if setting.checkpointing == NOTHING else sized(kinds[setting.checkpointing](model))
    again: dict[str, int] = {}
    for module, own, staying in zip(model.modules, whole, stays, strict=True):
        again[model.block_of(module)] = again.get(model.block_of(module), 0) + max(0, own - staying)
    peaks = []
    for module, before in zip(model.modules, accumulate(stays), strict=True):
        sizes = (product.rows * max(product.inner, product.columns) for product in module.products)
        beside = 2 * max(sizes, default=0) * setting.width * (module.passes > 0)
        if module.logits:
            beside = module.logits * (module.loss or stack.logit)[1]
        weights = module.elements * setting.width if module.packed or module.through else 0
        peaks.append(before + again[model.block_of(module)] + beside * setting.batch + weights)
    return stays, peaks


def _all(model: Model, setting: TrainingSetup) -> Iterator[float]:
    """Elements that each module keeps; of inputs that the stack keeps as they were cast, those of as many bytes."""
    recipe = RECIPES.get(setting.dtype) if STACKS[setting.stack].casts else None
    for module in model.modules:
        inputs = sum(one.rows * one.inner * one.times for one in module.products) if model.block_of(module) else 0
        spared = 0.0 if recipe is None else 1 - recipe.width / setting.width
        yield module.kept - spared * max(0, min(module.kept, inputs))


def _inputs(model: Model) -> Iterator[float]:
    """Elements that each module keeps where blocks are repeated: of a block, what its first module keeps."""
    last = ""
    for module in model.modules:
        block = model.block_of(module)
        yield module.kept if not block or block != last else 0
        last = block


def _selected(model: Model) -> Iterator[float]:
    """Elements that each module keeps under selective checkpointing."""
    last, products = "", 0
    for module in model.modules:
        block = model.block_of(module)
        kept = module.kept if not block or block != last else 0
        if block and module.scores and module.products:  # the result of attention, which the product after it reads
            kept += module.products[0].rows * module.products[0].inner
        last, products = block, products * (block == last)
        for product in module.products if block else ():
            products += 1
            kept += product.rows * product.columns * product.times * (products % 2)
        yield kept if module.passes or not block else 0
