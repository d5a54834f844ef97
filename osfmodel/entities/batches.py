"""Scale a workload to another batch size or pace: from one profile, or on the line through two."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from osfmodel.entities.errors import DataError, UsageError, require_count
from osfmodel.entities.workload import Layer, Workload

FIXED_SHARE = 0.35
"""Share of a step's time with the smaller of two batches that does not grow with the batch.

The median over four models (0.35, 0.22, 0.36, 0.98) of the share that pairs of batch sizes show on a T4, of AdaptDL's
published step times on one GPU: ``python benchmarks/batch_scaling.py``.
"""
SPREAD = 0.32
"""Largest of three models' 90 % quantiles of relative errors of such pairs, doubled or more. With share and spread from
the other models, 79 to 100 % of a model's pairs were within. The fourth, NeuMF, is bound by its host: of its pairs 6 %
were, since its time hardly grows at all."""


def time_ratio(factor: float, fixed: float = FIXED_SHARE) -> float:
    """Time of a step with ``factor`` times the samples over its time now; ``fixed`` of the shorter does not grow."""
    larger = fixed + (1 - fixed) * max(factor, 1 / factor)
    return larger if factor > 1 else 1 / larger


def scaling_uncertainty(factor: float) -> float:
    """Relative half width that covered 90 % of times scaled by :func:`time_ratio`: SPREAD from a doubling on."""
    return SPREAD * min(1.0, abs(math.log2(factor)))


def at_batch(workload: Workload, batch_size: int, other: Workload | None = None, fixed: float = 0.0) -> Workload:
    """``workload`` with ``batch_size`` samples per worker and iteration.

    Activation bytes grow in proportion to the batch, ``steady_bytes`` of the peaks do not; forward and backward times
    grow by :func:`time_ratio`, which is in proportion too with ``fixed`` 0, and are then as doubtful as
    :func:`scaling_uncertainty` says; a workload in words is counted again; one that knows its ``fixed_share`` has it in
    place of ``fixed``, and no doubt of that. With ``other``, a profile of
    the same model at another batch size, each follows the line through both, at 0 or more. Gradients, the update and
    the optimizer's state stay as they are, and bytes are rounded up. Enqueue times, which are the host's, stay too.

    Raises DataError where a batch size is unknown, both are the same, or the profiles are of different models.
    """
    require_count(batch_size, "the batch size", least=1)
    if workload.batch_size is None:
        raise DataError(
            f"workload {workload.name!r} does not say at which batch size it was profiled: add batch_size to its "
            "file, or import it with --batch-size"
        )
    if other is None:
        ratio = batch_size / workload.batch_size
        if (share := workload.fixed_share) is not None:
            if (counted := _recounted(workload, batch_size)) is not None:
                return counted
            longer = share + (1 - share) * ratio
            found = _mapped(workload, workload, batch_size, lambda one, _: one * ratio, lambda one, _: one * longer)
            return replace(found, fixed_share=share / longer)
        slower = time_ratio(ratio, fixed)
        found = _mapped(workload, workload, batch_size, lambda one, _: one * ratio, lambda one, _: one * slower)
        return replace(found, doubt=found.doubt + scaling_uncertainty(ratio)) if fixed else found
    _require_alike(workload, other)
    longer, larger = other.compute_time - workload.compute_time, other.batch_size - workload.batch_size  # type: ignore[operator]
    if longer * larger < 0:
        raise DataError(
            f"{other.name!r} takes {other.compute_time:.3g} s with {other.batch_size} samples and {workload.name!r} "
            f"{workload.compute_time:.3g} s with {workload.batch_size}: profile both on the same device"
        )
    part = (batch_size - workload.batch_size) / (other.batch_size - workload.batch_size)  # type: ignore[operator]

    def on_line(one: float, two: float) -> float:
        return max(0.0, one + (two - one) * part)

    return _mapped(workload, other, batch_size, on_line, on_line)


def _recounted(workload: Workload, batch_size: int) -> Workload | None:
    """A counted workload as it is counted at another batch size; None for one that was changed but in its pace."""
    if workload.recounted is None or workload.batch_size is None:
        return None
    here, there = workload.recounted(workload.batch_size), workload.recounted(batch_size)
    pace = workload.forward_time / here.forward_time
    alike = len(here.layers) == len(workload.layers) and here.gradient_bytes == workload.gradient_bytes
    if not alike or not math.isclose(workload.backward_time, pace * here.backward_time, rel_tol=1e-9):
        return None
    found = replace(there, name=workload.name, doubt=workload.doubt, source=workload.source)
    return found if math.isclose(pace, 1, rel_tol=1e-12) else found.scaled(pace)


class Variation(NamedTuple):
    """Changes of a replay against its profile: computation ``scale`` times as slow, at another batch size."""

    scale: float = 1.0
    batch_size: int | None = None

    def of(self, workload: Workload) -> Workload:
        """The workload as replayed. Raises DataError as :func:`at_batch` and for a scale of 0 or less."""
        seen = workload if self.batch_size is None else at_batch(workload, self.batch_size)
        return seen if self.scale == 1 else seen.scaled(self.scale)

    @property
    def conditions(self) -> dict[str, str]:
        """The changes as conditions of a measurement."""
        return {"scale": f"{self.scale:g}"} | ({} if self.batch_size is None else {"batch_size": str(self.batch_size)})


def variation_of(conditions: Mapping[str, str]) -> Variation:
    """The changes that a measurement's conditions state; none if it was no replay. Raises DataError."""
    if "scale" not in conditions:
        return Variation()
    size = conditions.get("batch_size")
    batch_size = None if size is None else _number("batch size", size, int)
    return Variation(_number("scale", conditions["scale"], float), batch_size)


