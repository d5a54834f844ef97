"""How a model is trained on one GPU, the activations that it keeps in memory for that, and what its host has of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from osfmodel.counting.kernels import gpu_of, width_of
from osfmodel.counting.modules import Model, Module
from osfmodel.counting.recipes import RECIPES, rate_type, wide_type
from osfmodel.counting.stacks import EAGER, STACKS
from osfmodel.entities.display import brief
from osfmodel.entities.errors import UsageError
from osfmodel.entities.gpus import HostLink
from osfmodel.entities.lookup import suggestion
from osfmodel.entities.savings import ACTIVATIONS, OFFLOADED, OPTIMIZER, Offload

TENSOR_OVERLAP = "tp"
"""Collectives of tensor groups in blocks, sent in chunks, on each of which products start as it arrives."""
NOTHING, SELECTIVE, FULL, BUDGET = "none", "selective", "full", "budget"
CHECKPOINTING = (NOTHING, SELECTIVE, FULL, BUDGET)
"""Activation checkpointing: of nothing, of all that is no product, of whole blocks, or of what is cheapest to repeat.
Selective checkpointing is torchtitan's: a block keeps its input and the results of attention and of every second
product, and repeats the rest; or Megatron's (``Stack.core``), which repeats the core of attention alone: of flash
attention inputs and result are kept anyway. A budget is torch's (``activation_memory_budget``): of all that a block
would keep beside its input it keeps this part, and repeats what takes least time for its bytes."""

NORMED = 4
"""Bytes that an unfused norm keeps for each element beside its input: float32 in the place of the input, and what its
weight multiplies, unless the weight is frozen."""


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """How a model is trained on one GPU.

    gpu:           its name, as in GPUS, or a file of osf bench --kernels
    dtype:         of computation; one of RECIPES for a narrow one
    batch:         samples of a micro-batch
    checkpointing: one of CHECKPOINTING
    portion:       of blocks that are checkpointed, the first of them; with a budget, of what each keeps
    stack:         one of STACKS
    offload:       kinds of OFFLOADED that the host has
    overlap:       TENSOR_OVERLAP, or nothing
    """

    gpu: str
    dtype: str = "bfloat16"
    batch: int = 1
    checkpointing: str = NOTHING
    portion: float = 1.0
    stack: str = EAGER
    offload: tuple[str, ...] = ()
    overlap: str = ""
    __repr__ = brief

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise UsageError(f"a micro-batch of {self.batch} samples: it must have 1 or more")
        kinds = ((kind, OFFLOADED) for kind in self.offload)
        for said, known in ((self.checkpointing, CHECKPOINTING), (self.stack, STACKS), *kinds):
            if said not in known:
                raise UsageError(f"{said!r} is no stack, checkpointing or part to offload: {suggestion(said, known)}")
        gpu_of(self.gpu).rate(rate_type(self.dtype))

    @property
    def width(self) -> int:
        """Bytes of an element of activations."""
        return int(width_of(wide_type(self.dtype)))

    def samples(self, module: Module) -> int:
        """Samples of a micro-batch for which a module works: 1 for one that runs once."""
        return 1 if module.once else self.batch


def checkpointing_of(part: str) -> tuple[str, float]:
    """The kind of checkpointing and its portion, as in ``ac=full``, ``ac=full:8/32`` or ``ac=budget:0.5``.

    Raises UsageError for another part of a workload in words.
    """
    how, colon, text = part.removeprefix("ac=").partition(":")
    if how not in CHECKPOINTING:
        raise UsageError(f"{part!r}: {suggestion(how, CHECKPOINTING)}")
    if not colon and how != BUDGET:
        return how, 1.0
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)(?:/([0-9]{1,6}))?", text)
    whole = float(match[2] or 1) if match else 0.0
    portion = float(match[1]) / whole if match and whole and how != NOTHING else -1.0
    if not 0 <= portion <= 1:
        raise UsageError(
            f"{part!r}: write ac=full:8/32 to checkpoint 8 of 32 blocks, the first, or ac=budget:0.5 to keep half"
        )
    return how, portion


def offload_of(part: str) -> tuple[str, ...]:
    """The kinds in ``offload=optimizer`` or ``offload=optimizer+activations``. Raises UsageError for another part."""
    kinds = part.removeprefix("offload=").split("+")
    for kind in kinds:
        if kind not in OFFLOADED or kinds.count(kind) > 1:
            write = " or ".join(f"offload={one}" for one in (*OFFLOADED, "+".join(OFFLOADED)))
            raise UsageError(f"{part!r}: write {write}")
    return tuple(kind for kind in OFFLOADED if kind in kinds)


def activations(model: Model, setting: TrainingSetup) -> tuple[list[int], list[int]]:
    """For each module, bytes of activations that stay after its forward, and all that are there in its backward.

    In backward a block has what it repeated besides what stays, and a module the gradients of its input and output.
    What the host has of a block comes back for its backward, with that of the block before it.
    """
    whole, saved = _saved(model, setting)
    away = activations_away(model, setting)
    stays = [0 if model.block_of(one) in away else own for one, own in zip(model.modules, saved, strict=True)]
    ahead = dict(zip(list(away)[1:], away.values(), strict=False))
    again: dict[str, int] = {}
    for module, own, staying in zip(model.modules, whole, stays, strict=True):
        again[model.block_of(module)] = again.get(model.block_of(module), 0) + max(0, own - staying)
    peaks = []
    for module, before in zip(model.modules, accumulate(stays), strict=True):
        sizes = (product.rows * max(product.inner, product.columns) for product in module.products)
        beside = 2 * max(sizes, default=0) * setting.width * (module.passes > 0)
        if module.logits:
            beside = module.logits * (module.loss or STACKS[setting.stack].logit)[1]
        weights = module.elements * setting.width if module.packed or module.through else 0
        block = model.block_of(module)
        peaks.append(before + again[block] + ahead.get(block, 0) + beside * setting.batch + weights)
    return stays, peaks


def activations_away(model: Model, setting: TrainingSetup) -> dict[str, int]:
    """For each block, bytes of activations that the host has from its forward to its backward; empty without any."""
    found: dict[str, int] = {}
    if ACTIVATIONS in setting.offload:
        for module, own in zip(model.modules, _saved(model, setting)[1], strict=True):
            if block := model.block_of(module):
                found[block] = found.get(block, 0) + own
    return found


def _saved(model: Model, setting: TrainingSetup) -> tuple[list[int], list[int]]:
    """For each module, bytes of all activations of its forward, and of those that are saved for backward."""
    stack = STACKS[setting.stack]

    def sized(elements: Iterator[float]) -> list[int]:
        return [
            setting.samples(module)
            * (round(max(0, own) * setting.width) + module.logits * (module.loss or stack.logit)[0])
            for module, own in zip(model.modules, elements, strict=True)
        ]

    whole = sized(_all(model, setting))
    kinds = {SELECTIVE: _selected, FULL: _inputs}
    if setting.checkpointing in kinds and not (setting.checkpointing == SELECTIVE and stack.core):
        within, less = checkpointed(model, setting), sized(kinds[setting.checkpointing](model))
        held = [model.block_of(module) in within for module in model.modules]
        stays = [few if how else own for few, own, how in zip(less, whole, held, strict=True)]
    else:
        dropped = dropped_parts(model, setting)
        stays = [
            own - round(own * dropped.get(module.name, 0.0)) for module, own in zip(model.modules, whole, strict=True)
        ]
    return whole, stays


def checkpointed(model: Model, setting: TrainingSetup) -> frozenset[str]:
    """The blocks that are checkpointed, as a whole or selectively."""
    count = round(setting.portion * len(model.blocks)) if setting.checkpointing in (SELECTIVE, FULL) else 0
    return frozenset(model.blocks[:count])


def dropped_parts(model: Model, setting: TrainingSetup) -> dict[str, float]:
    """With a budget, the part of what each module keeps that is repeated instead, by its name.

    The price is the operations of what computed it; what costs least for its bytes goes first, and one module goes in
    part. The input of a block stays.
    """
    found: dict[str, float] = {}
    if setting.checkpointing != BUDGET:
        return found
    kept = dict(zip([module.name for module in model.modules], _all(model, setting), strict=True))
    more = {name: own - stays for (name, own), stays in zip(kept.items(), _inputs(model), strict=True)}
    for block, modules in groupby(model.modules, model.block_of):
        own = list(modules) if block else []
        prices = {
            after.name: sum(_operations(one) for one in _makers(own, place)) + _operations(after, scores=True)
            for place, after in enumerate(own)
            if more[after.name] > 0
        }
        over = (1 - setting.portion) * sum(more[name] for name in prices)
        for name in sorted(prices, key=lambda one: prices[one] / more[one]):
            found[name] = min(more[name], max(0.0, over)) / kept[name]
            over -= more[name]
    return found


def repeated_parts(model: Model, setting: TrainingSetup) -> dict[str, tuple[float, float]]:
    """The parts of each module's forward, and of its attention alone, that are repeated, by its name."""
    if setting.checkpointing != BUDGET:
        within = checkpointed(model, setting)
        return {one.name: (float(model.block_of(one) in within),) * 2 for one in model.modules}
    dropped = dropped_parts(model, setting)
    whole: dict[str, float] = {}
    for _, modules in groupby(model.modules, model.block_of):
        own = list(modules)
        for place, after in enumerate(own):
            for one in _makers(own, place) if dropped.get(after.name) else ():
                whole[one.name] = max(whole.get(one.name, 0.0), dropped[after.name])
    return {
        one.name: (part := whole.get(one.name, 0.0), max(part, dropped.get(one.name, 0.0))) for one in model.modules
    }


