"""A workload: the computation of one worker in one iteration, layer by layer, and when each gradient is ready."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from osfmodel.entities.display import VIEWED, brief, how_many, show_bytes, show_time
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.errors import (
    DataError,
    require_count,
    require_name,
    require_positive,
    require_time,
    require_unique,
)
from osfmodel.entities.measurement import Source
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.savings import Offload, Segment, require_segments, span_of
from osfmodel.entities.timeline import Span

MOST_VARIANTS = 32
"""Maximum number of changed workloads that a workload keeps."""
GRAINS = ("", "gradient", "bucket")
"""Kinds of layers: "" for layers or tensors of the model under their names, else parts of a trace."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One parameter tensor, or one layer if the profile is not finer.

    forward_time:     seconds of forward computation
    backward_time:    seconds of backward computation, after which its gradient is ready
    gradient_bytes:   size of its gradient; 0 for a layer without parameters, which is never communicated
    dtype:            element type of the gradient; tensors of different types never share a bucket
    activation_bytes: bytes kept from forward to backward, if known
    enqueue_time:     seconds after the start of the iteration at which the *host* submits the gradient, if
                      the host runs ahead of the device; unknown means together with the gradient
    peak_bytes:       maximum bytes of activations, inputs and scratch of all layers alive at once during its backward;
                      parameters, gradients, buffers and optimizer state are not among them; if known
    steady_bytes:     of peak_bytes, those that do not depend on the batch, such as gradients that are not ready yet
    held_bytes:       size of the gradient in memory, if gradient_bytes is its compressed size
    frozen_bytes:     of fixed_bytes of the workload, those of parameters beside this one that are not trained: FSDP
                      shards and gathers them with it
    shape:            of the parameter, if known
    """

    name: str
    forward_time: float
    backward_time: float
    gradient_bytes: int
    dtype: str = "float32"
    activation_bytes: int | None = None
    enqueue_time: float | None = None
    peak_bytes: int | None = None
    steady_bytes: int | None = None
    held_bytes: int | None = None
    frozen_bytes: int | None = None
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require_name(self.name, "the name of a layer")
        require_time(self.forward_time, f"forward time of layer {self.name!r}")
        require_time(self.backward_time, f"backward time of layer {self.name!r}")
        require_count(self.gradient_bytes, f"gradient bytes of layer {self.name!r}")
        require_name(self.dtype, f"the dtype of layer {self.name!r}")
        for name in ("activation_bytes", "frozen_bytes", "held_bytes", "peak_bytes", "steady_bytes"):
            if getattr(self, name) is not None:
                require_count(getattr(self, name), f"{name.replace('_', ' ')} of layer {self.name!r}")
        size = self.elements * element_bytes(self.dtype)
        if self.shape and self.held_bytes is None and self.gradient_bytes != size:
            raise DataError(f"layer {self.name!r} has {self.gradient_bytes} gradient bytes, its shape makes {size}")
        if (self.steady_bytes or 0) > (self.peak_bytes or 0):
            raise DataError(f"layer {self.name!r} has more steady bytes than peak bytes, of which they are a part")
        if self.enqueue_time is not None:
            require_time(self.enqueue_time, f"enqueue time of layer {self.name!r}")

    def retimed(self, forward_time: float, backward_time: float, enqueue_time: float | None) -> Layer:
        """The layer with other times, all of which are 0 or more; not checked again, since searches make many."""
        other = object.__new__(Layer)
        for read, write in KEPT:
            write(other, read(self))
        for write, value in zip(TIMES, (forward_time, backward_time, enqueue_time), strict=True):
            write(other, value)
        return other

    @property
    def elements(self) -> int:
        """Number of elements of the parameter; of what is sent, if its shape is not known."""
        return math.prod(self.shape) if self.shape else self.gradient_bytes // element_bytes(self.dtype)

    def __repr__(self) -> str:
        times = f"{show_time(self.forward_time)} forward, {show_time(self.backward_time)} backward"
        return brief(self, f"{self.name}: {times}, {show_bytes(self.gradient_bytes)} of {self.dtype}")


TIMES = tuple(vars(Layer)[name].__set__ for name in ("forward_time", "backward_time", "enqueue_time"))
"""Write the times of a layer."""
KEPT = tuple(
    (slot.__get__, slot.__set__) for slot in map(vars(Layer).__getitem__, Layer.__slots__) if slot.__set__ not in TIMES
)
"""Read and write all else."""


@dataclass(frozen=True, slots=True)
class Gradients:
    """The gradients of a workload in ready order: the input of planners.

    Parallel tuples, one entry per layer that has parameters. ``ready_times`` are seconds after the start of
    the iteration and never decrease; ``enqueue_times`` are when the host submits them (= ready times if the
    profile does not say). ``held`` are the sizes in memory of compressed gradients; empty without compression.
    """

    names: tuple[str, ...]
    ready_times: tuple[float, ...]
    sizes: tuple[int, ...]
    dtypes: tuple[str, ...]
    enqueue_times: tuple[float, ...]
    held: tuple[int, ...] = ()

    @property
    def held_sizes(self) -> tuple[int, ...]:
        """Size of each gradient in memory: the bytes that DDP counts, since it compresses by bucket."""
        return self.held or self.sizes

    @property
    def elements(self) -> dict[str, int]:
        """Bytes of an element by dtype; tensors may be cut at multiples of it."""
        return {dtype: element_bytes(dtype) for dtype in dict.fromkeys(self.dtypes)}

    @property
    def chains(self) -> list[list[int]]:
        """Positions in ready order, by dtype: gradients that may share a bucket."""
        kinds = dict.fromkeys(self.dtypes)
        if len(kinds) == 1:
            return [list(range(len(self.dtypes)))]
        return [[i for i, dtype in enumerate(self.dtypes) if dtype == kind] for kind in kinds]

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, slots=True)
class Workload:
    """The computation of one worker: layers from the input to the output, then an update of all parameters.

    Backward visits the layers in reverse, so ``layers`` are in the reverse of the order in which gradients become
    ready. ``update_time``: seconds of optimizer step per iteration; ``batch_size``: samples per worker, if known.

    segments:     parts that can be recomputed, in the order of the layers; they do not overlap
    state_bytes:  of the optimizer's state, if known
    weight_bytes: of weights (and gradients kept with them) in another type than gradients, their copy in state_bytes
    update_bytes: of scratch alive at once during the optimizer's step, if known
    fixed_bytes:  of parameters that are not trained and of buffers, such as BatchNorm's, if known
    sent_as:      the compression of its gradients, such as "fp16" or "powersgd:4"; "" without
    grain:        kind of its layers if their names are made up: "gradient" or "bucket" of a trace, of GRAINS
    computing:    fraction of its time in which the device really computed, above 0 to 1; None if not known
    accumulated:  of several micro-batches added up: their number, and the workload of one
    profiled_workers: of the profiled job; with more than one, times include usual effects
    doubt:        fraction by which times may be off, either way, as of a batch size that was not profiled
    computed_in:  type of computation, if it is not that of the parameters (mixed precision)
    sample_tokens: tokens of a sample, if samples have tokens
    ideal_time:   seconds of an iteration's operations at the data sheet's rate, nothing recomputed: the base of MFU
    fixed_share:  part of forward and backward that does not grow with the batch, if known
    expert_share, expert_parallel: part of the parameters that experts hold; number of ranks that share the experts
    fullest, offload: parameters of the pipeline stage that takes most memory, over those here; what lies with the host

    Raises DataError without layers, and for duplicate names and impossible times or sizes.
    """

    name: str
    layers: tuple[Layer, ...]
    batch_size: int | None = None
    update_time: float = 0
    source: Source = Source()
    segments: tuple[Segment, ...] = ()
    state_bytes: int | None = None
    weight_bytes: int | None = None
    update_bytes: int | None = None
    fixed_bytes: int | None = None
    sent_as: str = ""
    grain: str = ""
    computing: float | None = None
    profiled_workers: int = 1
    doubt: float = 0
    computed_in: str = ""
    sample_tokens: int | None = None
    ideal_time: float | None = None
    fixed_share: float | None = None
    expert_share: float = 0
    expert_parallel: int = 1
    fullest: float = 1
    offload: Offload | None = None
    recounted: Callable[[int], Workload] | None = field(default=None, repr=False, compare=False)  # in words, by samples
    accumulated: tuple[int, Workload] | None = field(init=False, repr=False, default=None)
    forward_time: float = field(init=False, repr=False, compare=False)
    backward_time: float = field(init=False, repr=False, compare=False)
    gradients: Gradients = field(init=False, repr=False, compare=False)
    _computation: tuple[Span, ...] = field(init=False, repr=False, compare=False, default=())
    _variants: dict[object, Workload] = field(init=False, repr=False, compare=False, default_factory=dict)
    to_dict, to_records, to_frame, _repr_html_ = VIEWED

    def __post_init__(self) -> None:
        require_name(self.name, "the name of the workload")
        if not self.layers:
            raise DataError(f"workload {self.name!r} has no layers")
        for name in ("update_time", "doubt", "expert_share"):
            require_time(getattr(self, name), f"{name.replace('_', ' ')} of workload {self.name!r}")
        sizes = ("state_bytes", "weight_bytes", "update_bytes", "fixed_bytes")
        for name in ("batch_size", "sample_tokens", "profiled_workers", "expert_parallel", *sizes):
            if getattr(self, name) is not None:
                said, least = (name, 0) if name in sizes else (name.replace("_", " "), 1)
                require_count(getattr(self, name), f"{said} of workload {self.name!r}", least)
        if sum(layer.frozen_bytes or 0 for layer in self.layers) > (self.fixed_bytes or 0):
            raise DataError(f"workload {self.name!r} has more frozen_bytes than fixed_bytes, of which they are a part")
        for name, value in (("the ideal time", self.ideal_time), ("fullest", self.fullest)):
            require_positive(1 if value is None else value, f"{name} of workload {self.name!r}")
        if self.fixed_share is not None and not 0 <= self.fixed_share <= 1:
            raise DataError(f"the fixed share of workload {self.name!r} is {self.fixed_share!r}: from 0 to 1")
        if self.grain not in GRAINS:
            raise DataError(f"the grain of workload {self.name!r} is {self.grain!r}: it must be one of {GRAINS[1:]}")
        if self.computing is not None and not 0 < self.computing <= 1:
            raise DataError(f"computing of workload {self.name!r} is {self.computing!r}: above 0, 1 at most")
        names = [layer.name for layer in self.layers]
        require_unique(names, f"workload {self.name!r}", "layers")
        require_segments(self.segments, names, self.name)
        forward_time = plain_sum(layer.forward_time for layer in self.layers)
        backward_time, gradients = _backward(self.layers, forward_time)
        require_count(sum(gradients.sizes), f"gradient bytes of workload {self.name!r} in all")
        if not forward_time + backward_time + self.update_time > 0:
            raise DataError(f"workload {self.name!r} takes no time at all: at least one time must be above 0")
        for name, made in (("forward_time", forward_time), ("backward_time", backward_time), ("gradients", gradients)):
            object.__setattr__(self, name, made)

    def __repr__(self) -> str:
        tensors, size = how_many(len(self.gradients), "tensor"), show_bytes(self.gradient_bytes)
        batch = "" if self.batch_size is None else f", batch {self.batch_size}"
        return brief(self, f"{self.name}: {tensors}, {size}, {show_time(self.compute_time)} on one GPU{batch}")

    @property
    def compute_time(self) -> float:
        """Seconds of one iteration on a single GPU: forward + backward + update."""
        return self.forward_time + self.backward_time + self.update_time

    @property
    def computation(self) -> tuple[Span, ...]:
        """Spans of forward and backward without communication; cached, since all plans share them."""
        if not self._computation:
            object.__setattr__(self, "_computation", tuple(_spans(self.layers, self.forward_time)))
        return self._computation

    @property
    def gradient_bytes(self) -> int:
        """Bytes that every worker contributes to all-reduce per iteration."""
        return sum(self.gradients.sizes)

    def variant(self, change: tuple[object, ...], make: Callable[[], Workload]) -> Workload:
        """The workload under a change, made once; changes are known by values and types, and MOST_VARIANTS are kept."""
        key = tuple((type(value), value) for value in change)
        if key not in self._variants:
            made = make()
            if made is self:
                return self
            if len(self._variants) >= MOST_VARIANTS:
                self._variants.pop(next(iter(self._variants)), None)
            self._variants[key] = made
        return self._variants[key]

    def span(self, segment: str) -> slice:
        """The slice of ``layers`` that a segment spans. Raises DataError for an unknown segment."""
        for one in self.segments:
            if one.name == segment:
                return span_of(one, {layer.name: place for place, layer in enumerate(self.layers)})
        known = ", ".join(one.name for one in self.segments[:8]) or "none: profile it with this version of osfmodel"
        raise DataError(f"workload {self.name!r} has no segment {segment!r}: known are {known}")

    def recomputing(self, segments: Sequence[str]) -> Workload:
        """The workload with these segments' forward repeated before their backward. Raises DataError for others."""
        layers = list(self.layers)
        for span in map(self.span, segments):
            again = plain_sum(layer.forward_time for layer in layers[span])
            last = layers[span.stop - 1]
            layers[span.stop - 1] = replace(last, backward_time=last.backward_time + again)
        return replace(self, layers=tuple(layers)) if segments else self

    def scaled(self, factor: float) -> Workload:
        """The workload with all times ``factor`` times as long, as on another device. Raises DataError at 0 or less."""
        require_positive(factor, f"the factor on the times of workload {self.name!r}")
        return self.variant(("scaled", factor), lambda: self._scaled(factor))

    def _scaled(self, factor: float) -> Workload:
        layers = tuple(
            layer.retimed(
                layer.forward_time * factor,
                layer.backward_time * factor,
                None if layer.enqueue_time is None else layer.enqueue_time * factor,
            )
            for layer in self.layers
        )
        return replace(self, layers=layers, update_time=self.update_time * factor)

    def ahead(self, lead: float) -> Workload:
        """The workload with a host that submits work ``lead`` times as fast as the device computes it; 1: in step.

        Each gradient is submitted at its ready time divided by ``lead``. Raises DataError below 1.
        """
        require_positive(lead, "the lead of the host")
        if lead < 1:
            raise DataError(f"the lead of the host is {lead!r}: it must be 1 or more")
        times = dict(zip(self.gradients.names, self.gradients.ready_times, strict=True))
        layers = tuple(
            layer.retimed(layer.forward_time, layer.backward_time, times[layer.name] / lead)
            if layer.gradient_bytes
            else layer
            for layer in self.layers
        )
        return replace(self, layers=layers)


