"""Parts of a cluster specification in words (``--cluster ring:50us,10Gbps``), for all cost models that have one."""

from __future__ import annotations

from osfmodel.entities.cluster import Link
from osfmodel.entities.errors import UsageError
from osfmodel.entities.units import parse_bandwidth, parse_time


def link_from_spec(latency: str, bandwidth: str) -> Link:
    """Parse ``50us`` and ``10Gbps`` into a link. Raises UsageError."""
    return Link(parse_time(latency), 1 / rate_from_spec(bandwidth))


def rate_from_spec(bandwidth: str) -> float:
    """Bytes per second, above 0. Raises UsageError."""
    rate = parse_bandwidth(bandwidth)
    if not rate:
        raise UsageError(f"a bandwidth of {bandwidth!r} moves nothing: it must be above 0")
    return rate
