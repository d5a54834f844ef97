"""Blocks of a model: those of each stage of a pipeline; and models with one of each run of blocks that are alike.

Such models give bounds for searches that ask for many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, groupby, pairwise
from math import prod
from types import MappingProxyType

from osfmodel.counting.modules import Model, Module, unnamed
from osfmodel.counting.roofline import Roofline, Waits, timed
from osfmodel.counting.training import TrainingSetup, activations
from osfmodel.entities.rounding import plain_sum


def folded(model: Model, modules: Sequence[Module]) -> tuple[list[Module], dict[str, int]]:
    """The modules with the first block of each run of blocks that are alike, and by that block the number of others."""
    found: list[Module] = []
    more: dict[str, int] = {}
    before, last = "", None
    for block, own in groupby(modules, model.block_of):
        members = list(own)
        form = [(one.name.removeprefix(block), *unnamed(one)) for one in members] if block else None
        if block and form == last:
            more[before] += 1
            continue
        found += members
        before, last = block, form
        if block:
            more[block] = 0
    return found, more


def outline(
    model: Model,
    setting: TrainingSetup,
    beside: Mapping[str, Waits] = MappingProxyType({}),
    more: Mapping[str, int] = MappingProxyType({}),
) -> tuple[float, int]:
    """Seconds of a micro-batch, and bytes of activations at their highest level, as :func:`workload_of` has them.

    more: by block, how many that are alike follow it and were left out (:func:`folded`)
    """
    times, (stays, peaks) = timed(model, Roofline.of(setting), beside), activations(model, setting)
    others = [more.get(model.block_of(one), 0) for one in model.modules]
    seconds = plain_sum(
        plain_sum(times[one.name]) * (1 + alike) for one, alike in zip(model.modules, others, strict=True)
    )
    before: dict[str, int] = {}  # bytes that others which are alike keep, up to the last of each block
    for module, own, alike in zip(model.modules, stays, others, strict=True):
        block = model.block_of(module)
        before[block] = before.pop(block, 0) + own * alike
    own_block, kept, most = "", 0, 0
    for module, peak in zip(model.modules, peaks, strict=True):
        block = model.block_of(module)
        if block and block != own_block:
            kept += before[block]
        own_block, most = block, max(most, peak + kept)
    return seconds, most


def parts_of(model: Model, stages: int, by_cost: bool) -> list[tuple[Module, ...]]:
    """The modules of each of so many parts, one after the other.

    All in front of the blocks count as one block, a tower of images among it, and all behind them; the first stages
    have one more, as torchtitan shares them. ``by_cost``, a stage ends with the block that passes its share of the
    costs, as nanotron shares them.
    """
    units = [
        tuple(modules) for _, modules in groupby(model.modules, lambda one: "" if one.whole else model.block_of(one))
    ]
    each, more = divmod(len(units), stages)
    firsts = [stage * each + min(stage, more) for stage in range(stages + 1)]
    if by_cost:
        costs = list(map(_stage_cost, units))
        firsts, share = [0], sum(costs) / stages
        for place, passed in enumerate(accumulate(costs), 1):
            more = stages - len(firsts)
            if more and (passed > share * len(firsts) or len(units) - place == more):
                firsts.append(place)
        firsts.append(len(units))
    return [tuple(chain.from_iterable(units[first:end])) for first, end in pairwise(firsts)]


def _stage_cost(unit: Sequence[Module]) -> int:
    """Elements of a block's matrices, or of those of the head; four times the last one's for attention, as nanotron."""
    last = {one.name.rpartition(".")[0]: one for one in unit if one.scores}
    inside = [4 * prod(one.products[-1][1:3]) for one in last.values() if one.products]
    others = [one for one in unit if one.name.rpartition(".")[0] not in last]
    return sum(inside) + sum(prod(product[1:4]) for one in others for product in one.products)