def _makers(block: Sequence[Module], place: int) -> Sequence[Module]:
    """The modules that compute what the one at ``place`` keeps: that before it, or for attention all in its module."""
    after, owner = block[place], block[place].name.rpartition(".")[0]
    if not after.scores:
        return block[place - 1 : place] if place else ()
    return [one for one in block[:place] if one.name.rpartition(".")[0] == owner] or block[place - 1 : place]


def _operations(module: Module, scores: bool = False) -> int:
    """Operations of a module's products, or of its attention."""
    return sum(one.operations for one in (module.scores if scores else module.products))


def _all(model: Model, setting: TrainingSetup) -> Iterator[float]:
    """Elements that each module keeps; of inputs that the stack keeps as they were cast, those of as many bytes.

    A norm by root mean square that is unfused has NORMED more, as ``LlamaRMSNorm`` of transformers.
    """
    stack = STACKS[setting.stack]
    recipe = RECIPES.get(setting.dtype) if stack.casts else None
    for module in model.modules:
        inputs = sum(one.rows * one.inner * one.times for one in module.products) if model.block_of(module) else 0
        spared = 0.0 if recipe is None else 1 - recipe.width / setting.width
        more = stack.unfused * (NORMED / setting.width - module.frozen)
        yield module.kept - spared * max(0, min(module.kept, inputs)) + more * module.squared


