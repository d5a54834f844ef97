"""Shard of a language model on one GPU under tensor, pipeline, context and expert parallelism, and its collectives.

A replica may be several GPUs: a tensor group shares each matrix and the tokens between matrices (sequence parallelism,
as torchtitan and Megatron do), a context group shares the tokens, an expert group the experts, and the stages of a
pipeline the blocks. They are taken as given, and lie as torchtitan lays them: the GPUs of a tensor group are next to
each other, then those of a context group, then data-parallel ranks; stages are the furthest apart.

Where a tensor group has more GPUs than a model has heads of keys and values, several have the same head.
Under tensor parallelism a sublayer (attention, or feed-forward) begins with an all-gather of its input and ends with a
reduce-scatter of its output; backward does both once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from math import prod
from typing import NamedTuple

from osfmodel.counting.blocks import folded, parts_of
from osfmodel.counting.modules import Model, Module, Product, Shape, unnamed
from osfmodel.entities.display import brief
from osfmodel.entities.errors import UsageError

LARGEST = 10**4
SHARED_HEADS = "key and value heads"
PARALLEL_LOSS = (10, 8)
"""Bytes of a logit as in Stack where a tensor group divides them, in torch's ``loss_parallel``: its backward has the
gradient three times in float32. Of stacks that gather inputs again the loss is their own."""
OPTIONS = {"tensor": "tp", "pipeline": "pp", "context": "cp", "expert": "ep"}
"""Kinds of groups, with the short names by which options call them."""
DEGREES = {**OPTIONS, "chunks": "vpp"}
"""All sizes of a Parallelism, with the short names by which options call them."""


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Sizes of the groups of GPUs inside a replica, 1 for none.

    expert: of data-parallel ranks; it adds no GPUs
    chunks: parts of a stage of an interleaved pipeline, which take turns; they are no GPUs either
    """

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    chunks: int = 1
    __repr__ = brief

    def __post_init__(self) -> None:
        for one in fields(self):
            size = getattr(self, one.name)
            if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= LARGEST:
                raise UsageError(f"--{DEGREES[one.name]} {size!r}: it must be a whole number from 1 to {LARGEST}")
        if self.chunks > 1 and self.pipeline == 1:
            raise UsageError(f"--vpp {self.chunks}: only the stages of a pipeline have chunks: give --pp")

    @property
    def words(self) -> str:
        """The groups of more than one GPU, as options: ``--tp 8 --pp 2``."""
        return " ".join(f"--{DEGREES[name]} {size}" for name, size in self.document.items())

    @property
    def document(self) -> dict[str, int]:
        """The groups of more than one GPU, JSON-ready; empty without any."""
        return {one.name: size for one in fields(self) if (size := getattr(self, one.name)) > 1}

    @property
    def spread(self) -> dict[str, tuple[int, int]]:
        """How the ranks of each kind of group lie that communicates: those from one to the next, and their number."""
        apart = {"tensor": 1, "context": self.tensor, "expert": self.tensor}
        return {name: (each, getattr(self, name)) for name, each in apart.items() if getattr(self, name) > 1}

    @property
    def gpus(self) -> int:
        """GPUs of a replica."""
        return self.tensor * self.pipeline * self.context

    def replicas(self, gpus: int) -> int:
        """Number of replicas of ``gpus`` GPUs. Raises UsageError if they do not make whole ones."""
        if gpus % self.gpus:
            raise UsageError(
                f"{gpus} GPUs cannot be divided into replicas of {self.gpus} ({self.words}): give a multiple of that"
            )
        found = gpus // self.gpus
        if found * self.context % self.expert:
            raise UsageError(
                f"--ep {self.expert} does not divide the {found * self.context} data-parallel ranks of {gpus} GPUs"
            )
        return found

    def ranks(self, gpus: int) -> int:
        """GPUs that reduce each gradient together: those of a context group, of all replicas. Raises UsageError."""
        return self.replicas(gpus) * self.context


class GroupMessage(NamedTuple):
    """A collective of a module's group.

    group:    its kind
    among:    GPUs of the group
    elements: of the whole message, for one sample
    forward, backward: times that it runs in each pass
    copies:   experts that each token of the message goes to
    """

    group: str
    among: int
    collective: str
    elements: int
    forward: int
    backward: int
    copies: int = 1


class Shard(NamedTuple):
    """The model as one GPU computes it, and the collectives of its modules by their names."""

    model: Model
    sent: Mapping[str, tuple[GroupMessage, ...]]


class Folded(NamedTuple):
    """A shard with the first block of each run of blocks that are alike.

    more: by that block, how many others follow it
    """

    shard: Shard
    more: Mapping[str, int]

    @property
    def trained(self) -> int:
        """Number of parameters that are not frozen, of all blocks."""
        model = self.shard.model
        return sum(
            one.elements * (1 + self.more.get(model.block_of(one), 0)) for one in model.modules if not one.frozen
        )


