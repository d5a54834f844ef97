"""The parts of a model as people think of them: embedding, attention, feed-forward, router, experts, head, vision."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from osfmodel.counting.finetuning import MATRIX, heads, in_tower, routers
from osfmodel.counting.modules import Model, Module

ATTENTION = ("att", "query", "key_value")
"""Contained in names of modules that are attention, or hold it."""
SCANS = ("mamba", "ssm", "mixer")
"""Names of modules that hold a scan of a state."""
ALL = "all"
ORDER = ("embedding", "vision", "audio", "convolution", "attention", "state space", "feed-forward", "router", "experts",
         "adapters", "norms", "head")  # fmt: skip
"""The parts as they are listed."""


class Part(NamedTuple):
    """Modules of a kind.

    modules:    their number
    parameters: of all; ``active``: of those, the ones that a token meets on average
    trained:    parameters that are not frozen
    operations: of forward for one sample, half of causal attention left out; ``each``: for one token of it, if it has
                tokens
    kept:       elements of activations that stay from forward to backward, for one sample
    published:  parameters as published, and those of them that are active, if known
    """

    name: str
    modules: int
    parameters: int
    active: int
    trained: int
    operations: int
    each: float | None
    kept: int
    published: tuple[int, int] | None = None


def parts_of(model: Model, published: tuple[int, int] | None = None) -> list[Part]:
    """The parts of a model in ORDER, and all of it; ``published``: its parameters and active ones, if known."""
    outside = [(place, one) for place, one in enumerate(model.modules) if not model.block_of(one)]
    last = len(model.modules) - next((n for n, one in enumerate(model.modules[::-1]) if model.block_of(one)), 0)
    known = {
        "embedding": {
            one.name for _, one in outside if not one.products and any(len(s) >= MATRIX for _, s in one.parameters)
        },
        "head": {*heads(model), *(one.name for place, one in outside if place >= last and one.products)},
        "router": routers(model),
        "experts": {one.name for one in model.modules if one.experts},
    }
    kinds: dict[str, list[Module]] = {}
    for module in model.modules:
        kinds.setdefault(next(_kinds(module, model, known)), []).append(module)
    return [
        *(_part(kind, kinds[kind], model) for kind in ORDER if kind in kinds),
        _part(ALL, model.modules, model, published),
    ]


def _part(name: str, modules: Sequence[Module], model: Model, published: tuple[int, int] | None = None) -> Part:
    products = (product for module in modules for product in (*module.products, *module.scores))
    operations = sum(product.operations for product in products)
    parameters, active = sum(module.elements for module in modules), sum(_active(module, model) for module in modules)
    trained = sum(module.elements for module in modules if not module.frozen)
    kept = sum(module.kept for module in modules)
    each = operations / model.tokens if model.tokens else None
    return Part(name, len(modules), parameters, round(active), trained, operations, each, kept, published)


def _active(module: Module, model: Model) -> float:
    """Parameters of a module that a token meets on average: of experts those of the ones that it is sent to."""
    share = module.products[0].rows / model.tokens if module.experts and model.tokens else 1
    return module.elements * share


def _kinds(module: Module, model: Model, known: Mapping[str, Collection[str]]) -> Iterator[str]:
    """The parts that a module may belong to, the right one first; ``known``: names of the modules of some."""
    parts = module.name.lower().split(".")
    if any(part.startswith("lora_") for part in parts):
        yield "adapters"
    if in_tower(module.name):
        yield "audio" if "audio" in module.name else "vision"
    yield from (kind for kind, names in known.items() if module.name in names)
    if not module.products and not module.scores:
        yield "norms"
    if any(part in SCANS for part in parts):
        yield "state space"
    if any(word in part for word in ATTENTION for part in parts) or (module.scores and model.block_of(module)):
        yield "attention"
    if any(len(shape) > MATRIX for _, shape in module.parameters):
        yield "convolution"
    yield "feed-forward"
