"""A plan: which gradients share a bucket, and the order in which buckets are sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from osfmodel.entities.compression import require_density
from osfmodel.entities.display import VIEWED, brief, how_many, show_bytes, show_time
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.errors import PlanError, require_count, require_time
from osfmodel.entities.sharding import Sharding
from osfmodel.entities.workload import Workload

REPLICATED, SPLIT = "replicated", "split"
"""The strategies that planners know, of those in ``engine.strategies.STRATEGIES``."""
MOST_CHANNELS = 10**6 - 1
"""Maximum number of channels of a plan; no network carries as many collectives at once."""


@dataclass(frozen=True, slots=True)
class Objective:
    """The rules that a schedule keeps.

    channels:        collectives in flight at once
    forward_overlap: whether the next forward may start before all communication has ended
    strategy:        an entry of STRATEGIES: which collectives carry a bucket, and what each worker keeps
    """

    channels: int = 1
    forward_overlap: bool = False
    strategy: str = REPLICATED

    def __post_init__(self) -> None:
        whole = isinstance(self.channels, int) and not isinstance(self.channels, bool)
        if not whole or not 1 <= self.channels <= MOST_CHANNELS:
            raise PlanError(
                f"the plan has {self.channels!r:.40} channels: it needs a whole number, 1 to {MOST_CHANNELS}"
            )
        if not isinstance(self.strategy, str):
            raise PlanError(
                f"the plan's strategy is {self.strategy!r:.40}: give its name, such as {REPLICATED} or {SPLIT}"
            )

    def permits(self, other: Objective) -> bool:
        """Whether every plan under ``other`` is allowed under these rules."""
        return (
            other.channels <= self.channels
            and other.forward_overlap <= self.forward_overlap
            and (other.strategy == self.strategy or (other.strategy, self.strategy) == (REPLICATED, SPLIT))
        )

    @property
    def split(self) -> bool:
        """Whether each all-reduce is a reduce-scatter in backward and an all-gather before the forward."""
        return self.strategy == SPLIT

    @property
    def plain(self) -> bool:
        """Whether it is one collective at a time and a barrier before the update, as in stock frameworks."""
        return self == PLAIN


PLAIN = Objective()


@dataclass(frozen=True, slots=True)
class Search:
    """The search that found a plan, where the plan does not show under which rules no other would be faster.

    rules:                          that it searched under, of which the plan may use less
    max_bucket_bytes, memory_bytes: limits on a bucket, and on what a step keeps; None for none
    """

    rules: Objective = PLAIN
    max_bucket_bytes: int | None = None
    memory_bytes: int | None = None
    __repr__ = brief


@dataclass(frozen=True, slots=True)
class Block:
    """``bytes`` bytes of the gradient of ``layer``, from ``offset`` on."""

    layer: str
    offset: int
    bytes: int

    def __repr__(self) -> str:
        return brief(self, f"{self.layer}: bytes {self.offset} to {self.offset + self.bytes}")


@dataclass(frozen=True, slots=True)
class Bucket:
    """The blocks of one bucket, which is sent once all of them are ready.

    release_time: earliest start, in seconds after the start of the iteration; a framework's own clock,
                  such as Horovod's cycle, enters a plan so
    density:      the fraction of each block's elements that is sent: the largest in magnitude, with their indices;
                  None for all of them, summed on the way as an all-reduce does
    """

    blocks: tuple[Block, ...]
    release_time: float = 0
    density: float | None = None
    _size: int = field(init=False, repr=False, compare=False, default=-1)

    def __post_init__(self) -> None:
        require_time(self.release_time, "release time of a bucket")
        if self.density is not None:
            require_density(self.density)

    def __repr__(self) -> str:
        released = f", not before {show_time(self.release_time)}" if self.release_time else ""
        sparse = "" if self.density is None else f", {self.density:.4g} of the elements"
        return brief(self, f"{how_many(len(self.blocks), 'block')}, {show_bytes(self.size)}{released}{sparse}")

    @property
    def layers(self) -> tuple[str, ...]:
        """The layer of each block."""
        return tuple(block.layer for block in self.blocks)

    @property
    def size(self) -> int:
        """Bytes of the gradients in it; they are the message unless the bucket is sparse."""
        if self._size < 0:
            object.__setattr__(self, "_size", sum([block.bytes for block in self.blocks]))
        return self._size


@dataclass(frozen=True, slots=True)
class Plan:
    """A complete communication schedule for one workload: the buckets in the order in which they are sent.

    channels:        collectives in flight at once
    forward_overlap: whether the next forward may start before all communication has ended
    strategy:        an entry of STRATEGIES: which collectives carry a bucket, and what each worker keeps
    credit:          None to send in the order of the buckets; else that order is one of priority: the first bucket that
                     is ready is sent, and so many bytes may be handed to the network before any has arrived
    recompute:       segments of the workload whose activations are recomputed in backward instead of kept
    release:         whether a layer is updated, and its gradient given back, as soon as its bucket has arrived
    mirror:          whether sparse buckets keep unsent updates in a mirror of the weights, instead of a residual
    sharding:        of a strategy that shards parameters: the rules of each bucket's group
    executor:        the one of EXECUTORS whose effects it pays; "" for the one that its strategy and rules need
    searched:        the search that found it, if that had other rules; plans that differ in these two are equal
    """

    workload: str
    buckets: tuple[Bucket, ...]
    channels: int = 1
    forward_overlap: bool = False
    strategy: str = REPLICATED
    credit: int | None = None
    recompute: tuple[str, ...] = ()
    release: bool = False
    mirror: bool = False
    sharding: Sharding | None = None
    executor: str = field(default="", compare=False)
    searched: Search | None = field(default=None, compare=False)
    _fits: tuple[object, ...] = field(init=False, repr=False, compare=False, default=())
    _last: tuple[int, ...] = field(init=False, repr=False, compare=False, default=())
    to_dict, to_records, to_frame, _repr_html_ = VIEWED

    def __post_init__(self) -> None:
        _ = self.objective  # checks the channels
        if self.credit is not None:
            require_count(self.credit, "the credit of the plan", least=1)
        if self.release and (self.forward_overlap or self.split):
            raise PlanError("the plan releases gradients in backward, and overlaps forward or splits: they must stay")
        if self.sparse and (self.split or self.forward_overlap or self.credit is not None):
            raise PlanError("the plan has sparse buckets: they are neither split, put off nor sent by priority")
        if self.sharding is not None:
            self.sharding.require_fits(len(self.buckets), self.wants)
        if len(set(self.recompute)) < len(self.recompute):
            raise PlanError("the plan names a segment to recompute twice")
        if self.mirror and not self.sparse:
            raise PlanError("the plan keeps mirror weights and has no sparse bucket that needs them")

    def __repr__(self) -> str:
        size = show_bytes(sum(bucket.size for bucket in self.buckets))
        extra = "".join(f", {words}" for words in self.wants.values())
        return brief(self, f"for {self.workload}: {how_many(len(self.buckets), 'bucket')}, {size}{extra}")

    @property
    def objective(self) -> Objective:
        """The rules under which the plan is run."""
        return Objective(self.channels, self.forward_overlap, self.strategy)

    @property
    def split(self) -> bool:
        """Whether each all-reduce is a reduce-scatter in backward and an all-gather before the forward."""
        return self.strategy == SPLIT

    @property
    def sparse(self) -> bool:
        """Whether some buckets send only a fraction of their elements, which changes what training computes."""
        return any(bucket.density is not None for bucket in self.buckets)

    @property
    def wants(self) -> Mapping[str, str]:
        """Demands beyond one all-reduce at a time, in ready order, and a barrier before the update.

        Each is in words, by the name of its field.
        """
        split = "all-reduces split into reduce-scatter and all-gather"
        asked = {
            "channels": (self.channels > 1, f"{self.channels} channels"),
            "forward_overlap": (self.forward_overlap, "the next forward to overlap communication"),
            "strategy": (self.strategy != REPLICATED, split if self.split else f"the strategy {self.strategy}"),
            "credit": (self.credit is not None, "sending by priority"),
            "density": (self.sparse, "sparse buckets"),
            "mirror": (self.mirror, "mirror weights"),
            "release": (self.release, "gradients released in backward"),
            "recompute": (bool(self.recompute), "segments recomputed"),
            "sharding": (self.sharding is not None, "sharded parameters"),
        }
        return {name: words for name, (wanted, words) in asked.items() if wanted}

    @property
    def plain(self) -> bool:
        """Whether the plan wants none of these: one all-reduce at a time, in ready order, then a barrier."""
        return not self.wants

    def computed(self, workload: Workload) -> tuple[Workload, Plan]:
        """The workload with the plan's recomputing, and the plan without it. Raises as ``recomputing``."""
        if not self.recompute:
            return workload, self
        return workload.recomputing(self.recompute), replace(self, recompute=())

    def under(self, objective: Objective) -> Plan:
        """The same buckets under other rules; a plan that shards keeps its own."""
        if objective == self.objective or self.sharding is not None:
            return self
        return replace(
            self, channels=objective.channels, forward_overlap=objective.forward_overlap, strategy=objective.strategy
        )

    def require_valid(self, workload: Workload) -> None:
        """Raise PlanError unless every gradient byte of ``workload`` is sent exactly once.

        Checked only once for workloads with the same gradients, whatever their times are.
        """
        gradients = workload.gradients
        sent = (workload.name, gradients.names, gradients.sizes, gradients.dtypes)
        if self._fits != sent:
            self._require_valid(workload)
            place = {name: place for place, name in enumerate(gradients.names)}
            last = tuple(max([place[block.layer] for block in bucket.blocks]) for bucket in self.buckets)
            object.__setattr__(self, "_last", last)
            object.__setattr__(self, "_fits", sent)

    def completed_by(self, workload: Workload) -> tuple[int, ...]:
        """The gradient that completes each bucket: its place in ready order. Raises as :meth:`require_valid`."""
        self.require_valid(workload)
        return self._last

    def _require_valid(self, workload: Workload) -> None:
        if self.workload != workload.name:
            raise PlanError(f"the plan is for workload {self.workload!r}, not for {workload.name!r}")
        gradients = workload.gradients
        sizes = dict(zip(gradients.names, gradients.sizes, strict=True))
        self._require_whole_where_sparse(sizes)
        if len(set(gradients.dtypes)) > 1:
            self._require_pure(dict(zip(gradients.names, gradients.dtypes, strict=True)))
        if sum(bucket.size for bucket in self.buckets) == sum(sizes.values()) and self._whole(sizes):
            return
        self._explain(sizes)

    @property
    def rank(self) -> tuple[int, tuple[int, ...]]:
        """The order of plans whose times differ by rounding alone: fewest buckets, then the earliest cuts."""
        return len(self.buckets), tuple(bucket.size for bucket in self.buckets)

    def require_whole_elements(self, workload: Workload) -> None:
        """Raise PlanError if a cut lies inside an element, which could not be summed; executors require this."""
        dtypes = dict(zip(workload.gradients.names, workload.gradients.dtypes, strict=True))
        for number, bucket in enumerate(self.buckets):
            for block in bucket.blocks:
                element = element_bytes(dtypes[block.layer])
                if block.offset % element:
                    raise PlanError(
                        f"bucket {number} cuts {block.layer!r} at byte {block.offset}, inside an element of "
                        f"{dtypes[block.layer]} ({element} bytes)"
                    )

    def _require_whole_where_sparse(self, sizes: Mapping[str, int]) -> None:
        for number, bucket in enumerate(self.buckets):
            for block in bucket.blocks if bucket.density is not None else ():
                if block.bytes != sizes.get(block.layer, block.bytes):
                    raise PlanError(f"bucket {number} is sparse and cuts {block.layer!r}: sparse tensors travel whole")

    def _require_pure(self, dtypes: dict[str, str]) -> None:
        for number, bucket in enumerate(self.buckets):
            kinds = {dtypes.get(block.layer, "") for block in bucket.blocks} - {""}
            if len(kinds) > 1:
                raise PlanError(f"bucket {number} mixes {' and '.join(sorted(kinds))}: types never share a message")

    def _whole(self, sizes: dict[str, int]) -> bool:
        """Whether the plan sends each tensor in one piece, the common case, which needs no sorting."""
        blocks = [block for bucket in self.buckets for block in bucket.blocks]
        return (
            len(blocks) == len(sizes) == len({block.layer for block in blocks})
            and all(block.offset == 0 and sizes.get(block.layer) == block.bytes for block in blocks)
            and all(bucket.blocks for bucket in self.buckets)
        )

    def _explain(self, sizes: dict[str, int]) -> None:
        """Check plans that cut tensors or are wrong, and name the place of the error."""
        pieces: dict[str, list[Block]] = {name: [] for name in sizes}
        for number, bucket in enumerate(self.buckets):
            if not bucket.blocks:
                raise PlanError(f"bucket {number} of the plan is empty")
            for block in bucket.blocks:
                if block.layer not in pieces:
                    raise PlanError(
                        f"bucket {number} names {block.layer!r}, which has no gradient in {self.workload!r}"
                    )
                require_count(block.bytes, f"bytes of a block of {block.layer!r} in bucket {number}", least=1)
                pieces[block.layer].append(block)
        for name, blocks in pieces.items():
            position = 0
            for block in sorted(blocks, key=lambda block: block.offset):
                if block.offset != position:
                    fault = "twice" if block.offset < position else "not at all"
                    raise PlanError(f"bytes {min(position, block.offset)} on of {name!r} are sent {fault}")
                position += block.bytes
            if position != sizes[name]:
                raise PlanError(f"the plan sends {position} bytes of {name!r}, whose gradient has {sizes[name]}")


def contiguous_plan(workload: Workload, ends: Sequence[int]) -> Plan:
    """The plan whose bucket k holds gradients ``ends[k-1]`` up to, but not including, ``ends[k]`` in ready order."""
    return grouped_plan(workload, [range(start, end) for start, end in pairwise([0, *ends])])


def grouped_plan(
    workload: Workload, groups: Iterable[Iterable[int]], release_times: Sequence[float] | None = None
) -> Plan:
    """The plan whose bucket k holds the whole gradients ``groups[k]``, given as positions in ready order."""
    gradients = workload.gradients
    blocks = [Block(name, 0, size) for name, size in zip(gradients.names, gradients.sizes, strict=True)]
    buckets = [tuple(blocks[i] for i in group) for group in groups]
    return Plan(workload.name, tuple(map(Bucket, buckets, release_times or [0] * len(buckets))))


def one_by_one(workload: Workload) -> Plan:
    """A plan with one bucket per gradient, in ready order."""
    return contiguous_plan(workload, range(1, len(workload.gradients) + 1))


def in_one(workload: Workload) -> Plan:
    """A plan with a single bucket; with several dtypes one bucket for each, since they do not mix."""
    return grouped_plan(workload, sorted(workload.gradients.chains, key=max))