def shard_of(model: Model, groups: Parallelism, stage: int = 0, gathers: bool = True, by_cost: bool = False) -> Shard:
    """The shard of a GPU in a pipeline's ``stage``; ``gathers`` and ``by_cost`` as in Stack.

    Raises UsageError where the model cannot be divided like that.
    """
    return _shard(model, groups, gathers, _copies(model, groups), _stages(model, groups, by_cost)[stage])


def _shard(model: Model, groups: Parallelism, gathers: bool, copies: int, modules: Sequence[Module]) -> Shard:
    sent: dict[str, tuple[GroupMessage, ...]] = {}
    shared = []
    for one in modules:
        module = _copied(_untied(one, model) if modules[0] is not model.modules[0] else one, copies)
        sent[module.name] = tuple(_sent(module, model, groups))
        part = _shared(module, groups, gathers and bool(model.block_of(module)))
        parallel = gathers and groups.tensor > 1 and module.logits and not module.loss
        shared.append(replace(part, loss=PARALLEL_LOSS) if parallel else part)
    names = {model.block_of(module) for module in shared}
    blocks = tuple(name for name in model.blocks if name in names)
    return Shard(replace(model, modules=tuple(shared), blocks=blocks), sent)


def _untied(module: Module, model: Model) -> Module:
    """A module; a head that is tied to the embedding with a copy of its matrix, which is on another stage."""
    if module.parameters or not module.products or model.block_of(module):
        return module
    first = module.products[0]
    return replace(module, parameters=(("weight", (first.columns, first.inner)),))


def _copied(module: Module, copies: int) -> Module:
    """A module whose heads of keys and values are there so many times."""
    more = copies - 1
    if not more or not (module.of_keys or module.keys):
        return module
    rows = module.of_keys * more
    return replace(
        module,
        parameters=tuple((name, (shape[0] + rows, *shape[1:])) for name, shape in module.parameters),
        products=tuple(one._replace(columns=one.columns + rows) for one in module.products),
        moved=module.moved + 2 * more * module.keys,
        kept=module.kept + more * module.keys,
        keys=module.keys * copies,
    )


