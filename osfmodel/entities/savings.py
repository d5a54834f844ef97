"""Parts of a workload's memory that a step can do without: segments that backward recomputes, and offload to the host.

``optimizer``: the state, and what of the parameters is a master copy, lie in the host's memory, as under ZeRO-Offload
(Ren et al., ATC'21; DeepSpeed's ``offload_optimizer``, Megatron's ``--optimizer-cpu-offload``): gradients go there, the
CPU updates, and parameters come back. FSDP2 has no such thing: its ``CPUOffloadPolicy`` keeps shards of parameters and
gradients there too, and its plans are computed so.

``activations``: what blocks keep for backward goes to the host after the forward of each, and comes back before its
backward, beside the computation of a block (torchtune's ``OffloadActivations``, Transformer Engine's CPU offloading).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from osfmodel.entities.display import brief, show_bytes
from osfmodel.entities.errors import DataError, require_count, require_name


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the model, such as a residual or transformer block, that can be recomputed in backward.

    name:        of the module
    first, last: the layers that it spans, in the order of the workload
    kept_bytes:  of activations that it keeps from forward to backward, without its output: recomputing it frees
                 them until then
    """

    name: str
    first: str
    last: str
    kept_bytes: int

    def __post_init__(self) -> None:
        require_name(self.name, "the name of a segment")
        require_count(self.kept_bytes, f"kept bytes of segment {self.name!r}")

    def __repr__(self) -> str:
        return brief(self, f"{self.name}: {show_bytes(self.kept_bytes)} kept, {self.first} to {self.last}")


def span_of(segment: Segment, places: Mapping[str, int]) -> slice:
    """The slice of the layers that a segment spans; ``places``: of the layers, by name."""
    return slice(places[segment.first], places[segment.last] + 1)


def require_segments(segments: Sequence[Segment], layers: Sequence[str], workload: str) -> None:
    """Raise DataError for segments of a workload without layers, out of order or with a layer or a name in common."""
    places = {name: place for place, name in enumerate(layers)}
    before, names = 0, set()
    for segment in segments:
        for name in (segment.first, segment.last):
            if name not in places:
                raise DataError(f"segment {segment.name!r} of workload {workload!r} has no layer {name!r}")
        span = span_of(segment, places)
        if span.start < before or span.stop <= span.start or segment.name in names:
            raise DataError(
                f"segment {segment.name!r} of workload {workload!r} is empty, is there twice, or has layers of the "
                "segment before it: segments follow each other as the layers do"
            )
        before = span.stop
        names.add(segment.name)


OPTIMIZER, ACTIVATIONS = "optimizer", "activations"
OFFLOADED = (OPTIMIZER, ACTIVATIONS)
"""Kinds of what may lie with the host."""


@dataclass(frozen=True, slots=True)
class Offload:
    """Things of a worker that lie with the host.

    kinds:            of OFFLOADED
    leaving, entering: parts of the update's time in which all gradients go to the host, and all parameters come back
    state_bytes:      that the host holds for all parameters: their master copy, gradients, and the optimizer's state
    activation_bytes: that it holds of a micro-batch
    """

    kinds: tuple[str, ...]
    leaving: float = 0.0
    entering: float = 0.0
    state_bytes: int = 0
    activation_bytes: int = 0
    __repr__ = brief

    @property
    def words(self) -> str:
        """The part of a workload in words: ``offload=optimizer+activations``."""
        return f"offload={'+'.join(self.kinds)}"
