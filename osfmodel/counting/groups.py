"""The part of a language model that one GPU of a replica computes, and what its groups send meanwhile.

A replica may be several GPUs: a tensor group shares each matrix and the tokens between matrices (sequence parallelism,
as torchtitan and Megatron do), a context group shares the tokens, an expert group the experts, and the stages of a
pipeline the blocks. They are taken as given, and lie as torchtitan lays them: the GPUs of a tensor group are next to
each other, then those of a context group, then data-parallel ranks; stages are the furthest apart.

A part of a model between two norms (attention, or the feed-forward part) is entered by an all-gather of its input and
left by a reduce-scatter of its output; backward does both once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from typing import NamedTuple

from osfmodel.counting.modules import Model, Module, Product, Shape
from osfmodel.entities.display import brief
from osfmodel.entities.errors import UsageError

LARGEST = 10**4


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Sizes of the groups of GPUs inside a replica, 1 for none.

    expert: data-parallel ranks that share the experts; they are no GPUs of their own
    """

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    __repr__ = brief

    def __post_init__(self) -> None:
        for one in fields(self):
            size = getattr(self, one.name)
            if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= LARGEST:
                raise UsageError(f"a {one.name} group of {size!r} GPUs: it must be a number from 1 to {LARGEST}")

    @property
    def words(self) -> str:
        """The groups of more than one GPU, as options: ``--tp 8 --pp 2``."""
        sizes = {"tp": self.tensor, "pp": self.pipeline, "cp": self.context, "ep": self.expert}
        return " ".join(f"--{name} {size}" for name, size in sizes.items() if size > 1)

    @property
    def document(self) -> dict[str, int]:
        """The groups of more than one GPU, JSON-ready; empty without any."""
        return {one.name: size for one in fields(self) if (size := getattr(self, one.name)) > 1}

    @property
    def gpus(self) -> int:
        """GPUs of a replica."""
        return self.tensor * self.pipeline * self.context

    def replicas(self, gpus: int) -> int:
        """Number of replicas of ``gpus`` GPUs. Raises UsageError if they do not make whole ones."""
        if gpus % self.gpus:
            raise UsageError(f"{gpus} GPUs are not whole replicas of {self.gpus} GPUs ({self.words})")
        found = gpus // self.gpus
        if found * self.context % self.expert:
            raise UsageError(f"{gpus} GPUs have {found * self.context} data-parallel ranks, not shared by {self.words}")
        return found

    def ranks(self, gpus: int) -> int:
        """GPUs that reduce each gradient together: those of a context group, of all replicas. Raises UsageError."""
        return self.replicas(gpus) * self.context


class GroupMessage(NamedTuple):
    """A collective of a module's group: ``elements`` of the whole message of a sample, so often in each direction."""

    group: str
    collective: str
    elements: int
    forward: int
    backward: int


class Part(NamedTuple):
    """The model that one GPU computes, and the collectives of its modules by their names."""

    model: Model
    sent: Mapping[str, tuple[GroupMessage, ...]]


def part_of(model: Model, groups: Parallelism, stage: int = 0) -> Part:
    """The part of a GPU in a pipeline's ``stage``. Raises UsageError where a model is not shared like that."""
    _require_shareable(model, groups)
    sent: dict[str, tuple[GroupMessage, ...]] = {}
    shared = []
    for one, ends in _of_stage(model, groups.pipeline, stage):
        module = _untied(one, model) if stage else one
        sent[module.name] = tuple(_sent(module, model, ends, groups))
        shared.append(_shared(module, ends, groups))
    names = {model.block_of(module) for module in shared}
    blocks = tuple(name for name in model.blocks if name in names)
    return Part(replace(model, modules=tuple(shared), blocks=blocks), sent)


def _untied(module: Module, model: Model) -> Module:
    """A head that is the embedding with a matrix of its own, since the embedding is on another stage."""
    if module.parameters or not module.products or model.block_of(module):
        return module
    first = module.products[0]
    return replace(module, parameters=(("weight", (first.columns, first.inner)),))


def _require_shareable(model: Model, groups: Parallelism) -> None:
    """Raise UsageError unless heads, tokens, experts and blocks are shared evenly, or there are enough of them."""
    if not model.tokens or not model.blocks:
        raise UsageError(f"{groups.words}: {model.name} is no language model: only those are shared by groups")
    heads = {product.times for module in model.modules for product in module.scores}
    experts = {module.experts for module in model.modules if module.experts}
    for size, what, numbers in (
        (groups.tensor, "heads", heads),
        (groups.context, "tokens", {model.tokens}),
        (groups.expert, "experts", experts or {1}),
    ):
        for number in numbers:
            if number % size:
                raise UsageError(f"{groups.words}: {model.name} has {number} {what}, which {size} GPUs do not share")
    if groups.pipeline > len(model.blocks):
        raise UsageError(f"{groups.words}: {model.name} has {len(model.blocks)} blocks, fewer than stages")


