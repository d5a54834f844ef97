"""Modules of a pipeline's stages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, groupby, pairwise
from math import prod

from osfmodel.counting.modules import Model, Module


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
