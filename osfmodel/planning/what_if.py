"""Changes to a workload or a cluster, for what-if questions. Pure functions from noun to noun.

Each changes one thing. :class:`WhatIf` holds several changes and applies them in their order: a batch
size before :func:`accumulating`, which makes several of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from osfmodel.cost.faster_network import SAME, Change, Network, caveat, faster_network
from osfmodel.cost.model import STATED, rate_from_spec, says_per
from osfmodel.entities.batches import FIXED_SHARE, accumulating, at_batch, idle, require_micro_batches
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.compression import compressed, compression_called
from osfmodel.entities.display import brief
from osfmodel.entities.effects import EFFECTS, Effects, effects_of
from osfmodel.entities.errors import UsageError
from osfmodel.entities.files.usual_effects import usual_effects
from osfmodel.entities.units import format_bandwidth, format_time, parse_bandwidth, parse_part, parse_time
from osfmodel.entities.workload import Workload

MOST = 2.0
"""Largest plausible fraction; a larger number was most likely meant as percent."""
LARGEST_FACTOR = 1e9
BOTH = "--batch-size contradicts --global-batch"


def faster_device(workload: Workload, factor: float) -> Workload:
    """``workload`` on a device ``factor`` times as fast: forward, backward, update and the host's pace alike.

    Its doubt grows by OTHER_DEVICE for each doubling. Raises UsageError for a factor of 0 or less.
    """
    _require_factor(factor)
    doubt = OTHER_DEVICE * abs(math.log2(factor))
    return workload if factor == 1 else replace(workload.scaled(1 / factor), doubt=workload.doubt + doubt)


OTHER_DEVICE = 0.1
"""Part by which compute times are more doubtful for each doubling of a device's speed: taken, not measured."""


