"""Quantities with units, parsed strictly and written back without loss.

Inside osfmodel there are only seconds, bytes and bytes per second. Units appear at the edges: in text that a
person types (``25MiB``, ``3.2ms``, ``10Gbps``) and in text that a person reads. ``25MiB`` is 26,214,400 bytes and
``25MB`` is 25,000,000; a bare number is an error, because guessing the unit is how clusters get mistuned. A letter
alone is binary for a size, as nccl-tests writes it (``128M``), and bits for a rate, as networks are called (``400G``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import groupby

from osfmodel.entities.display import show_bytes
from osfmodel.entities.errors import UsageError
from osfmodel.entities.lookup import did_you_mean, nearest

MOST_LISTED = 40
"""Maximum number of sizes that are listed one by one."""

MIB = 2**20
BYTE_UNITS: Mapping[str, int] = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": MIB,
    "GiB": 2**30,
    "TiB": 2**40,
}
SIZE_SPELLINGS: Mapping[str, str] = {
    **{letter: f"{letter.upper()}iB" for letter in "kKMGT"},
    **{unit.lower(): unit for unit in ("MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB")},
    **{unit.upper(): unit for unit in ("KiB", "MiB", "GiB", "TiB")},
}
"""Other spellings of units of sizes, none of which may mean bits."""
TIME_UNITS: Mapping[str, Fraction] = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
    "w": Fraction(7 * 86400),
}
TIME_SPELLINGS: Mapping[str, str] = {
    spelling: unit
    for unit, spellings in {
        "s": "sec secs second seconds",
        "min": "mins minute minutes",
        "h": "hr hrs hour hours",
        "d": "day days",
        "w": "wk wks week weeks",
    }.items()
    for spelling in spellings.split()
}
"""Other spellings of units of time."""
_BITS = {prefix: Fraction(10**power, 8) for prefix, power in {"": 0, "k": 3, "M": 6, "G": 9, "T": 12}.items()}
BANDWIDTH_UNITS: Mapping[str, Fraction] = {
    **{f"{prefix}bps": factor for prefix, factor in _BITS.items()},
    **{f"{prefix}bit/s": factor for prefix, factor in _BITS.items()},
    **{f"{prefix}b/s": factor for prefix, factor in _BITS.items()},
    **{f"{unit}/s": Fraction(factor) for unit, factor in BYTE_UNITS.items()},
    **{f"{unit}ps": Fraction(factor) for unit, factor in BYTE_UNITS.items()},
}
BANDWIDTH_SPELLINGS: Mapping[str, str] = {
    f"{letter}{end}": f"{prefix}bps"
    for prefix in "kMGT"
    for letter, ends in ((prefix, ("", "b", "bit")), (prefix.lower(), ("bps", "bit/s")))
    for end in ends
}
"""Other spellings of units of bandwidth in bits, as networks are called."""
AMOUNTS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
"""Letters behind a number of samples or tokens; B is a billion."""
LARGEST = 10**30
"""Largest plausible number of bytes, seconds or bytes per second; a larger one is taken for a typing error."""
_QUANTITY = re.compile(r"([0-9]{1,40}(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,3})?)\s*([A-Za-zµ/]*)")
_PARTS = re.compile(r"[0-9.]{1,20} ?[a-z]{1,7}")
_SEVERAL = re.compile(rf"(?:{_PARTS.pattern} ?){{2,5}}")
"""A time of several parts: ``1d12h``."""


def _parse(
    text: str, units: Mapping[str, int | Fraction], spellings: Mapping[str, str], kind: str, example: str
) -> Fraction:
    """``text`` as an exact number of base units, or a :class:`UsageError` that names the right spelling."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a {kind}: write a non-negative number and a unit, for example {example}")
    number, unit = match[1], spellings.get(match[2], match[2])
    if unit == "":
        raise UsageError(f"{text!r} has no unit: write for example {example}")
    if unit not in units:
        meant = did_you_mean(f"{number}{near}" for near in _near(unit, units)) or f"write as in {example}"
        raise UsageError(f"{text!r}: unknown {kind} unit {unit!r}: {meant}")
    quantity = Fraction(number) * units[unit]
    if quantity > LARGEST:
        raise UsageError(f"{text!r} is too large for a {kind}: check the unit")
    return quantity


def _near(unit: str, units: Iterable[str]) -> list[str]:
    """Units that may have been meant. Never one that turns bits into bytes: that is a factor of 8."""
    if "b" not in unit.lower() and any("b" in known for known in units):
        return []  # without a b it could mean bits or bytes
    if not any("b" in known for known in units) and (sizes := _of_bytes(unit, units)):
        return sizes
    alike = [known for known in units if ("b" in known) == ("b" in unit)]
    same = [known for known in alike if known.lower() == unit.lower()]
    begun = [known for known in alike if known.startswith(unit)]
    lower = {known.lower(): known for known in alike}
    return same or begun or [lower[one] for one in nearest(unit.lower(), lower, most=2, cutoff=0.55)]


