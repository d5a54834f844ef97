"""Stacks, the software that runs a model: what they fuse, move and launch, and what published runs teach of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple

from osfmodel.counting.kernels import LAUNCHED, in_file, most_like
from osfmodel.counting.modules import Model, Module
from osfmodel.counting.recipes import FLOAT8, RECIPES, WIDE
from osfmodel.entities.errors import DataError
from osfmodel.entities.files.profiles import bundled_file
from osfmodel.entities.gpus import GPUS, generation_of

FILE = "efficiency.json"
EAGER, COMPILE, COMPOSER = "eager", "compile", "composer"
FLASH, FLASH_1, CUDNN = "flash", "flash-1", "cudnn"
"""Attention of FlashAttention 2, as PyTorch has it, of FlashAttention 1, and of cuDNN."""


class Stack(NamedTuple):
    """How a trainer runs a model.

    said:      what it is, for people
    fused:     whether matrices with the same input are one product: queries, keys and values; gate and up
    gradients: bytes of a parameter that adding its gradient to that of earlier micro-batches moves, in each
    host:      seconds that a block takes at least, forward and backward, whatever its GPU: launches and Python
    like:      stack whose learned passes over memory it has
    attention: library of its attention
    master:    whether weights are in the type of computation, and the optimizer's state has them in float32 as well
    gathers:   whether under tensor parallelism a matrix that is divided by columns keeps the input that was gathered
    logit:     bytes for each logit at the end of forward: itself, and what the loss keeps; and as many as its gradient
    unfused:   whether norms and rotary positions are kernels for each operation, as their libraries write them
    casts:     whether backward keeps the inputs of a recipe's products as they were cast
    core:      whether selective checkpointing repeats the core of attention alone
    by_cost:   whether stages of a pipeline get equal shares of the elements of matrices, the head's too, and each ends
               with the block that passes its share; equal numbers of blocks else
    twice:     whether gradients stay in the type of computation too, in DDP's buckets, beside their float32 sum
    interleaves: whether the search tries interleaved pipelines
    handover:  seconds by which ``host`` is longer in a pipeline over several nodes, for each GPU of a tensor group
    """

    said: str
    fused: bool
    gradients: int
    host: float
    like: str
    attention: str
    master: bool
    gathers: bool
    logit: tuple[int, int]
    unfused: bool = False
    casts: bool = False
    by_cost: bool = False
    core: bool = False
    twice: bool = False
    handover: float = 0.0
    interleaves: bool = False

    def host_time(self, repeated: bool, pace: float = 1.0) -> float:
        """Seconds that a block takes at least; a third more where its forward is ``repeated``.

        pace: seconds of a launch, over LAUNCHED
        """
        return self.host * (4 / 3 if repeated else 1) * pace


STACKS: Mapping[str, Stack] = {
    EAGER: Stack("PyTorch as it is", False, 0, 100 * LAUNCHED, EAGER, FLASH, False, True, (10, 4), unfused=True),
    COMPILE: Stack("PyTorch with compiled blocks", False, 0, 40 * LAUNCHED, COMPILE, FLASH, False, True, (10, 4)),
    "te": Stack(
        "Transformer Engine as in Megatron",
        True,
        8,
        60 * LAUNCHED,
        "te",
        CUDNN,
        True,
        False,
        (6, 0),
        casts=True,
        core=True,
        interleaves=True,
    ),
    "nanotron": Stack(
        "nanotron", True, 8, 4.4e-3, EAGER, FLASH, True, False, (12, 0), by_cost=True, twice=True, handover=2.0e-3
    ),
    COMPOSER: Stack("Composer and LLM Foundry of 2023", False, 0, 100 * LAUNCHED, EAGER, FLASH_1, False, True, (10, 4)),
}
"""By the name in words. Bytes of gradients: a float32 sum read and written. Launches: kernels of a block of a decoder.
nanotron: runs of 1 and 8 billion parameters take 4.2 to 4.6 ms a block at tensor parallel 1 to 8, and with
2 to 8 stages on several nodes, for each block of the one that has most, 8.5, 12.4 and 19 to 21 ms at tensor parallel 2,
4 and 8, whatever the micro-batch (the model of 1 billion alone 15 to 19 ms at 8; ``benchmarks/layouts.py`` reads it
again from each model). By default it gathers inputs again in backward, and its loss has the logits in float32 three
times."""
USUAL_STACKS: Mapping[str, str] = {"mpt": COMPOSER}
"""Stacks that models were trained with, by the first word of their name, where that is not PyTorch as it is."""


def fused_columns(model: Model) -> dict[str, int]:
    """Columns of all matrices of a block that have one input and follow one another, by the names of their modules."""
    found: dict[str, int] = {}
    for _, group in groupby(model.modules, lambda one: _input(model, one)):
        own = list(group)
        if len(own) > 1 and own[0].products:
            total = sum(one.products[0].columns for one in own)
            found |= {one.name: total for one in own}
    return found


def _input(model: Model, module: Module) -> object:
    """A key that modules share which are one product; its own name for a module that stands alone."""
    block = model.block_of(module)
    if not block or len(module.products) != 1 or module.scores or module.row_parallel or module.experts:
        return module.name
    return block, module.name.rpartition(".")[0], module.products[0].rows, module.products[0].inner


class Traffic(NamedTuple):
    """Parts of the counted elements that a stack moves through memory.

    moved: of elements apart from products
    loss:  of those of the loss over the vocabulary
    casts: of the elements of a product in a recipe, once in forward and once in backward
    """

    moved: float
    loss: float
    casts: float


class Learned(NamedTuple):
    """Clocks, passes and doubts as published runs teach them.

    clocks:    GPU with a table of kernels -> type of element -> speed of products in training, as part of that alone
    attention: library of attention -> GPU with a table -> its rate, as part of that of the kernels in the table
    passes:    by stack
    doubts:    GPU with a clock -> stack with passes -> relative half width of the band, which holds 90 % of the runs of
               sources left out; "experts" -> "any" for models with experts, "any" -> "any" where nothing was learned
    recipes:   recipe -> time of its products and casts over that in float8 with a scale for each tensor
    """

    clocks: Mapping[str, Mapping[str, float]]
    attention: Mapping[str, Mapping[str, float]]
    passes: Mapping[str, Traffic]
    doubts: Mapping[str, Mapping[str, float]]
    recipes: Mapping[str, float] = MappingProxyType({})

    def clock(self, gpu: str, dtype: str) -> float:
        """Speed of products in training, as part of that of the kernels alone; those of a file are not slowed down.

        Kernels in float8 have a scale for each tensor, so another recipe is slower by its factor.
        """
        own = {} if in_file(gpu) else self.clocks.get(table_of(gpu), self.clocks[ANY])
        other = 1.0 if in_file(gpu) else self.clocks[ANY][WIDE]
        limited = 1.0 if in_file(gpu) else GPUS[gpu].clock
        return own.get(FLOAT8 if dtype in RECIPES else WIDE, other) * limited / self.slower(dtype)

    def slower(self, dtype: str) -> float:
        """Time of products and casts in a recipe over that in float8, by the recipe that it is like if not learned."""
        while dtype not in self.recipes and dtype in RECIPES:
            dtype = RECIPES[dtype].like
        return self.recipes.get(dtype, 1.0)

    def attending(self, gpu: str, library: str) -> float:
        """Rate of attention on the GPU of that name, as part of that of the kernels in its table; 1 as above."""
        if in_file(gpu):
            return 1.0
        own = self.attention[library]
        return own.get(most_like(GPUS[gpu]), own[ANY]) * GPUS[gpu].clock

    def doubt(self, gpu: str, stack: str, dtype: str, experts: bool) -> float:
        """Relative half width of the band of step times; wider where no run taught the GPU, its stack or the type.

        That of kernels measured here is that of a GPU with a table and no run: nobody knows its clock in training.
        """
        table = table_of(gpu)
        ran = dtype not in RECIPES or stack in RECIPES[dtype].stacks
        seen = self.doubts.get(LIKE.get(table, table), {}) if ran else {}
        own = seen.get(STACKS[stack].like, self.doubts[ANY][ANY])
        return max(own, self.doubts.get(EXPERTS, {}).get(ANY, own)) if experts else own


ANY, EXPERTS = "any", "experts"
LIKE: Mapping[str, str] = {"b300": "b200", "gb200": "b200", "gb300": "b200", "h200": "h100"}
"""GPUs with a table of kernels, and the one with which they share a clock in training: their runs are too few."""


@cache
def table_of(gpu: str) -> str:
    """The GPU of the same generation whose table of kernels the one of that name takes; "any" where there is none."""
    if in_file(gpu):
        return ANY
    table = most_like(GPUS[gpu])
    return table if generation_of(GPUS[gpu].called) == generation_of(GPUS[table].called) else ANY


def clock_of(gpu: str) -> str:
    """The GPU whose clock in training the one of that name has; "any": that of all."""
    table = table_of(gpu)
    return LIKE.get(table, table) if table in learned().clocks else ANY


@cache
def learned() -> Learned:
    """The values that come with osfmodel. Raises DataError for a damaged file."""
    path = bundled_file(FILE)
    try:
        said = json.loads(path.read_bytes())
        passes = {name: Traffic(**row) for name, row in said["passes"].items()}
        return Learned(said["clocks"], said["attention"], passes, said["doubts"], said["recipes"])
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path} is damaged ({error}): install osfmodel again") from None
