"""Modules of a model: the shapes of their parameters, and their work for one sample, counted from dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from math import prod
from operator import attrgetter
from typing import NamedTuple

from osfmodel.entities.display import brief, how_many
from osfmodel.entities.modules import around

Shape = tuple[int, ...]


class Product(NamedTuple):
    """``times`` products of a matrix of ``rows`` x ``inner`` and one of ``inner`` x ``columns``, for one sample.

    A convolution has a row for each position of its output; its inputs are read once for the ``taps`` of its kernel.
    """

    rows: int
    inner: int
    columns: int
    times: int = 1
    taps: int = 1

    @property
    def operations(self) -> int:
        """Floating-point operations: a multiplication and an addition for each pair of elements."""
        return 2 * self.rows * self.inner * self.columns * self.times


@dataclass(frozen=True, slots=True)
class Module:
    """A module with parameters, and the work of one sample in its forward.

    name:       in the model, such as ``model.layers.0.mlp.up_proj``
    parameters: (name in the module, shape), in the order of definition
    products:   with its parameters; backward has ``passes`` for each
    scores:     products without parameters that belong to it, as those of attention; half of one that is causal
    moved:      elements that are read from memory or written to it apart from products, as by a norm or an activation
    unfused:    elements that are moved besides where each operation on them is a kernel of its own
    kept:       elements that stay in memory from forward to backward
    keys:       elements of keys and values that its attention reads
    of_keys:    columns of its matrix that make keys and values
    experts:    number of experts, of which each has its even share of the tokens; 0 for a module without
    chosen:     number of experts that a token passes
    whole:      whether its scores are not causal though the model is
    row_parallel: whether tensor parallelism divides its last matrix by rows and adds up the results, at the end of a
                sublayer; by columns else
    frozen:     whether its parameters are not trained
    reached:    whether backward computes the gradient of its input
    packed:     whether its matrix is kept in 4 bits, and unpacked whenever it is used
    through:    whether backward computes the gradients of its frozen weights, for adapters that are added to them
    once:       whether its work and what it keeps are those of a micro-batch, however many samples that has
    logits:     elements that the loss over a vocabulary reads; what it keeps of them depends on the software
    loss:       the bytes of each of these as ``Stack.logit``, where its makers have a loss of their own
    """

    name: str
    parameters: tuple[tuple[str, Shape], ...]
    products: tuple[Product, ...] = ()
    scores: tuple[Product, ...] = ()
    moved: int = 0
    kept: int = 0
    keys: int = 0
    of_keys: int = 0
    experts: int = 0
    chosen: int = 0
    whole: bool = False
    row_parallel: bool = False
    frozen: bool = False
    reached: bool = True
    packed: bool = False
    through: bool = False
    once: bool = False
    logits: int = 0
    loss: tuple[int, int] | None = None
    unfused: int = 0
    __repr__ = brief

    @property
    def passes(self) -> int:
        """Products of backward for each of forward: for the gradients of its weights, and of its input."""
        return self.weighed + self.reached

    @property
    def weighed(self) -> bool:
        """Whether backward computes the gradients of its weights."""
        return not self.frozen or self.through

    @property
    def squared(self) -> int:
        """Elements that a norm by root mean square keeps if written as operations on float32; 0 for other modules."""
        return 0 if self.products else min(self.kept, self.unfused // SQUARED)

    @property
    def elements(self) -> int:
        """Number of elements of its parameters."""
        return sum(prod(shape) for _, shape in self.parameters)

    @property
    def active(self) -> int:
        """Number of elements that a token passes: of experts, those of its own."""
        return self.elements * self.chosen // self.experts if self.experts else self.elements


unnamed = attrgetter(*(one.name for one in fields(Module) if one.name != "name"))
"""All of a module but its name."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model as its modules, in forward order.

    name:    of the architecture
    modules: whose names are those of the library's own class
    tokens:  in a sample; 0 where samples are images
    blocks:  names of the modules that users wrap or recompute one by one
    causal:  whether half of attention is not computed
    sample:  the inputs that were counted, such as ``x 1 x 3 x 224 x 224``; "" where tokens or the configuration say it
    notes:   what to know about how it was counted
    """

    name: str
    modules: tuple[Module, ...]
    tokens: int
    blocks: tuple[str, ...]
    causal: bool = False
    sample: str = ""
    notes: tuple[str, ...] = ()
    _holders: dict[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        known = set(self.blocks)
        inside = {module.name: [name for name in around(module.name) if name in known] for module in self.modules}
        found = {name: "".join(names[:1]) for name, names in inside.items()}
        object.__setattr__(self, "_holders", found)

    def __repr__(self) -> str:
        return brief(self, f"{self.name}: {self.parameters:,} parameters in {how_many(len(self.modules), 'module')}")

    def block_of(self, module: Module) -> str:
        """The block that holds ``module``; "" for none."""
        return self._holders.get(module.name, "")

    @property
    def parameters(self) -> int:
        """Number of parameters; one that is used twice counts once."""
        return sum(module.elements for module in self.modules)

    @property
    def active(self) -> int:
        """Number of parameters that a token passes; the whole embedding is among them, as makers of models count."""
        return sum(module.active for module in self.modules)

    @property
    def trained(self) -> int:
        """Number of parameters that are not frozen."""
        return sum(module.elements for module in self.modules if not module.frozen)

    @property
    def operations(self) -> int:
        """Floating-point operations of a sample in a step, nothing recomputed: of forward, and twice that in backward.

        Half of causal attention is not computed, and does not count; nor do gradients that nothing needs.
        """
        return self._operations(1)

    @property
    def utilised(self) -> int:
        """Operations of a sample by which utilisation (MFU) is counted: as ``operations``, with all of attention."""
        return self._operations(1 + self.causal)

    def _operations(self, halved: int) -> int:
        """Operations of forward and backward, with so many times those inside attention of which half is computed."""
        return sum(
            (1 + module.passes) * sum(product.operations for product in module.products)
            + (1 + 2 * module.reached)
            * (1 if module.whole else halved)
            * sum(product.operations for product in module.scores)
            for module in self.modules
        )


def linear(  # noqa: PLR0913, PLR0917
    name: str,
    inner: int,
    columns: int,
    rows: int,
    bias: bool = False,
    moved: int = 0,
    kept: int = 0,
    scores: Iterable[Product] = (),
    transposed: bool = False,
) -> Module:
    """A linear layer from ``inner`` to ``columns`` features, of ``rows`` vectors for each sample.

    moved, kept, scores: of what comes right before it and has no parameters. It keeps its input on top of ``kept``.
    transposed: whether its weight has the shape (inner, columns)
    """
    weight = (inner, columns) if transposed else (columns, inner)
    parameters = (("weight", weight), *([("bias", (columns,))] if bias else []))
    return Module(name, parameters, (Product(rows, inner, columns),), tuple(scores), moved, kept + rows * inner)


SQUARED = 16
"""Elements of half precision for each one of a norm by root mean square written in Python, beyond one read and one
written: a cast to float32, square, mean, product, a cast back, and the weight (36 bytes)."""


def norm(name: str, width: int, rows: int, bias: bool = False, added: bool = True, squared: bool = False) -> Module:
    """A normalisation of ``rows`` vectors; ``added``: behind the addition of a residual.

    squared: whether it is one by root mean square, which libraries write as operations on float32
    """
    parameters = (("weight", (width,)), *([("bias", (width,))] if bias else []))
    return Module(
        name, parameters, moved=(2 + 3 * added) * rows * width, kept=rows * width,
        unfused=SQUARED * squared * rows * width,
    )  # fmt: skip


def embedding(name: str, size: int, width: int, rows: int) -> Module:
    """A table of ``size`` vectors, of which ``rows`` are looked up for each sample."""
    return Module(name, (("weight", (size, width)),), moved=2 * rows * width)


def attention(
    tokens: int, heads: int, width: int, keys: int = 0, causal: bool = False, window: int = 0, chunk: int = 0
) -> tuple[Product, Product]:
    """The two products of attention between ``tokens`` queries and as many keys (or ``keys``) of ``width`` a head.

    window: if causal, the most keys that a query sees; 0 for all before it
    chunk:  if causal, tokens that see none before the first of them; 0 for all
    """
    seen = keys or tokens
    if causal and 0 < window < tokens:
        seen = window - window * (window - 1) // (2 * tokens)
    elif causal:
        seen = (min(seen, chunk or seen) + 1) // 2
    return Product(tokens, width, seen, heads), Product(tokens, seen, width, heads)


def fused_attention(  # noqa: PLR0913, PLR0917
    names: Sequence[str],
    width: int,
    heads: int,
    rows: int,
    biased: bool = True,
    causal: bool = False,
    transposed: bool = False,
    rotated: bool = False,
    groups: int = 0,
) -> Iterator[Module]:
    """Attention of one matrix for queries, keys and values, and one behind it.

    rotated: with rotary positions
    groups:  heads of keys and of values; 0 for as many as of queries
    """
    keys = 2 * width * (groups or heads) // heads
    yield replace(linear(names[0], width, width + keys, rows, biased, transposed=transposed), of_keys=groups and keys)
    last = linear(
        names[1], width, width, rows, biased, transposed=transposed, kept=(width + keys) * rows,
        moved=(2 * width + keys + rotated * (2 * width + keys)) * rows,
        scores=attention(rows, heads, width // heads, causal=causal),
    )  # fmt: skip
    yield replace(last, keys=keys * rows, row_parallel=True)


def feed_forward(
    names: Sequence[str],
    width: int,
    inner: int,
    rows: int,
    biased: bool = True,
    transposed: bool = False,
    in_place: bool = False,
) -> Iterator[Module]:
    """Two linear layers and an activation between them, which keeps its input unless it works ``in_place`` (ReLU)."""
    yield linear(names[0], width, inner, rows, biased, transposed=transposed)
    kept = 0 if in_place else inner * rows
    last = linear(names[1], inner, width, rows, biased, transposed=transposed, moved=2 * inner * rows, kept=kept)
    yield replace(last, row_parallel=True)


def split_attention(  # noqa: PLR0913, PLR0917
    names: Sequence[str],
    width: int,
    heads: int,
    head: int,
    rows: int,
    biased: bool = True,
    keys: int = 0,
    causal: bool = False,
) -> Iterator[Module]:
    """Attention of matrices for queries, keys, values and their result; ``keys``: of another input with as many rows.

    What keys and values keep of their input is kept before: by the queries, or by the layer whose output it is.
    """
    inner, others = heads * head, keys or rows
    yield linear(names[0], width, inner, rows, biased)
    for name in names[1:3]:
        yield linear(name, width, inner, others, biased, kept=-width * others)
    read = (rows + 2 * others) * inner
    last = linear(
        names[3], inner, width, rows, biased, moved=read + inner * rows, kept=read,
        scores=attention(rows, heads, head, keys, causal),
    )  # fmt: skip
    yield replace(last, keys=2 * inner * others, row_parallel=True)


def convolution(  # noqa: PLR0913, PLR0917
    name: str, inputs: int, outputs: int, kernel: int, side: int, stride: int = 1, groups: int = 1, biased: bool = False
) -> Module:
    """A convolution whose output has ``side`` x ``side`` positions, padded so that its input has ``stride`` as many."""
    shape = (outputs, inputs // groups, kernel, kernel)
    parameters = (("weight", shape), *([("bias", (outputs,))] if biased else []))
    taps = max(1, (kernel // stride) ** 2)
    product = Product(side * side, prod(shape[1:]), outputs // groups, groups, taps)
    return Module(name, parameters, (product,), kept=inputs * (side * stride) ** 2)


def batch_norm(name: str, channels: int, side: int, activated: bool = True, added: bool = False) -> Module:
    """A normalisation over a batch, which reads twice; then an addition, and an activation in place."""
    parameters = (("weight", (channels,)), ("bias", (channels,)))
    elements = channels * side * side
    return Module(name, parameters, moved=(3 + 2 * activated + 3 * added) * elements, kept=elements)


LOGITS = 5
"""Elements of half precision that are moved for each logit, twice: itself, and in float32 its copy and gradient."""


def head(name: str, width: int, vocabulary: int, tokens: int, tied: bool, biased: bool = False) -> Module:
    """The head of a language model and the loss behind it; without a weight if that is the embedding's."""
    logits = vocabulary * tokens
    made = linear(name, width, vocabulary, tokens, biased, moved=2 * LOGITS * logits)
    return replace(made, parameters=made.parameters[1:] if tied else made.parameters, logits=logits)


def lone(name: str, shape: Shape) -> Module:
    """A parameter that no module below the model's top holds, such as a class token, added to ``shape`` elements."""
    return Module(name, (("", shape),), moved=prod(shape))