def _copies(model: Model, groups: Parallelism) -> int:
    """GPUs of a tensor group that have the same head of keys and values, where it has more GPUs than these.

    Raises UsageError unless heads, tokens and experts can be divided, and there are blocks for all stages.
    """
    if not model.tokens or not model.blocks:
        raise UsageError(f"{groups.words}: {model.name} is no language model: leave it out")
    heads = {product.times for module in model.modules for product in module.scores}
    keys = {
        module.keys // (module.scores[0].rows * (module.scores[0].inner + module.scores[1].columns))
        for module in model.modules
        if module.keys and module.scores
    }
    experts = {module.experts for module in model.modules if module.experts}
    if any(module.frozen for module in model.modules):
        for option, size in (("--tp", groups.tensor), ("--ep", groups.expert)):
            if size > 1:
                remedy = f"leave {option} {size} out, or train all parameters"
                raise UsageError(f"{option} cannot be combined with lora, qlora or frozen yet: {remedy}")
    if groups.expert > 1 and not experts:
        raise UsageError(f"--ep {groups.expert}: {model.name} has no experts: leave it out")
    for kind, what, numbers in (
        ("tensor", "attention heads", heads),
        ("tensor", SHARED_HEADS, keys),
        ("tensor", "tokens", {model.tokens // groups.context}),
        ("context", "tokens", {model.tokens}),
        ("expert", "experts", experts),
    ):
        size = getattr(groups, kind)
        for number in numbers:
            if number % size and not (what == SHARED_HEADS and size % number == 0):
                raise UsageError(
                    f"--{OPTIONS[kind]} {size}: the {number} {what} of {model.name} cannot be divided by {size}"
                )
    blocks = len({model.block_of(one) for one in model.modules if not one.whole} - {""})
    if groups.pipeline * groups.chunks > blocks:
        said = f"--pp {groups.pipeline}" + f" --vpp {groups.chunks}" * (groups.chunks > 1)
        raise UsageError(f"{said}: {model.name} has only {blocks} blocks")
    return max(1, groups.tensor // min(keys, default=groups.tensor))


def _stages(model: Model, groups: Parallelism, by_cost: bool = False) -> list[tuple[Module, ...]]:
    """The modules of each stage; of an interleaved pipeline the stage k has the chunks k, k + p, k + 2 p, ..."""
    parts = parts_of(model, groups.pipeline * groups.chunks, by_cost)
    return [tuple(chain.from_iterable(parts[stage :: groups.pipeline])) for stage in range(groups.pipeline)]


def _sent(module: Module, model: Model, groups: Parallelism) -> Iterator[GroupMessage]:
    """The collectives of a module."""
    if groups.tensor > 1:
        tokens = model.tokens // groups.context
        if module.row_parallel:
            size = tokens * module.products[-1].columns
            yield GroupMessage("tensor", groups.tensor, "all_gather", size, 1, 1)
            yield GroupMessage("tensor", groups.tensor, "reduce_scatter", size, 1, 1)
        elif not model.block_of(module) and module.products:  # the head
            size = tokens * module.products[0].inner
            yield GroupMessage("tensor", groups.tensor, "all_gather", size, 1, 0)
            yield GroupMessage("tensor", groups.tensor, "reduce_scatter", size, 0, 1)
        elif not model.block_of(module) and len(_widest(module)) > 1:  # the embedding
            size = tokens * min(_widest(module))
            yield GroupMessage("tensor", groups.tensor, "reduce_scatter", size, 1, 0)
            yield GroupMessage("tensor", groups.tensor, "all_gather", size, 0, 1)
    if groups.context > 1 and module.keys:
        size = -(-module.keys // groups.tensor)
        yield GroupMessage("context", groups.context, "all_gather", size, 1, 1)
        yield GroupMessage("context", groups.context, "reduce_scatter", size, 0, 1)
    if groups.expert > 1 and module.experts:
        first = module.products[0]
        size = first.rows * first.inner * first.times // (groups.context * groups.tensor)
        # To the experts and back: an all-to-all moves as many bytes as an all-gather.
        yield GroupMessage("expert", groups.expert, "all_gather", size, 2, 2, max(1, module.chosen))


def _widest(module: Module) -> Shape:
    return max((shape for _, shape in module.parameters), key=prod, default=())


def _shared(module: Module, groups: Parallelism, gathers: bool) -> Module:
    """A GPU's shard of a module: a share of its matrices, by columns or by rows, and of its tokens."""
    among = groups.expert if module.experts else 1
    parameters, products = [], []
    for number, product in enumerate(module.products):
        rows = -(-product.rows * among // groups.context)
        by_rows = module.row_parallel and number == len(module.products) - 1
        inner = -(-product.inner // groups.tensor) if by_rows else product.inner
        columns = product.columns if by_rows else -(-product.columns // groups.tensor)
        products.append(Product(rows, inner, columns, product.times // among, product.taps))
    for number, (name, shape) in enumerate(module.parameters):
        one = module.products[min(number, len(module.products) - 1)] if module.products else None
        by_rows = module.row_parallel and one is module.products[-1]
        mine = _divided(shape, one, by_rows, groups.tensor)
        if among > 1:  # FSDP would shard experts, which may be fewer than ranks: as in torchtitan, it shards rows
            mine = (mine[0] // among * mine[1], *mine[2:])
        parameters.append((name, mine))
    scores = tuple(
        score._replace(rows=-(-score.rows // groups.context), times=score.times // groups.tensor)
        for score in module.scores
    )
    parts = groups.context * groups.tensor
    gathered = gathers and bool(module.products) and not module.row_parallel
    kept = int(module.kept / (groups.context if gathered else parts))
    return replace(
        module, parameters=tuple(parameters), products=tuple(products), scores=scores, moved=module.moved // parts,
        unfused=module.unfused // parts,
        kept=kept, logits=module.logits // parts,
    )  # fmt: skip


def _divided(shape: Shape, product: Product | None, by_rows: bool, parts: int) -> Shape:
    """The shape of a GPU's share of a parameter; norms are replicated, and so are biases of row-parallel layers."""
    if product is None:
        return (-(-shape[0] // parts), *shape[1:]) if len(shape) > 1 else shape  # the embedding, by words
    if len(shape) == 1:
        return shape if by_rows else (-(-shape[0] // parts),)
    usual = shape[-2:] == (product.columns, product.inner)
    axis = len(shape) - (1 if by_rows == usual else 2)
    return (*shape[:axis], -(-shape[axis] // parts), *shape[axis + 1 :])


def folded_stages(model: Model, groups: Parallelism, gathers: bool = True, by_cost: bool = False) -> list[Folded]:
    """The different shards of :func:`stages_of`, folded; it takes a fraction of the time."""
    copies, found = _copies(model, groups), {}
    for modules in reversed(_stages(model, groups, by_cost)):
        own, more = folded(model, modules)
        forms = [(one.name.removeprefix(model.block_of(one)), *unnamed(one)) for one in own]
        found[tuple(forms), tuple(more.values())] = own, more
    return [Folded(_shard(model, groups, gathers, copies, own), more) for own, more in found.values()]


def stages_of(
    model: Model, groups: Parallelism, gathers: bool = True, by_cost: bool = False
) -> tuple[list[Shard], list[int]]:
    """The shards of the stages of a pipeline that differ in more than names, and for each stage the place of its shard.

    gathers, by_cost: as in Stack

    Raises UsageError as :func:`shard_of`.
    """
    copies, stages = _copies(model, groups), _stages(model, groups, by_cost)
    forms = [
        tuple([(one.name.removeprefix(model.block_of(one)), *unnamed(one)) for one in modules]) for modules in stages
    ]
    first = dict(zip(reversed(forms), reversed(stages), strict=True))
    shards = {form: _shard(model, groups, gathers, copies, first[form]) for form in dict.fromkeys(forms)}
    return list(shards.values()), list(map(list(shards).index, forms))
