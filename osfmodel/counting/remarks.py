"""A counted model described for people: its parts as they think of them, and remarks on how its words were counted."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from osfmodel.counting import library
from osfmodel.counting.finetuning import ADDED_TO, MATRIX, heads, in_tower, routers
from osfmodel.counting.modules import Model, Module
from osfmodel.counting.stacks import STACKS, USUAL_STACKS
from osfmodel.counting.training import checkpointed
from osfmodel.counting.words import Words, configuration, family_of, model_of, parse_words
from osfmodel.entities.errors import OsfError

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


PREDICTING = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers", "num_mtp_modules")
"""Fields with a number of layers for multi-token prediction."""


@lru_cache(maxsize=16)
def remarks(text: str) -> tuple[str, ...]:
    """Remarks on samples that are longer than the configuration's positions, on weights that are quantised, on layers
    that are left out, and on how the model was counted."""
    try:
        words = parse_words(text)
        config = configuration(words.model)
        longest = family_of(config).longest(config)
        model = model_of(words)
    except OsfError:
        return ()
    said = []
    stack = words.setting.stack
    if stack in USUAL_STACKS.values() and stack not in text:
        said.append(f"{words.model} is counted as it was trained, by {STACKS[stack].said}: others with stack=NAME")
    said += _shares(text, words, model)
    if longest and (words.sequence or 0) > longest:
        reach = f"{words.model} has positions for {longest:,} tokens (max_position_embeddings)"
        said.append(f"{reach}: samples of {words.sequence:,} are counted as if they reached that far")
    if words.tuning and words.tuning.everywhere and config.word("model_type") in ADDED_TO:
        said.append(
            "PEFT adds the adapters of experts to their weights in each forward: a second copy of these is kept for "
            "backward, and no less of them is computed than in full training"
        )
    if words.inputs:
        from osfmodel.counting.library.inputs import unsampled  # not loaded for others

        said += unsampled(words.inputs)
    if config.fields.get("quantization_config") and not (words.tuning and words.tuning.packed):
        frozen = words.tuning and words.tuning.rank
        how = "in the type of computation: qlora=R has 4 bits" if frozen else "as trained in full"
        said.append(f"the weights of {words.model} are quantised (quantization_config): counted {how}")
    for name in PREDICTING:
        layers = [found for part in library.parts(config) if isinstance(found := part.get(name), int) and found > 0]
        if layers and not any("mtp" in one.name for one in model.modules):
            what = f"{layers[0]} for multi-token prediction ({name})"
            said.append(
                f"of the layers of {words.model} {what}, which its class in transformers leaves out, are not counted"
            )
    return (*said, *model.notes)


def _shares(text: str, words: Words, model: Model) -> Iterator[str]:
    """A remark on a part of the blocks to checkpoint that is written of another number of blocks."""
    count = len(model.blocks)
    for part, some, whole in re.findall(r"\b(ac=(?:full|selective):(\d+)/(\d+))", text):
        if int(whole) != count and (some != "1" or count % int(whole)):
            taken = len(checkpointed(model, words.setting))
            yield f"{words.model} has {count} blocks: {part} is taken as a share, {taken} of them"
