"""Sharding: the groups of a plan whose parameters are split between ranks, how these are exchanged, and their bytes.

FSDP2 pads each parameter by itself, along the dimension that it splits (torch 2.13,
``torch/distributed/fsdp/_fully_shard/_fsdp_param.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from osfmodel.entities.display import brief
from osfmodel.entities.dtypes import ELEMENT_BYTES, element_bytes
from osfmodel.entities.errors import PlanError, require_count
from osfmodel.entities.workload import Layer, Workload


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Rules for the parameters of one bucket, which are gathered together and whose gradients are reduced together.

    modules:  names of the modules that make it up; none for the root, which has all parameters of no other group
    reshard:  after forward: True (freed, and gathered again in backward), False (kept), or the number of ranks between
              which they are split until backward gathers them
    first, last: layers from whose forward to whose forward the parameters are in use; "" for the first and the last
              layer of the bucket. A module that holds other groups is in use while they are
    reduced_last: whether gradients are reduced once backward is over, as those of the root, or of a module whose
              inputs need no gradient
    needed_in_backward: whether backward gathers them again; an embedding's are not needed
    forward_prefetch:  all-gathers of the groups behind it that are issued before its forward; 0 to issue the next one
              as that group is entered
    backward_prefetch: all-gathers of the groups before it that are issued before its backward
    """

    modules: tuple[str, ...] = ()
    reshard: bool | int = True
    first: str = ""
    last: str = ""
    reduced_last: bool = False
    needed_in_backward: bool = True
    forward_prefetch: int = 0
    backward_prefetch: int = 1
    __repr__ = brief

    def __post_init__(self) -> None:
        if not isinstance(self.reshard, bool):
            require_count(self.reshard, "ranks that keep a group after forward", least=2)
        require_count(self.forward_prefetch, "groups to gather ahead in forward")
        require_count(self.backward_prefetch, "groups to gather ahead in backward")


@dataclass(frozen=True, slots=True)
class Fetching:
    """Limits, in elements of parameters, by which DeepSpeed's stage 3 fetches and keeps them.

    prefetch:   of parameters that are fetched ahead of their use; the last one may pass it
    persistent: of a parameter that stays on every rank
    most_persistent: of all parameters that stay
    live:       of whole parameters on a rank, above which none are fetched ahead
    reuse:      used until a parameter is used again, below which it is not freed
    """

    prefetch: int = 50_000_000
    persistent: int = 100_000
    most_persistent: int = 2**53 - 1
    live: int = 1_000_000_000
    reuse: int = 1_000_000_000
    __repr__ = brief

    def __post_init__(self) -> None:
        for name in ("prefetch", "persistent", "most_persistent", "live", "reuse"):
            require_count(getattr(self, name), f"elements of {name!r} of the plan's sharding")


class Form(NamedTuple):
    """A way to accumulate gradients over micro-batches, by the fields of :class:`Sharding`."""

    reduce_each: bool = True
    replicas_each: bool = True
    keep: bool = False


EACH = Form()
"""Gather and reduce in each micro-batch: sharded gradients are added up, as frameworks do unless told otherwise."""
SHARDS_EACH = Form(replicas_each=False)
"""Reduce to shards in each micro-batch, and between replicas in the last."""
LAST, LAST_KEPT = Form(reduce_each=False), Form(reduce_each=False, keep=True)
"""Reduce in the last micro-batch, with whole gradients until then; and keep parameters after backward as well."""
MOST_MICRO_BATCHES = 1024
"""Largest number of micro-batches of a plan that shards, whose steps are followed collective by collective."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a plan shards.

    groups:        of each bucket, in the order of the buckets
    replicas:      sets of ranks that each hold all parameters between them; 1: all ranks are one such set
    gather_dtype:  in which parameters are gathered; "" for their own
    reduce_dtype:  in which gradients are reduced; "" for that of gathered parameters
    reduce_inputs: reduce-scatters whose inputs are in memory at once
    separate:      whether reduce-scatters have a communicator of their own
    asynchronous:  whether collectives are launched in the background also by a library that blocks otherwise (gloo)
    micro_batches: forwards and backwards before the update; a workload's times are those of one
    reduce_each:   whether each of them reduces gradients, or only the last (``set_requires_gradient_sync``)
    replicas_each: whether each that reduces also all-reduces between replicas (``set_requires_all_reduce``)
    keep:          whether parameters stay after the backward of all but the last (``set_reshard_after_backward``)
    late_prefetch: of the strategy flat-sharded: whether backward gathers ahead when a group's gradients are there
    unlimited:     of the strategy flat-sharded: whether all-gathers wait for no freed group (no ``limit_all_gathers``)
    aligned:       of the strategy flat-sharded: whether parameters begin at multiples of 16 bytes (``use_orig_params``)
    buffer:        of DeepSpeed's strategies: elements of each buffer of gradients; 0 for those of the largest bucket
    fetching:      of the strategy zero-3: the limits by which parameters are fetched and kept
    part_time:     of the strategy zero-1: seconds after the all-gather for each rank's part of each parameter
    """

    groups: tuple[ParameterGroup, ...]
    replicas: int = 1
    gather_dtype: str = ""
    reduce_dtype: str = ""
    reduce_inputs: int = 1
    separate: bool = False
    asynchronous: bool = False
    micro_batches: int = 1
    reduce_each: bool = True
    replicas_each: bool = True
    keep: bool = False
    late_prefetch: bool = False
    unlimited: bool = False
    aligned: bool = False
    buffer: int = 0
    fetching: Fetching | None = None
    part_time: float = 0.0
    __repr__ = brief

    def __post_init__(self) -> None:
        require_count(self.replicas, "replicas of a sharded plan", least=1)
        require_count(self.reduce_inputs, "inputs of reduce-scatters", least=1)
        require_count(self.micro_batches, "micro-batches of a step", least=1)
        require_count(self.buffer, "elements of a buffer of gradients")
        for name in ("gather_dtype", "reduce_dtype"):
            dtype = getattr(self, name)
            if dtype and dtype not in ELEMENT_BYTES:
                raise PlanError(
                    f"the plan's sharding has {name} {dtype!r}: it must be one of {', '.join(ELEMENT_BYTES)}"
                )

    @property
    def form(self) -> Form:
        """The way in which gradients are accumulated."""
        return Form(self.reduce_each, self.replicas_each, self.keep)

    def accumulating(self, count: int, form: Form) -> Sharding:
        """The same with ``count`` micro-batches of this form. Raises PlanError for more than MOST_MICRO_BATCHES."""
        if count > MOST_MICRO_BATCHES:
            raise PlanError(
                f"{count} micro-batches: a plan that shards has {MOST_MICRO_BATCHES} at most, lower --accumulate"
            )
        return replace(self, micro_batches=count, **form._asdict())

    def typed(self, computed_in: str, reduced_in: str = "float32") -> Sharding:
        """These rules for a workload that is ``computed_in`` another type than its parameters', where they state none.

        Parameters are gathered in it; gradients are ``reduced_in``, or as the rules say, never in float8.
        """
        if not computed_in or self.gather_dtype:
            return self
        reduced_in = "bfloat16" if reduced_in == "float8" else reduced_in
        return replace(self, gather_dtype=computed_in, reduce_dtype=self.reduce_dtype or reduced_in)

    def require_fits(self, buckets: int, wants: Mapping[str, str]) -> None:
        """Raise PlanError unless there is a group for each bucket, and no other want excludes sharding."""
        if len(self.groups) != buckets:
            raise PlanError(
                f"the plan has {buckets} buckets, and its sharding {len(self.groups)} groups: give one group per bucket"
            )
        others = [words for name, words in wants.items() if name not in ("strategy", "sharding", "recompute")]
        if others:
            raise PlanError(f"the plan shards parameters, and asks for {', '.join(others)}: one excludes the other")

    def ranks(self, workers: int) -> int:
        """Number of ranks between which each parameter is split. Raises PlanError unless replicas are equal."""
        if workers % self.replicas:
            raise PlanError(f"{workers} workers do not make {self.replicas} replicas of equal size")
        return workers // self.replicas


