"""The settings of FSDP2 and HSDP, and names of plans with such settings: ``fsdp2:2,keep``, ``hsdp:bf16,ahead=2``.

Groups of modules are short text: ``layers.0-3;layers.4,layers.5;head.*``. A semicolon ends a group, a comma a part of
it. A part is the name of a module, a range of the numbers at the end of names (``layers.0-3``), or a pattern with
``*``, ``?`` or ``[...]``, which stands for all blocks that it fits or, if it fits none, for the outermost modules that
it fits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

from osfmodel.entities.errors import PlanError, UsageError
from osfmodel.entities.lookup import did_you_mean, nearest, suggestion
from osfmodel.entities.modules import blocks
from osfmodel.entities.workload import Workload
from osfmodel.solve.sharded_bounds import AHEAD

RANGE = re.compile(r"(.*?)(\d{1,6})-(\d{1,6})")
WILD = re.compile(r"[*?\[]")


def modules_of(groups: Sequence[Sequence[str]], workload: Workload) -> tuple[tuple[str, ...], ...]:
    """The modules of each group of parts. Raises PlanError for what no module is called, and for one in two groups."""
    names = list(_modules(workload))
    found = [tuple(name for part in parts for name in _named(part, names, workload)) for parts in groups]
    seen: set[str] = set()
    for name in (name for group in found for name in group):
        if name in seen:
            raise PlanError(f"module {name!r} is in two groups: name it once")
        seen.add(name)
    return tuple(found)


def is_part(part: str, workload: Workload) -> bool:
    """Whether a part stands for modules of the workload."""
    try:
        return bool(_named(part, list(_modules(workload)), workload))
    except PlanError:
        return False


def _modules(workload: Workload) -> Iterator[str]:
    """Names of all modules that hold parameters, outer ones first, and of rows without a module."""
    trained = [layer.name.split(".") for layer in workload.layers if layer.gradient_bytes]
    return iter(dict.fromkeys(".".join(parts[: end + 1]) for parts in trained for end in range(len(parts))))


def _named(part: str, names: Sequence[str], workload: Workload) -> list[str]:
    """The modules that a part stands for."""
    if part in names:
        return [part]
    numbers = RANGE.fullmatch(part)
    if numbers is not None and int(numbers[2]) <= int(numbers[3]):
        wanted = [f"{numbers[1]}{number}" for number in range(int(numbers[2]), int(numbers[3]) + 1)]
    elif WILD.search(part):
        wanted = [name for name in blocks(workload) if fnmatchcase(name, part)] or _outermost(part, names)
    else:
        wanted = []
    unknown = next((name for name in wanted if name not in names), part)
    if not wanted or unknown != part:
        known = blocks(workload) or names
        raise PlanError(
            f"no module of {workload.name!r} is called {unknown!r}: {suggestion(unknown, known, _some(known))}"
        )
    return wanted


def _outermost(pattern: str, names: Sequence[str]) -> list[str]:
    found = [name for name in names if fnmatchcase(name, pattern)]
    return [name for name in found if not any(name.startswith(f"{other}.") for other in found)]


def _some(names: Sequence[str]) -> str:
    """A few of the names, for a message."""
    return f"there are {pattern_text([names])}"


def pattern_text(groups: Sequence[Sequence[str]]) -> str:
    """Groups as text that :func:`modules_of` reads; runs of numbered modules as ranges."""
    return ";".join(",".join(_parts(group)) for group in groups)


def _parts(names: Sequence[str]) -> Iterator[str]:
    """The parts of a group: names, and ranges of three names or more."""
    for stem, first, count in runs_of(names):
        if count > 2:
            yield f"{stem}{first}-{first + count - 1}"
        else:
            yield from (f"{stem}{first + place}" if first >= 0 else stem for place in range(count))


def runs_of(names: Sequence[str]) -> list[tuple[str, int, int]]:
    """(stem, first number, how many) of each run of names with consecutive numbers; (name, -1, 1) for other names."""
    found = []
    keyed = [(place, *_numbered(name)) for place, name in enumerate(names)]
    for (stem, _), run in groupby(keyed, lambda row: (row[1], row[2] - row[0] if row[2] >= 0 else -1 - row[0])):
        several = list(run)
        found.append((stem, several[0][2], len(several)))
    return found


@lru_cache(maxsize=2**14)
def _numbered(name: str) -> tuple[str, int]:
    """The name without the number at its end, and that; (name, -1) without one, or where it begins with a 0."""
    match = re.fullmatch(r"(.*?)(0|[1-9]\d{0,5})", name)
    return (name, -1) if match is None or match[1][-1:] == "0" else (match[1], int(match[2]))


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
    offload:  what the host has: the optimizer, and with it parameters and gradients, or nothing
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
    offload: tuple[str, ...] = ()

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
    "a number of blocks per group (fsdp2:2) or groups (layers.0-3;layers.4-7), keep, ahead=N, forward=N, backward=N, "
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
            elif not number and re.fullmatch(PART, word):
                parts.append(word)
            else:
                raise unknown_setting(name, word)
        groups += [tuple(parts)] if parts else []
    return NamedGroups(size, tuple(groups), found)


def unknown_setting(name: str, word: str) -> UsageError:
    """The error of a word in a plan's name that is neither a setting nor a module."""
    meant = did_you_mean(nearest(word, (*DTYPES, *FLAGS), most=1, cutoff=0.7))
    if word.startswith("replicas="):
        meant = f"replicas follow the nodes, with one on each in {HSDP} and one in all in {FSDP2}: leave it out"
    return UsageError(f"plan {name!r}: unknown setting {word!r}{f': {meant}' if meant else f'. Settings: {OPTIONS}'}")