def _backward(layers: Sequence[Layer], forward_time: float) -> tuple[float, Gradients]:
    """Total backward time, and the gradients in ready order.

    The clock starts at the integer 0 and only adds, so exact (rational) times stay exact.
    """
    elapsed: float = 0
    ready: list[tuple[Layer, float]] = []
    for layer in reversed(layers):
        elapsed += layer.backward_time
        if layer.gradient_bytes:
            ready.append((layer, forward_time + elapsed))
    return elapsed, Gradients(
        names=tuple(layer.name for layer, _ in ready),
        ready_times=tuple(time for _, time in ready),
        sizes=tuple(layer.gradient_bytes for layer, _ in ready),
        dtypes=tuple(layer.dtype for layer, _ in ready),
        enqueue_times=tuple(time if layer.enqueue_time is None else layer.enqueue_time for layer, time in ready),
        held=tuple(layer.gradient_bytes if layer.held_bytes is None else layer.held_bytes for layer, _ in ready)
        if any(layer.held_bytes is not None for layer, _ in ready)
        else (),
    )


def _spans(layers: Sequence[Layer], forward_time: float) -> Iterator[Span]:
    """The layers on the compute stream, added up in the same order as the ready times."""
    end: float = 0
    for layer in layers:
        start, end = end, end + layer.forward_time
        yield Span("forward", "compute", (layer.name,), start, end)
    elapsed: float = 0
    for layer in reversed(layers):
        start, elapsed = forward_time + elapsed, elapsed + layer.backward_time
        yield Span("backward", "compute", (layer.name,), start, forward_time + elapsed)