EXPERTS, PLAIN_MATRIX = ".experts.", 2
"""Contained in the names of experts' parameters, and dimensions of one expert's."""


def padded_elements(layer: Layer, ranks: int) -> int:
    """Elements of a parameter whose dimension that is split is padded to a multiple of ``ranks``.

    A parameter without a known shape is taken to have one dimension.
    """
    shape = layer.shape or (layer.elements,)
    split = shape[1] if placed(layer, ranks) else shape[0]
    return -(-split // ranks) * ranks * (math.prod(shape) // split)


def placed(layer: Layer, ranks: int) -> bool:
    """Whether trainers split a parameter along dimension 1, which shard_placement_fn says: of experts, if too few.

    Source: torchtitan, ``torchtitan/models/llama4/infra/parallelize.py`` (apply_fsdp), by default FSDP2 splits the
    first dimension of all.
    """
    return EXPERTS in layer.name and len(layer.shape) > PLAIN_MATRIX and layer.shape[0] < ranks


BUCKET_ELEMENTS = 500_000_000
"""DeepSpeed's default of reduce_bucket_size."""


def uneven(workload: Workload, ranks: int) -> float:
    """A rank's share of all parameters, as a multiple of an even one: experts are divided among fewer ranks."""
    return 1 + workload.expert_share * (min(workload.expert_parallel, ranks) - 1)


def share_of(workload: Workload, held: int, ranks: int) -> int:
    """Bytes of a rank's share of what are ``held`` bytes of an even one."""
    return round(held * uneven(workload, ranks))


def frozen_bytes(layers: Sequence[Layer], ranks: int) -> int:
    """Bytes of a rank's part of the parameters that are not trained beside ``layers``."""
    return sum(-(-(layer.frozen_bytes or 0) // ranks) for layer in layers)


def gathered_bytes(rules: Sharding, layers: Sequence[Layer], ranks: int) -> int:
    """Bytes of the parameters of ``layers``, padded, as they are gathered from ``ranks`` ranks."""
    return exchanged_bytes(rules, layers, ranks)[0]


def reduced_bytes(rules: Sharding, layers: Sequence[Layer], ranks: int) -> int:
    """Bytes of the gradients of ``layers``, padded, as they are reduced between ``ranks`` ranks."""
    return exchanged_bytes(rules, layers, ranks)[1]


def exchanged_bytes(rules: Sharding, layers: Sequence[Layer], ranks: int) -> tuple[int, int]:
    """Bytes of ``layers``, padded, as their parameters are gathered from ``ranks`` ranks, and gradients reduced."""
    padded: dict[str, int] = {}
    for one in layers:
        padded[one.dtype] = padded.get(one.dtype, 0) + padded_elements(one, ranks)
    gather, reduce = rules.gather_dtype, rules.reduce_dtype or rules.gather_dtype
    gathered = sum(elements * element_bytes(gather or dtype) for dtype, elements in padded.items())
    gathered += ranks * frozen_bytes(layers, ranks)
    return gathered, sum(elements * element_bytes(reduce or dtype) for dtype, elements in padded.items())
