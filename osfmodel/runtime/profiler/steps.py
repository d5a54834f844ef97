"""Measured iterations -> layers, and growth with the batch. Arithmetic on times: nothing here knows PyTorch or a clock.

All times of a step are seconds after its forward began, so medians over steps keep their order, and the differences of
neighbouring medians, which are the times of the layers, add up exactly to the median step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median, quantiles
from typing import NamedTuple

from osfmodel.entities.display import show_time
from osfmodel.entities.workload import Layer, Workload

INPUT, LOSS = "(input)", "(loss)"
"""Layers without parameters: backward after the last gradient; forward after the last module that has tensors."""
UNEVEN = 1.5
"""Steps longer than this many medians count as outliers; they are kept, since a few do not change medians."""


class Tensor(NamedTuple):
    """A parameter: the module that owns it first, and its gradient's bytes, element type and shape."""

    module: str
    gradient_bytes: int
    dtype: str
    shape: tuple[int, ...] = ()


class Ready(NamedTuple):
    """A gradient was accumulated: the time, and the time on the host (the same on a CPU)."""

    name: str
    time: float
    enqueue_time: float


class Peak(NamedTuple):
    """The maximum of bytes alive at once in an interval, and those of them that do not depend on the batch."""

    bytes: int
    steady: int


class IterationMemory(NamedTuple):
    """Bytes that one iteration held: peaks by layer, kept activations by module; None if not known."""

    peaks: Mapping[str, Peak]
    kept: Mapping[str, int]
    state: int | None
    update: int | None
    fixed: int


class ProfiledIteration(NamedTuple):
    """One iteration. ``ends``: ends of the modules' calls, in order; ``total``: the end of the update.

    Steps without hooks have neither ``ends`` nor ``ready``.
    """

    hooked: bool
    ends: tuple[tuple[str, float], ...]
    ready: tuple[Ready, ...]
    forward_end: float
    backward_end: float
    total: float
    micro_batches: int = 1

    @property
    def order(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Modules and gradients in the order in which they came."""
        return tuple(name for name, _ in self.ends), tuple(ready.name for ready in self.ready)


def alike(steps: Sequence[ProfiledIteration]) -> list[ProfiledIteration]:
    """The hooked steps of the commonest order: only for these can medians be taken tensor by tensor."""
    hooked = [step for step in steps if step.hooked]
    if not hooked:
        return []
    (commonest, _), *_ = Counter(step.order for step in hooked).most_common(1)
    return [step for step in hooked if step.order == commonest]


def middle(values: Sequence[float]) -> float:
    """The median."""
    return median(values)


def spread(values: Sequence[float]) -> float:
    """The distance between the quartiles over the median; 0 for one value."""
    if len(values) < 2:
        return 0.0
    low, _, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / middle(values) if middle(values) else 0.0


def uneven(values: Sequence[float]) -> int:
    """Number of values above UNEVEN medians."""
    return sum(value > UNEVEN * middle(values) for value in values)


def layers_of(
    steps: Sequence[ProfiledIteration],
    tensors: Mapping[str, Tensor],
    activations: Mapping[str, int] | None,
    device_clock: bool,
    peaks: Mapping[str, Peak] | None = None,
) -> tuple[Layer, ...]:
    """Layers in reverse ready order, with medians over ``steps``, which must all be alike.

    ``activations`` are bytes by module, ``peaks`` are by layer. A module's forward counts for the one of its tensors
    that is last, so that it comes after all of them; tensors whose gradient never came are left out.
    """
    forward_end = middle([step.forward_end for step in steps])
    names = [ready.name for ready in steps[0].ready]
    carriers = {tensors[name].module: name for name in reversed(names)}
    forward = forward_times(steps, carriers, forward_end)
    backward = backward_times(steps, forward_end)
    saved = {carriers.get(module, LOSS): 0 for module in activations or ()}
    for module, size in (activations or {}).items():
        saved[carriers.get(module, LOSS)] += size

    def layer(name: str, number: int | None) -> Layer:
        tensor = Tensor("", 0, "float32") if number is None else tensors[name]
        enqueue = None
        if number is not None and device_clock:
            enqueue = middle([step.ready[number].enqueue_time for step in steps])
        size = None if activations is None else saved.get(name, 0)
        times = (forward.get(name, 0.0), backward.get(name, 0.0))
        peak, steady = (peaks or {}).get(name, (None, None))
        return Layer(name, *times, tensor.gradient_bytes, tensor.dtype, size, enqueue, peak, steady, shape=tensor.shape)

    made = [layer(name, number) for number, name in enumerate(names)]
    return (layer(INPUT, None), *reversed(made), layer(LOSS, None))


def forward_times(
    steps: Sequence[ProfiledIteration], carriers: Mapping[str, str], forward_end: float
) -> dict[str, float]:
    """Seconds by layer from the end of one module to the end of the next, for the next; the rest, for LOSS."""
    times: dict[str, float] = {}
    before = 0.0
    for number, (module, _) in enumerate(steps[0].ends):
        end = min(middle([step.ends[number][1] for step in steps]), forward_end)
        if module in carriers:  # the time of a module without a gradient is the next one's
            times[carriers[module]] = times.get(carriers[module], 0.0) + max(0.0, end - before)
            before = max(before, end)
    times[LOSS] = forward_end - before
    return times


def backward_times(steps: Sequence[ProfiledIteration], forward_end: float) -> dict[str, float]:
    """Seconds by layer from one gradient to the next; the rest after the last, for INPUT."""
    times: dict[str, float] = {}
    before = forward_end
    for number, ready in enumerate(steps[0].ready):
        time = max(before, middle([step.ready[number].time for step in steps]))
        times[ready.name] = time - before
        before = time
    times[INPUT] = max(0.0, middle([step.backward_end for step in steps]) - before)
    return times


class BatchFit(NamedTuple):
    """Seconds of forward and backward as a line over samples, by least squares."""

    fixed: float
    per_sample: float
    worst: float
    sizes: tuple[int, ...]

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.sizes))
        sign = "-" if self.fixed < 0 else ""
        exact = ", which two sizes fit exactly" if len(self.sizes) == 2 else f", worst residual {self.worst:.1%}"
        return (
            f"forward and backward at batch {sizes}: {sign}{show_time(abs(self.fixed))} + "
            f"{show_time(self.per_sample)} per sample{exact}"
        )


def batch_fit(workloads: Sequence[Workload]) -> BatchFit | None:
    """The growth of forward and backward with the batch; None for fewer than two batch sizes."""
    import numpy as np

    points = {w.batch_size: w.forward_time + w.backward_time for w in workloads if w.batch_size is not None}
    if len(points) < 2:
        return None
    sizes, times = np.array(list(points), dtype=float), np.array(list(points.values()))
    per_sample, fixed = np.polyfit(sizes, times, 1)
    worst = float(np.max(np.abs(fixed + per_sample * sizes - times) / times))
    return BatchFit(float(fixed), max(0.0, float(per_sample)), worst, tuple(int(size) for size in points))


def with_fit(workload: Workload, fit: BatchFit) -> Workload:
    """The workload with the growth of its time with the batch in its conditions."""
    return replace(workload, source=replace(workload.source, conditions=f"{workload.source.conditions}; {fit}"))