def _of_stage(model: Model, stages: int, stage: int) -> Iterator[tuple[Module, bool]]:
    """The modules of a stage, each with whether it ends a part of a block.

    All in front of the blocks count as one block, and all behind them; the first stages have one more, as torchtitan
    shares them.
    """
    units: list[list[int]] = []
    before: str | None = None
    for place, module in enumerate(model.modules):
        name = model.block_of(module)
        if name != before:
            units.append([])
        units[-1].append(place)
        before = name
    each, more = divmod(len(units), stages)
    first = stage * each + min(stage, more)
    for unit in units[first : first + each + (stage < more)]:
        for place in unit:
            yield model.modules[place], _ends(model, place)


def _ends(model: Model, place: int) -> bool:
    """Whether a module ends a part of a block: behind it comes a norm, or another block."""
    module = model.modules[place]
    if not module.products or not model.block_of(module) or place + 1 == len(model.modules):
        return False
    following = model.modules[place + 1]
    inside = model.block_of(following) == model.block_of(module)
    return not inside or not (following.products or following.name.endswith(("q_norm", "k_norm")))


def _sent(module: Module, model: Model, ends: bool, groups: Parallelism) -> Iterator[GroupMessage]:
    """The collectives of a module."""
    if groups.tensor > 1:
        tokens = model.tokens // groups.context
        if ends:
            size = tokens * module.products[-1].columns
            yield GroupMessage("tensor", "all_gather", size, 1, 1)
            yield GroupMessage("tensor", "reduce_scatter", size, 1, 1)
        elif not model.block_of(module) and module.products:  # the head
            size = tokens * module.products[0].inner
            yield GroupMessage("tensor", "all_gather", size, 1, 0)
            yield GroupMessage("tensor", "reduce_scatter", size, 0, 1)
        elif not model.block_of(module) and len(_widest(module)) > 1:  # the embedding
            size = tokens * min(_widest(module))
            yield GroupMessage("tensor", "reduce_scatter", size, 1, 0)
            yield GroupMessage("tensor", "all_gather", size, 0, 1)
    if groups.context > 1 and module.keys:
        size = -(-module.keys // groups.tensor)
        yield GroupMessage("context", "all_gather", size, 1, 1)
        yield GroupMessage("context", "reduce_scatter", size, 0, 1)
    if groups.expert > 1 and module.experts:
        first = module.products[0]
        size = first.rows * first.inner * first.times // (groups.context * groups.tensor)
        yield GroupMessage(
            "expert", "all_gather", size, 2, 2
        )  # to the experts and back: as many bytes as an all-gather's


def _widest(module: Module) -> Shape:
    return max((shape for _, shape in module.parameters), key=prod, default=())


def _shared(module: Module, ends: bool, groups: Parallelism) -> Module:
    """A GPU's part of a module: of its matrices by columns, or by rows where it ends a part, and of its tokens."""
    among = groups.expert if module.experts else 1
    parameters, products = [], []
    for number, product in enumerate(module.products):
        rows = -(-product.rows * among // groups.context)
        by_rows = ends and number == len(module.products) - 1
        inner = -(-product.inner // groups.tensor) if by_rows else product.inner
        columns = product.columns if by_rows else -(-product.columns // groups.tensor)
        products.append(Product(rows, inner, columns, product.times // among, product.taps))
    for number, (name, shape) in enumerate(module.parameters):
        one = module.products[min(number, len(module.products) - 1)] if module.products else None
        by_rows = ends and one is module.products[-1]
        mine = _divided(shape, one, by_rows, groups.tensor)
        if among > 1:  # experts by rows, since FSDP shards rows and they may be fewer than ranks: as torchtitan does
            mine = (mine[0] // among * mine[1], *mine[2:])
        parameters.append((name, mine))
    scores = tuple(
        score._replace(rows=-(-score.rows // groups.context), times=score.times // groups.tensor)
        for score in module.scores
    )
    parts = groups.context * groups.tensor
    moved, kept = module.moved // parts, int(module.kept / parts)
    return replace(
        module, parameters=tuple(parameters), products=tuple(products), scores=scores, moved=moved, kept=kept
    )


def _divided(shape: Shape, product: Product | None, by_rows: bool, parts: int) -> Shape:
    """The shape of a GPU's part of a parameter; norms are on all GPUs, and so is a bias that is added to sums."""
    if product is None:
        return (-(-shape[0] // parts), *shape[1:]) if len(shape) > 1 else shape  # the embedding, by words
    if len(shape) == 1:
        return shape if by_rows else (-(-shape[0] // parts),)
    usual = shape[-2:] == (product.columns, product.inner)
    axis = len(shape) - (1 if by_rows == usual else 2)
    return (*shape[:axis], -(-shape[axis] // parts), *shape[axis + 1 :])


def stages_of(model: Model, groups: Parallelism) -> Sequence[Part]:
    """The parts of all stages of a pipeline."""
    return [part_of(model, groups, stage) for stage in range(groups.pipeline)]