def _number(what: str, text: str, kind: Callable[[str], Any]) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise DataError(f"the {what} {text!r} is not a number") from None


Mapped = Callable[[float, float], float]
"""A figure at the new batch, from those of two profiles."""


def _mapped(workload: Workload, other: Workload, batch_size: int, value: Mapped, time: Mapped) -> Workload:
    def size(one: int | None, two: int | None) -> int | None:
        return None if one is None or two is None else math.ceil(value(one, two))

    layers = tuple(
        replace(
            layer,
            forward_time=time(layer.forward_time, twin.forward_time),
            backward_time=time(layer.backward_time, twin.backward_time),
            activation_bytes=size(layer.activation_bytes, twin.activation_bytes),
            peak_bytes=_peak(layer, twin, size),
        )
        for layer, twin in zip(workload.layers, other.layers, strict=True)
    )
    segments = tuple(
        replace(segment, kept_bytes=math.ceil(value(segment.kept_bytes, twin.kept_bytes)))
        for segment, twin in zip(workload.segments, other.segments, strict=True)
    )
    ratio = batch_size / workload.batch_size if workload.batch_size else 1
    ideal = None if workload.ideal_time is None else workload.ideal_time * ratio
    return replace(workload, batch_size=batch_size, layers=layers, segments=segments, ideal_time=ideal)


def _peak(layer: Layer, twin: Layer, size: Callable[[int | None, int | None], int | None]) -> int | None:
    """Peak bytes at the new batch: steady bytes are kept, the rest grows."""
    steady = layer.steady_bytes or 0
    if layer is not twin or layer.peak_bytes is None:
        return size(layer.peak_bytes, twin.peak_bytes)
    growing = layer.peak_bytes - steady
    return steady + (size(growing, growing) or 0)