def _require_factor(value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"the factor on compute is {value!r}: it must be above 0")


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Several changes; the defaults change nothing.

    bandwidth, latency: of the network, see :func:`faster_network`; a number is a factor
    compute:      speed of the device, as a multiple of the present one
    compression:  the way gradients are sent, see :func:`compressed`
    accumulate:   micro-batches per iteration
    batch_size:   samples per worker and micro-batch
    global_batch: samples of all workers and micro-batches, shared evenly (strong scaling); None keeps those per worker.
        With a batch_size it says how many micro-batches are accumulated, see :meth:`in_micro_batches`

    Raises UsageError for impossible changes.
    """

    bandwidth: Change = SAME
    latency: Change = SAME
    compute: float = 1.0
    compression: str = "none"
    accumulate: int = 1
    batch_size: int | None = None
    global_batch: int | None = None

    def __repr__(self) -> str:
        return brief(self, self.words or "no change")

    def __post_init__(self) -> None:
        for name in ("bandwidth", "latency"):
            if isinstance(factor := getattr(self, name), (int, float)):
                object.__setattr__(self, name, Change(factor))
        Network(self.bandwidth, self.latency)
        _require_factor(self.compute)
        compression_called(self.compression)
        require_micro_batches(self.accumulate, "--accumulate")
        if self.batch_size is not None and self.global_batch is not None and self.accumulate > 1:
            raise UsageError(f"{BOTH} with --accumulate, which follows from them: give two of them")
        if self.batch_size is not None and self.batch_size < 1:
            raise UsageError(f"--batch-size {self.batch_size}: it must be 1 or more")
        if self.global_batch is not None and self.global_batch < 1:
            raise UsageError(f"--global-batch {self.global_batch}: it must be 1 or more")

    def of_cluster(self, cluster: Cluster) -> Cluster:
        """``cluster`` with the changes. Raises UsageError as :func:`faster_network`."""
        found = faster_network(cluster, self.bandwidth, self.latency)
        return replace(found, doubt=found.doubt + STATED) if self.network_changed else found

    def of_workload(self, workload: Workload, workers: int, also: Workload | None = None) -> Workload:
        """``workload`` as each of ``workers`` workers computes it; ``also``: its profile at another batch size.

        Raises UsageError where the global batch is not shared evenly, DataError as :func:`~entities.batches.at_batch`.
        """
        size = self.share(workers)
        if also is not None:
            return self._changed(workload, size, also)
        change = ("what if", size, self.compute, self.compression, self.accumulate)
        return workload.variant(change, lambda: self._changed(workload, size))

    def _changed(self, workload: Workload, size: int | None, also: Workload | None = None) -> Workload:
        if size is not None and (workload.batch_size is not None or self.global_batch is not None):
            workload = workload if workload.batch_size == size else at_batch(workload, size, also, FIXED_SHARE)
        workload = workload if size in (None, workload.batch_size) else replace(workload, batch_size=size)
        return accumulating(compressed(faster_device(workload, self.compute), self.compression), self.accumulate)

    def share(self, workers: int) -> int | None:
        """Samples per worker and micro-batch; None for the profile's. Raises UsageError if it is not a whole number."""
        if self.global_batch is None or self.batch_size is not None:
            return self.batch_size
        parts = workers * self.accumulate
        if self.global_batch % parts:
            near = [
                size for size in (self.global_batch // parts * parts, -(-self.global_batch // parts) * parts) if size
            ]
            among = f"{workers} workers" + (f" with {self.accumulate} micro-batches" if self.accumulate > 1 else "")
            does = " or ".join(f"--global-batch {size}" for size in near)
            raise UsageError(f"--global-batch {self.global_batch} is not shared evenly by {among}: give {does}")
        return self.global_batch // parts

    def in_micro_batches(self, workers: int, batch: int | None) -> WhatIf:
        """The change with the global batch as micro-batches of ``batch_size``, or ``batch``, samples of each worker.

        A micro-batch is the largest part of a worker's share that is no larger than that and divides it. A number of
        micro-batches that was asked for stays, and so does everything without a global batch or a size.
        Raises UsageError if the share is not a whole number.
        """
        size = self.batch_size or batch
        if self.global_batch is None or size is None or self.accumulate > 1:
            return self
        share = replace(self, batch_size=None).share(workers) or 1
        fitting = next(number for number in range(min(size, share), 0, -1) if share % number == 0)
        return replace(self, global_batch=None, batch_size=fitting, accumulate=share // fitting)

    def alone(self, workload: Workload, workers: int, also: Workload | None = None) -> float:
        """Seconds of an iteration with perfect scaling over ``workers`` workers, the base of scaling factors.

        Weak scaling: the time of a single GPU that accumulates as well; strong: that of a single GPU with the
        whole global batch, divided by ``workers``.
        """
        time = self.of_workload(workload, 1, also).compute_time
        return time if self.global_batch is None else time / workers

    def caveats(self, workload: Workload, cluster: Cluster) -> tuple[str, ...]:
        """Assumptions of the changes; ``workload`` and ``cluster`` may be the original or the changed ones."""
        idleness = idle(workload) if self.compute != 1 else ""
        said = [f"{idleness}: --compute scales the rest too"] if idleness else []
        said += [caveat(cluster)] if self.network_changed else []
        said.append(compression_called(self.compression)[0].caveat)
        said += ["assumes that gradient accumulation itself is free"] if self.accumulate > 1 else []
        cast = "none" if not compression_called(self.compression)[0].caveat else self.compression
        beyond = replace(self, compression=cast, batch_size=None, global_batch=None).words
        said += (
            [f"the error band has an allowance for this what-if ({beyond}), which is assumed, not measured"]
            if beyond
            else []
        )
        return tuple(filter(None, said))

    @property
    def network_changed(self) -> bool:
        """Whether bandwidth or latency is changed."""
        return Network(self.bandwidth, self.latency) != Network()

    @property
    def document(self) -> dict[str, Any]:
        """The changes, JSON-ready; empty without any."""
        found: dict[str, Any] = {}
        for name, unit in (("bandwidth", "bytes_per_s"), ("latency", "s")):
            change: Change = getattr(self, name)
            if change != SAME:
                value = change.value
                found.update({f"{name}_factor": change.factor} if value is None else {f"{name}_{unit}": value})
                found.update({f"{name}_per": change.per} if change.per else {})
        others = {"compute_factor": self.compute, "compression": self.compression, "accumulate": self.accumulate}
        found.update({name: value for name, value in others.items() if value not in (1, "none")})
        sizes = {"batch_size": self.batch_size, "global_batch": self.global_batch}
        return found | {name: size for name, size in sizes.items() if size is not None}

    @property
    def options(self) -> str:
        """The options that make the changes, such as ``--bandwidth and --compute``."""
        changed = [one.name for one in fields(self) if getattr(self, one.name) != one.default]
        return " and ".join(f"--{name.replace('_', '-')}" for name in changed)

    @property
    def words(self) -> str:
        """The changes in words, such as ``bandwidth x2, compute x1.5``; empty without any."""
        said = [
            _changed("bandwidth", self.bandwidth, format_bandwidth),
            _changed("latency", self.latency, format_time),
            _changed("compute", Change(self.compute), str),
            "" if self.compression == "none" else f"compression {self.compression}",
            "" if self.accumulate == 1 else f"{self.accumulate} micro-batches accumulated",
            "" if self.batch_size is None else f"batch size {self.batch_size}",
            "" if self.global_batch is None else f"global batch {self.global_batch}",
        ]
        return ", ".join(filter(None, said))


def _changed(name: str, change: Change, spelled: Callable[[float], str]) -> str:
    if change == SAME:
        return ""
    per = f"/{change.per}" if change.per else ""
    return f"{name} x{change.factor:g}" if change.value is None else f"{name} {spelled(change.value)}{per}"


def parse_change(option: str, text: str, parse: Callable[[str], float]) -> Change:
    """``x2`` as a factor, or a quantity that ``parse`` reads. Raises UsageError."""
    if text.lower().startswith("x"):
        return Change(parse_factor(option, text.lower()))
    if re.fullmatch(r"[0-9.]+[xX]", text):
        raise UsageError(f"{option} {text!r}: did you mean x{text[:-1]}?")
    try:
        if parse is parse_bandwidth and says_per(text):
            rate = rate_from_spec(text, ("gpu", "nic", "node"))
            return Change(value=rate.bytes_per_second, per=rate.per)
        return Change(value=parse(text))
    except UsageError as error:
        raise UsageError(f"{option}: {error}; or write a factor such as x2") from None


def parse_factor(option: str, text: str) -> float:
    """``x1.5`` -> 1.5. Raises UsageError."""
    match = re.fullmatch(r"x([0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,2})?)", text.strip())
    factor = float(match[1]) if match else 0.0
    if not 1 / LARGEST_FACTOR <= factor <= LARGEST_FACTOR:
        raise UsageError(f"{option} {text!r}: write a factor above 0 after an x, such as x1.5")
    return factor


def parse_effects(texts: Sequence[str], workload: Workload, cluster: Cluster) -> Effects:
    """Parse ``compute-slowdown``, ``hook-time=20us`` ... into Effects. Raises UsageError.

    They change those that the cluster states or, if it states none, the usual ones; after ``none`` they stand alone.
    """
    names = [text.partition("=")[0].replace("-", "_") for text in texts]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--effect {name.replace('_', '-')} is given several times: give it once")
    chosen = effects_of({name: _effect_value(text) for text in texts if (name := text.partition("=")[0]) != "none"})
    if "none" in texts:
        return chosen
    before = cluster.effects if cluster.effects.active else usual_effects(workload, cluster)
    return replace(before, **{name: getattr(chosen, name) for name in names})


def _effect_value(text: str) -> float | None:
    name, separator, value = text.partition("=")
    if not separator:
        return None
    effect = EFFECTS.get(name.replace("-", "_"))
    if effect is None:
        effects_of({name: 0.0})  # says which there are
    if effect is not None and effect.unit == "s":
        return parse_time(value)
    try:
        number = parse_part(value)
    except ValueError:
        unit = "a fraction such as 0.1 or 10%" if effect is None or effect.unit == "fraction" else effect.unit
        raise UsageError(f"--effect {text!r}: {value!r} is not a number; write {unit}") from None
    if effect is not None and effect.unit == "fraction" and number > MOST and not value.endswith("%"):
        raise UsageError(f"--effect {text!r}: a fraction of {value} is {number:.0%}; for percent write {value}%")
    return number
