"""Figures and nouns as short text for people, and the views of a noun for programs and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from importlib import import_module
from typing import Any

LONGEST_REPR = 120
"""Maximum characters of the repr of a noun."""
WRITER = "osfmodel.show.views"
"""The module that makes the views of nouns, loaded when one is asked for."""


def show_bytes(size: float) -> str:
    """``size`` rounded for display: ``"14.4 MiB"``."""
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{_four_digits(size / scale)} {unit}"
    return f"{size:.0f} B"


def show_bus_rate(bytes_per_second: float) -> str:
    """A bus bandwidth in GB/s, as nccl-tests writes it: ``"229.4 GB/s"``."""
    return f"{bytes_per_second / 1e9:.4g} GB/s"


def show_time(seconds: float) -> str:
    """``seconds`` rounded for display: ``"95.6 ms"``; less than a nanosecond is ``"0 s"``."""
    return _in_unit(seconds, _four_digits)


def show_predicted_time(seconds: float) -> str:
    """``seconds`` with three digits, as many as an error band of several percent leaves: ``"95.6 ms"``."""
    return _in_unit(float(f"{seconds:.3g}"), show_predicted)


def _in_unit(seconds: float, digits: Callable[[float], str]) -> str:
    """``seconds`` in the largest unit of which there is one or more."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if abs(seconds) * scale >= 1:
            return f"{digits(seconds * scale)} {unit}"
    return f"{digits(seconds * 1e9)} ns" if abs(seconds) >= 1e-9 else "0 s"


def show_predicted(value: float) -> str:
    """A number with three digits, as many as an error band of several percent leaves: ``"11,500"``."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:#.3g}".rstrip(".") if abs(rounded) < 1e3 else f"{rounded:,.0f}"


def show_share(part: float, sign: str = "") -> str:
    """``part`` in percent, with a decimal below 10 and none above: ``"3.1%"``, ``"1,200%"``; ``sign`` "+" for both."""
    return f"{part:{sign},.0%}" if abs(part) >= LARGE_SHARE else f"{part:{sign}.1%}"


LARGE_SHARE = 0.0995
"""Parts from here on are 10 % or more with one decimal."""


def _four_digits(value: float) -> str:
    return f"{value:#.4g}".rstrip(".") if abs(value) < 1e4 else f"{value:,.0f}"


def how_many(number: int, noun: str) -> str:
    """A number with its noun: ``1 worker``, ``2 workers``."""
    return f"{number} {noun}{'s' * (number != 1)}"


def listed(names: Sequence[str]) -> str:
    """The names in a sentence: ``a``, ``a and b``, ``a, b and c``."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def brief(noun: Any, text: str = "") -> str:
    """The repr of a dataclass as one line, ``<Class text>``; without a text, the fields that are not as by default."""
    if not text:
        values = {one.name: value for one in fields(noun) if (value := getattr(noun, one.name)) != one.default}
        said = (
            f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value!r}" for name, value in values.items()
        )
        text = ", ".join(said)
    line = f"{type(noun).__name__} {text}".rstrip()
    return f"<{line}>" if len(line) <= LONGEST_REPR - 2 else f"<{line[: LONGEST_REPR - 5]}...>"


def to_dict(noun: Any) -> dict[str, Any]:
    """The JSON document that the command line writes for it."""
    found: dict[str, Any] = import_module(WRITER).document(noun)
    return found


def to_records(noun: Any) -> list[dict[str, Any]]:
    """The rows of its table, with units in their keys: flat dicts that all have the same keys."""
    found: list[dict[str, Any]] = import_module(WRITER).records(noun)
    return found


def to_frame(noun: Any) -> Any:
    """The rows of its table as a pandas DataFrame. Raises UsageError without pandas."""
    return import_module(WRITER).frame(noun)


def _repr_html_(noun: Any) -> str:
    """Its table in HTML, which notebooks show."""
    return str(import_module(WRITER).html(noun))


VIEWED = (to_dict, to_records, to_frame, _repr_html_)
"""Methods of every noun and result that has a document."""


def little(gain: float) -> str:
    """A gain that is not worth having: ``only 0.2%``, or ``less than 0.1%``."""
    return f"only {show_share(gain)}" if gain >= 0.0005 else "less than 0.1%"