def _inputs(model: Model) -> Iterator[float]:
    """Elements that each module of a block keeps where blocks are repeated: its first one its input."""
    last = ""
    for module in model.modules:
        block = model.block_of(module)
        yield module.kept if block != last else 0
        last = block


def _selected(model: Model) -> Iterator[float]:
    """Elements that each module of a block keeps under selective checkpointing."""
    last, products = "", 0
    for module in model.modules:
        block = model.block_of(module)
        kept = module.kept if block != last else 0
        if module.scores and module.products:  # the result of attention, which the product after it reads
            kept += module.products[0].rows * module.products[0].inner
        last, products = block, products * (block == last)
        for product in module.products:
            products += 1
            kept += product.rows * product.columns * product.times * (products % 2)
        yield kept if module.passes else 0


CPU_ADAM = 0.43
"""Part of the rate of a host's memory that an update on the CPU reaches: 10 billion parameters in 2.57 s on a DGX-2 of
256 GB/s (ZeRO-Offload, ATC'21, its CPU-Adam). One machine: assumed for all others."""
MOVED = 4
"""Bytes of a parameter, or its gradient, that cross the link: DeepSpeed, Megatron and FSDP2 move float32."""


def update_on_host(host: HostLink, parameters: int, each: int) -> tuple[float, float]:
    """Seconds of an update on the CPU with all moves, and the part of them in which gradients leave (parameters come).

    each: bytes of a parameter that the CPU reads and writes
    """
    moves = MOVED * parameters / host.link
    whole = each * parameters / (CPU_ADAM * host.memory) + 2 * moves
    return whole, moves / whole if whole else 0.0


def host_share(model: Model, kinds: tuple[str, ...], away: Mapping[str, int], moved: float, state: int) -> Offload:
    """The part of a workload that the host has, with bytes of activations of blocks that are ``away`` there.

    moved: part of the update's time in which gradients leave, or parameters come
    state: bytes of a parameter that the optimizer keeps, beside master copy and gradient
    """
    held = (state + 2 * MOVED) * model.trained * (OPTIMIZER in kinds)
    return Offload(kinds, moved, moved, held, sum(away.values()))


def beside_moves(
    model: Model, away: Mapping[str, int], times: Mapping[str, tuple[float, float]], link: float
) -> dict[str, tuple[float, float]]:
    """``times`` with each block at least as long, in forward and in backward, as its activations take over the link."""
    if not away:
        return dict(times)
    moves = {block: size / link for block, size in away.items()}
    whole = dict.fromkeys(moves, (0.0, 0.0))
    for module in model.modules:
        if (block := model.block_of(module)) in moves:
            whole[block] = whole[block][0] + times[module.name][0], whole[block][1] + times[module.name][1]
    found = dict(times)
    for module in model.modules:
        if (block := model.block_of(module)) in moves:
            longer = [max(1.0, moves[block] / own) if own else 1.0 for own in whole[block]]
            found[module.name] = times[module.name][0] * longer[0], times[module.name][1] * longer[1]
    return found
