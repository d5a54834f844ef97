"""Models with one of each run of blocks that are alike, and bounds from them, for searches that ask for many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
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