def plan_name(knobs: FsdpKnobs) -> str:
    """The name that :func:`choice_of` reads as these settings; "" for settings that no name states."""
    short = {dtype: word for word, dtype in DTYPES.items()}
    known = {knobs.gather_dtype, knobs.reduce_dtype} <= {"", *short}
    if not known or knobs.replicas not in (1, None) or not isinstance(knobs.reshard, bool):
        return ""
    both = {"forward": knobs.forward_prefetch, "backward": knobs.backward_prefetch}
    ahead = {"ahead": knobs.forward_prefetch} if len(set(both.values())) == 1 else both
    usual = dict(zip(both, AHEAD[0], strict=True))
    if any(not count and count != usual.get(word) for word, count in ahead.items()):
        return ""
    words = [
        pattern_text(knobs.groups) if knobs.groups else "1",
        *([] if knobs.reshard else ["keep"]),
        *(f"{word}={count}" for word, count in ahead.items() if count != usual.get(word)),
        *([f"inputs={knobs.inputs}"] if knobs.inputs > 1 else []),
        *(["separate"] if knobs.separate else []),
        *([short[knobs.gather_dtype]] if knobs.gather_dtype else []),
        *([f"reduce={short[knobs.reduce_dtype]}"] if knobs.reduce_dtype else []),
    ]
    return (FSDP2 if knobs.replicas == 1 else HSDP) + ",".join(words)


PART = r"[^\s=:]+"
"""Names of modules, ranges of them and patterns."""


def _setting(knobs: FsdpKnobs, word: str, key: str, value: str, number: int) -> FsdpKnobs | None:
    """The settings with the one that ``word`` says; None if it says none."""
    if number and value and key in NUMBERS:
        changed: dict[str, Any] = dict.fromkeys(NUMBERS[key], number)
        return replace(knobs, **changed)
    if key == "reduce" and value in DTYPES:
        return replace(knobs, reduce_dtype=DTYPES[value])
    if word in DTYPES:
        return replace(knobs, gather_dtype=DTYPES[word])
    return replace(knobs, **FLAGS[word]) if word in FLAGS else None


NUMBERS = {
    "ahead": ("forward_prefetch", "backward_prefetch"),
    "forward": ("forward_prefetch",),
    "backward": ("backward_prefetch",),
    "inputs": ("inputs",),
}
"""Settings of a number, and the knobs that they set."""
FLAGS: dict[str, Any] = {"keep": {"reshard": False}, "separate": {"separate": True}}
"""Settings that are one word."""
