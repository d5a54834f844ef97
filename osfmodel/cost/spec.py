"""Parts of a cluster specification in words (``--cluster ring:50us,10Gbps``), for all cost models that have one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from osfmodel.entities.cluster import Link
from osfmodel.entities.errors import UsageError
from osfmodel.entities.units import parse_bandwidth, parse_time

_PER = re.compile(r"(.+)/\s*(gpu|node|nic)\s*", re.IGNORECASE)


class Rate(NamedTuple):
    """Bytes per second of each GPU, node or NIC; ``per`` is "" where the words do not say of which."""

    bytes_per_second: float
    per: str = ""


def rate_from_spec(bandwidth: str, units: Sequence[str] = ("gpu",), why: str = "") -> Rate:
    """Parse ``400Gbps``, ``400Gbps/gpu`` or ``3200Gbps/node``, above 0, where ``units`` are those that make sense.

    ``why`` tells why others do not. Raises UsageError.
    """
    match = _PER.fullmatch(bandwidth)
    figure, per = (match[1], match[2].lower()) if match else (bandwidth, "")
    if per and per not in units:
        known = " or ".join(f"/{unit}" for unit in units)
        raise UsageError(f"{bandwidth.strip()!r}: a rate per {per} does not work here{why}: write {known}")
    rate = parse_bandwidth(figure)
    if not rate:
        raise UsageError(f"a bandwidth of {bandwidth!r} moves nothing: it must be above 0")
    return Rate(rate, per)


def says_per(words: str) -> bool:
    """Whether a specification ends in a rate that says of what it is."""
    return _PER.fullmatch(words) is not None


def link_from_spec(latency: str, bandwidth: str) -> Link:
    """Parse ``50us`` and ``10Gbps`` or ``10Gbps/gpu`` into the link of each GPU. Raises UsageError."""
    rate = rate_from_spec(bandwidth, why=", where only the link of each GPU counts")
    return Link(parse_time(latency), 1 / rate.bytes_per_second)