def _require_alike(workload: Workload, other: Workload) -> None:
    def shape(one: Workload) -> list[tuple[object, ...]]:
        layers = [(layer.name, layer.gradient_bytes, layer.dtype) for layer in one.layers]
        return [*layers, *((segment.name, segment.first, segment.last) for segment in one.segments)]

    if shape(workload) != shape(other):
        said = "are not profiles of the same model: their layers differ; leave --also out"
        raise DataError(f"{workload.name!r} and {other.name!r} {said}")
    if other.batch_size in (None, workload.batch_size):
        raise DataError(
            f"{other.name!r} needs a batch size other than {workload.batch_size}, that of {workload.name!r}"
        )


def lengthened(workload: Workload, factor: float, tensor_time: float, doubt: float = 0.0) -> Workload:
    """``workload`` with computation ``factor`` times as long, and ``tensor_time`` seconds before each gradient.

    The update takes ``factor`` times as long too; the host submits as before. The doubt of the workload grows by
    ``doubt`` times the part that is added to its time.
    """
    change = ("lengthened", factor, tensor_time, doubt)
    return workload.variant(change, lambda: _lengthened(workload, factor, tensor_time, doubt))


def _lengthened(workload: Workload, factor: float, tensor_time: float, doubt: float) -> Workload:
    layers = tuple(
        layer.retimed(
            layer.forward_time * factor,
            layer.backward_time * factor + (tensor_time if layer.gradient_bytes else 0),
            layer.enqueue_time,
        )
        for layer in workload.layers
    )
    longer = replace(workload, layers=layers, update_time=workload.update_time * factor)
    added = longer.compute_time / workload.compute_time - 1
    return replace(longer, doubt=longer.doubt + doubt * added) if doubt else longer


MOST = 10**6
"""Maximum number of micro-batches; a larger number is taken for a typing error."""


def accumulating(workload: Workload, micro_batches: int) -> Workload:
    """``workload`` with gradients accumulated over ``micro_batches`` of its batches, sent with the last (``no_sync``).

    All but the last run forward and backward without communication, and one update follows: k (forward + backward) +
    update. They become a layer without parameters after the output, whose forward is that of k - 1 micro-batches;
    so a forward that waits for its layer's gradient is that of the first micro-batch. The time to add gradients up,
    which a profile of single batches does not have, is left out. ``batch_size`` grows k-fold. The host is taken to
    submit each micro-batch in the time to its last gradient. Raises UsageError for less than 1.
    """
    require_micro_batches(micro_batches, "--accumulate")
    if micro_batches == 1:
        return workload
    before = micro_batches - 1
    submitted = before * max((layer.enqueue_time or 0 for layer in workload.layers), default=0)
    layers = tuple(
        layer if layer.enqueue_time is None else replace(layer, enqueue_time=layer.enqueue_time + submitted)
        for layer in workload.layers
    )
    taken = {layer.name for layer in layers}
    name = next(name for number in range(len(layers) + 1) if (name := f"accumulated{number or ''}") not in taken)
    first = Layer(name, before * (workload.forward_time + workload.backward_time), 0 * workload.backward_time, 0)
    batch = None if workload.batch_size is None else workload.batch_size * micro_batches
    ideal = None if workload.ideal_time is None else workload.ideal_time * micro_batches
    found = replace(workload, layers=(*layers, first), batch_size=batch, ideal_time=ideal)
    object.__setattr__(found, "accumulated", (micro_batches, workload))
    return found


def require_micro_batches(value: int, what: str) -> None:
    """Raise UsageError unless ``value`` is a whole number from 1 to MOST."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise UsageError(f"{what} {value!r}: it must be a whole number from 1 to {MOST}")


COMPUTING = 0.9
"""Fraction of a workload's time below which a remark says that the device was partly idle."""


def idle(workload: Workload) -> str:
    """A clause on a device that computed in little of the compute time; else "".

    The rest is time that a faster device does not shorten: the host, input, collectives other than gradients'.
    """
    if workload.computing is None or workload.computing >= COMPUTING:
        return ""
    return f"only {workload.computing:.0%} of this workload's time is computation on the device"
