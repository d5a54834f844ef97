"""The settings of FSDP2 and HSDP, and names of plans with such settings: ``fsdp2:2,keep``, ``hsdp:bf16,ahead=2``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from osfmodel.entities.errors import PlanError, UsageError
from osfmodel.solve.sharded_bounds import AHEAD


@dataclass(frozen=True, slots=True)
class FsdpKnobs:
    """Settings of FSDP2.

    groups:   modules of each group, in forward order; None for one group per block
    forward_prefetch, backward_prefetch: groups gathered ahead; 0 and 1 are what FSDP2 does without lists
    replicas: sets of ranks that each hold all parameters; None for one per host
    reshard:  whether groups are freed after forward; of all, or of each
    gather_dtype, reduce_dtype: types in which parameters are gathered and gradients reduced; "" as Sharding says
    inputs:   reduce-scatters whose inputs are in memory at once
    separate: whether reduce-scatters have a communicator of their own
    """

    groups: tuple[tuple[str, ...], ...] | None = None
    forward_prefetch: int = AHEAD[0][0]
    backward_prefetch: int = AHEAD[0][1]
    replicas: int | None = 1
    reshard: bool | tuple[bool, ...] = True
    gather_dtype: str = ""
    reduce_dtype: str = ""
    inputs: int = 1
    separate: bool = False

    def freed(self, count: int) -> tuple[bool, ...]:
        """Whether each of ``count`` groups is freed after forward. Raises PlanError for settings of another number."""
        each = (self.reshard,) * count if isinstance(self.reshard, bool) else self.reshard
        if len(each) != count:
            raise PlanError(f"reshard_after_forward is given for {len(each)} groups, and there are {count}")
        return each


FSDP2, HSDP = "fsdp2:", "hsdp:"
"""Prefixes of plans with settings: ``fsdp2:2,keep``, ``hsdp:bf16,reduce=fp32,ahead=2``."""
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Short names of types."""
OPTIONS = (
    "blocks in each group or groups such as layers.0-3;layers.4-7, keep (reshard_after_forward=False), ahead=N, "
    "inputs=N, separate, bf16, fp16 or fp32, reduce=TYPE"
)


class NamedGroups(NamedTuple):
    """The settings in a plan's name.

    size:   blocks in each group, if no groups are named
    groups: parts of each named group, for ``fsdp2_patterns.modules_of``
    """

    size: int
    groups: tuple[tuple[str, ...], ...]
    knobs: FsdpKnobs


def choice_of(name: str) -> NamedGroups:
    """The settings of ``fsdp2:2,keep`` or ``fsdp2:layers.0-3;layers.4,layers.5``. Raises UsageError for other words."""
    size, groups, found = 1, [], FsdpKnobs(replicas=None if name.startswith(HSDP) else 1)
    for section in name.partition(":")[2].split(";"):
        parts = []
        for word in map(str.strip, section.split(",")):
            key, _, value = word.partition("=")
            number = int(value or key) if re.fullmatch("[0-9]{1,6}", value or key) else 0
            changed = _setting(found, word, key, value, number)
            if changed is not None:
                found = changed
            elif number and not value:
                size = number
            elif re.fullmatch(PART, word):
                parts.append(word)
            else:
                raise UsageError(f"plan {name!r}: {word!r} is no setting of it: give any of {OPTIONS}")
        groups += [tuple(parts)] if parts else []
    return NamedGroups(size, tuple(groups), found)


PART = r"[^\s=:]*[.*?\[][^\s=:]*"
"""Names of modules that are not taken for a misspelt setting: with a dot, or as a pattern."""


def _setting(knobs: FsdpKnobs, word: str, key: str, value: str, number: int) -> FsdpKnobs | None:
    """The settings with the one that ``word`` says; None if it says none."""
    if number and key == "ahead":
        return replace(knobs, forward_prefetch=number, backward_prefetch=number)
    if number and key == "inputs":
        return replace(knobs, inputs=number)
    if key == "reduce" and value in DTYPES:
        return replace(knobs, reduce_dtype=DTYPES[value])
    if word in DTYPES:
        return replace(knobs, gather_dtype=DTYPES[word])
    return replace(knobs, **FLAGS[word]) if word in FLAGS else None


FLAGS: dict[str, Any] = {"keep": {"reshard": False}, "separate": {"separate": True}}
"""Settings that are one word."""
