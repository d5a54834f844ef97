"""Horovod's settings by name: in names of plans, in its environment, and in the log of its tuner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any, NamedTuple

from osfmodel.engine.horovod_loop import Loop
from osfmodel.entities.errors import OsfError, UsageError
from osfmodel.entities.units import MIB, parse_bytes, parse_time

PREFIX = "horovod:"
"""Prefix of plan names that state Horovod's settings, as in ``horovod:64MiB,5ms``."""
DEFAULT = Loop()
"""Horovod with its default settings."""


class Setting(NamedTuple):
    """A field of Loop, and its names elsewhere.

    word:     in the name of a plan; "" for threshold and cycle time, which come first there, and for groups
    variable: of Horovod's environment; "" if there is none
    column:   of its autotune log; "" if the tuner does not change it
    """

    field: str
    word: str
    variable: str
    column: str = ""


SETTINGS = (
    Setting("threshold", "", "HOROVOD_FUSION_THRESHOLD", "tensor_fusion_threshold"),
    Setting("cycle", "", "HOROVOD_CYCLE_TIME", "cycle_time_ms"),
    Setting("use_groups", "", "HOROVOD_DISABLE_GROUP_FUSION"),
    Setting("streams", "streams", "HOROVOD_NUM_NCCL_STREAMS"),
    Setting("cache_capacity", "cache", "HOROVOD_CACHE_CAPACITY", "cache_enabled"),
    Setting("waits", "waits", ""),
    Setting("hierarchical", "hierarchical", "HOROVOD_HIERARCHICAL_ALLREDUCE", "hierarchical_allreduce"),
)
ALWAYS = ("threshold", "cycle")
"""Fields that are written even if they have their default."""


def name_of(loop: Loop) -> str:
    """The name that :func:`named` reads: all settings but the groups, to the last digit."""
    whole = f"{loop.threshold // MIB}MiB" if loop.threshold and loop.threshold % MIB == 0 else f"{loop.threshold}B"
    words = [word if value is True else f"{word}={value}" for (_, word, *_), value in _changed(loop) if word]
    return ",".join([whole, f"{milliseconds(loop.cycle)}ms", *words])


def named(text: str) -> Loop:
    """The settings in ``64MiB``, ``64MiB,5ms`` or ``64MiB,5ms,streams=2,cache=0,waits,hierarchical``.

    Raises UsageError for anything else.
    """
    threshold, cycle, *further = [*text.split(","), ""] if "," not in text else text.split(",")
    try:
        loop = Loop(parse_bytes(threshold), parse_time(cycle) if cycle else DEFAULT.cycle)
        for word in further:
            loop = replace(loop, **_further(word))
    except OsfError as error:
        forms = "".join(f"[,{word if _switch(field) else f'{word}=N'}]" for field, word, *_ in SETTINGS if word)
        said = f"write THRESHOLD,CYCLE{forms}, such as 64MiB,5ms"
        raise UsageError(f"Horovod's settings {text!r}: {said} ({error})") from None
    return loop


def _further(text: str) -> dict[str, Any]:
    word, _, value = text.partition("=")
    for field, known, *_ in SETTINGS:
        if known and text == known and _switch(field):
            return {field: True}
        if known and word == known and not _switch(field) and value.isdecimal():
            return {field: int(value)}
    raise UsageError(f"{text!r} is not one of them")


def environment(loop: Loop) -> dict[str, str]:
    """Environment variables that Horovod reads at its start; defaults are left out except threshold and cycle time."""
    said = {"threshold": str(loop.threshold), "cycle": milliseconds(loop.cycle)}
    said |= {field: str(int(value)) for (field, *_), value in _changed(loop)}
    return {variable: said[field] for field, _, variable, _ in SETTINGS if variable and field in said}


def switched(switches: Mapping[str, bool]) -> tuple[dict[str, Any], list[str]]:
    """Fields of Loop for the switches of the tuner's log, and the names of further switches that are on.

    Switches for all-gathers are ignored: gradients do not use them.
    """
    fields = {column: field for field, _, _, column in SETTINGS}
    found: dict[str, Any] = {}
    strange = []
    for column, on in switches.items():
        field = fields.get(column, "")
        if field and _switch(field):
            found[field] = on
        elif field:
            found |= {} if on else {field: 0}
        elif on and column != "hierarchical_allgather":
            strange.append(column)
    return found, strange


def milliseconds(seconds: float) -> str:
    """``seconds`` in milliseconds with all digits: 0.0012345678 is "1.2345678"."""
    return f"{Decimal(repr(float(seconds))).scaleb(3):f}"


def _switch(field: str) -> bool:
    return isinstance(getattr(DEFAULT, field), bool)


def _changed(loop: Loop) -> list[tuple[Setting, Any]]:
    """The settings that differ from their default, without threshold and cycle time."""
    found = [(entry, getattr(loop, entry.field)) for entry in SETTINGS if entry.field not in ALWAYS]
    return [(entry, value) for entry, value in found if value != getattr(DEFAULT, entry.field)]
