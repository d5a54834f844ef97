"""DDP's own log, ``model._get_ddp_logging_data()`` dumped as JSON: its buckets, and average times.

The log has no sizes of single tensors, so each bucket becomes a layer; its total forward and backward times (ns) are
spread over the buckets by their bytes. Good enough to price other networks and worker counts, not to regroup tensors.
"""

from __future__ import annotations

from osfmodel.entities.checks import LONGEST_TIME
from osfmodel.entities.errors import DataError
from osfmodel.entities.workload import Layer, Workload
from osfmodel.formats.source_text import Hints, Text, parse, require


def sniff(head: str) -> bool:
    """Whether it is a JSON object that mentions rebuilt buckets."""
    return head.lstrip().startswith("{") and '"rebuilt_bucket_sizes"' in head


def read(text: Text, hints: Hints) -> list[Workload]:
    """One workload with a layer per bucket. Raises DataError if sizes or times are missing."""
    log = parse(text)
    sizes = [text.whole(1, size) for size in require(text, log, "rebuilt_bucket_sizes", str).split(",") if size.strip()]
    forward, backward = (_seconds(text, log, f"avg_{way}_compute_time") for way in ("forward", "backward"))
    total = sum(sizes)
    if not total:
        raise DataError("names no buckets: log after a few steps, when DDP has rebuilt them")
    layers = [
        Layer(f"bucket{number}", forward * size / total, backward * size / total, size)
        for number, size in enumerate(sizes)
    ]
    note = "a layer per DDP bucket; average forward and backward spread by bytes; update as 0"
    source = text.source(note)
    return [Workload(hints.name, tuple(reversed(layers)), hints.batch_size, 0.0, source)]


def _seconds(text: Text, log: dict[str, object], field: str) -> float:
    value = log.get(field)
    if not isinstance(value, int | float) or not 0 < value < LONGEST_TIME * 1e9:
        remedy = "let DDP time each step with model._set_ddp_runtime_logging_sample_rate(1)"
        raise DataError(f"{field} is {value!r:.40}: {remedy}")
    return value * 1e-9