def _of_bytes(unit: str, units: Iterable[str]) -> list[str]:
    """Units of bytes with the prefix of ``gb``, ``Gb`` or ``gib`` in any case."""
    prefix = unit.upper().removesuffix("B").removesuffix("I")
    endings = ("iB",) if unit.upper().endswith("IB") else ("B", "iB")
    return [f"{prefix}{ending}" for ending in endings if prefix and f"{prefix}{ending}" in units]


def parse_bytes(text: str) -> int:
    """``"25MiB"`` -> 26214400 bytes. Raises UsageError for a bare number, an unknown unit or a fraction of a byte."""
    size = _parse(text, BYTE_UNITS, SIZE_SPELLINGS, "size", "25MiB")
    if size.denominator != 1:
        raise UsageError(f"{text!r} is not a whole number of bytes")
    return int(size)


def parse_room(text: str, example: str = "16GiB") -> int:
    """Bytes of a limit, with a fraction of a byte rounded down: ``"15.9GiB"``."""
    return int(_parse(text, BYTE_UNITS, SIZE_SPELLINGS, "size", example))


def parse_time(text: str) -> float:
    """``"3.2ms"`` -> 0.0032 seconds, ``"1d12h"`` -> 129600. Raises UsageError for a bare number or unknown unit."""
    parts = _PARTS.findall(text) if _SEVERAL.fullmatch(text.strip()) else [text]
    return float(sum(_parse(part, TIME_UNITS, TIME_SPELLINGS, "time", "3.2ms") for part in parts))


def parse_bandwidth(text: str) -> float:
    """``"10Gbps"`` -> 1.25e9 bytes per second (bits with ``bps``, bytes with ``B/s``). Raises UsageError."""
    return float(_parse(text, BANDWIDTH_UNITS, BANDWIDTH_SPELLINGS, "bandwidth", "10Gbps or 1.25GB/s"))


def parse_part(text: str) -> float:
    """``"1%"`` or ``"0.01"`` -> 0.01. Raises ValueError, for the caller to explain."""
    return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)


def parse_amount(option: str, text: str) -> float:
    """``"1.28M"``, ``"300B"`` or ``"15e12"`` of samples or tokens. Raises UsageError that names the option."""
    plain = re.sub(r"(?<=[0-9])[_,](?=[0-9]{3})", "", text)
    match = re.fullmatch(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE]\+?[0-9]{1,2})?)\s*([kKmMgGbBtT]?)\s*", plain)
    found = float(match[1]) * AMOUNTS["k" if match[2] in "kK" and match[2] else match[2].upper()] if match else 0.0
    if not found > 0:
        raise UsageError(f"{option} {text!r}: write a number above 0, such as 1281167, 115e6, 1.28M or 300B")
    return found


def show_sizes(sizes: Sequence[int]) -> str:
    """The end of a phrase on a number of buckets: each size, those alike in a row once, or the range of many."""
    if len(sizes) > MOST_LISTED:
        return f" of {show_bytes(min(sizes))} to {show_bytes(max(sizes))}"
    runs = [(said, len(list(run))) for said, run in groupby(map(show_bytes, sizes))]
    each = (f"{count} of {said}" if count > 2 else ", ".join([said] * count) for said, count in runs)
    return f": {', '.join(each)}"


def format_time(seconds: float) -> str:
    """A spelling that :func:`parse_time` reads back to exactly ``seconds``, in the largest unit that is below it."""
    exact = Fraction(repr(float(seconds)))
    for unit in ("s", "ms", "us", "ns"):
        scaled = exact / TIME_UNITS[unit]
        text = f"{float(scaled):.12g}"
        if (scaled >= 1 or unit == "ns") and parse_time(f"{text}{unit}") == seconds:
            return f"{text}{unit}"
    return f"{float(seconds)!r}s"


def format_bandwidth(bytes_per_second: float) -> str:
    """A decimal bit rate that :func:`parse_bandwidth` reads back to exactly ``bytes_per_second``."""
    for prefix in ("T", "G", "M", "k", ""):
        scaled = float(Fraction(float(bytes_per_second)) / _BITS[prefix])
        text = f"{scaled:.12g}"
        if (scaled >= 1 or not prefix) and parse_bandwidth(f"{text}{prefix}bps") == bytes_per_second:
            return f"{text}{prefix}bps"
    return f"{float(bytes_per_second)!r}B/s"


def show_rate(bytes_per_second: float) -> str:
    """A bit rate rounded for display: ``"3.2 Tbps"``."""
    for prefix in ("T", "G", "M", "k"):
        scaled = bytes_per_second / float(_BITS[prefix])
        if scaled >= 1:
            return f"{scaled:.4g} {prefix}bps"
    return f"{bytes_per_second * 8:.4g} bps"
