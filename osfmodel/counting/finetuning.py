"""Fine-tuning of a counted model: adapters of LoRA, frozen parameters, and what backward still computes and keeps.

A frozen parameter has no gradient, no state of an optimizer and no message. Backward multiplies for the gradient of a
module's input only where something before it is trained. A frozen matrix does not keep its input; norms, activations
and attention keep theirs wherever a gradient passes through them.

Adapters are those of PEFT 0.21: A (rank x inputs) and B (outputs x rank) beside a matrix, in float32, without dropout.
Modules that share an input are taken to share the copy of it that their adapters keep, and others to come one after the
other: of parts side by side in the first block, as in GPT-NeoX, one backward too many is counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import prod

from osfmodel.counting.modules import Model, Module, Product
from osfmodel.entities.display import brief
from osfmodel.entities.errors import UsageError
from osfmodel.entities.lookup import suggestion
from osfmodel.entities.modules import around, inside
from osfmodel.entities.records import dataclass, replace

TARGETS: Mapping[str, tuple[str, ...]] = {
    kind: tuple(names.split())
    for names, kinds in {
        "q_proj v_proj": "bart gemma gemma2 gemma3_text gpt_neo gptj llama llama4 mistral mixtral opt qwen2 qwen3 "
        "stablelm",
        "query value": "bert electra layoutlm roberta xlm-roberta", "q v": "mt5 t5", "q v q_proj v_proj": "blip-2",
        "query_key_value": "bloom chatglm falcon gpt_neox RefinedWeb RefinedWebModel", "c_attn": "gpt2 gpt_bigcode",
        "query_proj value_proj": "deberta-v2", "in_proj": "deberta", "c_proj c_attn": "btlm", "Wqkv": "mpt",
        "qkv_proj": "codegen", "q_proj v_proj fc1 fc2": "phi", "q_proj k_proj v_proj o_proj": "nemotron_h",
        "key value receptance output": "rwkv", "r_proj k_proj v_proj o_proj key value": "rwkv7",
    }.items()
    for kind in kinds.split()
}  # fmt: skip
"""Names of the modules that have adapters where nobody says which, by ``model_type``: PEFT 0.21's defaults."""
EMBEDDINGS, TOWER = "embeddings", "tower"
"""Words for parts that can be frozen: tables of vectors outside blocks, and what makes vectors of images or sound."""
TOWERS = ("vision_model", "vision_tower", "visual", "vision_encoder", "audio_tower", "audio_encoder", "image_encoder")
"""Names of modules that are towers."""
ROUTERS = ("gate", "router")
"""Names, beside experts, of modules that are no linear layers of their library."""
MOST_RANK, MATRIX = 10**4, 2
"""Above any rank; axes of a matrix."""
ADDED = 5
"""Elements that move for each output of an adapter: read and written as it is scaled, and added to that of its base."""


@dataclass(frozen=True, slots=True)
class FineTuning:
    """The parts of a model that are trained.

    rank:       of the adapters; 0 without, where all is trained that is not ``frozen``
    everywhere: whether all linear layers but the head have adapters, and not just PEFT's defaults
    packed:     whether the matrices of linear layers, but the head, are in 4 bits (QLoRA)
    frozen:     "embeddings", "tower", or names of modules, with all inside them
    """

    rank: int = 0
    everywhere: bool = False
    packed: bool = False
    frozen: tuple[str, ...] = ()
    __repr__ = brief


def fine_tuned(model: Model, kind: str, tuning: FineTuning) -> Model:
    """The model of a ``model_type`` as it is fine-tuned. Raises UsageError for parts that it does not have."""
    still = {name for part in tuning.frozen for name in _named(model, part)}
    linear = _linear(model)
    targets = _targets(model, kind, tuning, linear) - still if tuning.rank else set()
    if tuning.rank:
        still = {module.name for module in model.modules}
    if still.intersection(tables(model)):  # a head without parameters multiplies by a table
        still |= {module.name for module in model.modules if module.products and not module.parameters}
    modules = tuple(_walk(model, still, targets, tuning.rank, linear if tuning.packed else ()))
    if all(module.frozen or not module.parameters for module in modules):
        raise UsageError(f"nothing of {model.name} is left to train: freeze less")
    return replace(model, modules=modules)


def tables(model: Model) -> list[str]:
    """Names of modules that are tables of vectors outside blocks: of words, positions and the like."""
    return [
        module.name
        for module in model.modules
        if not module.products and not module.kept and not model.block_of(module)
        and any(len(shape) >= MATRIX for _, shape in module.parameters)
    ]  # fmt: skip


def heads(model: Model) -> list[str]:
    """Names of modules that turn vectors into logits of words, by a matrix of the shape of their table, or by it."""
    known = set(tables(model))
    found = [shape for module in model.modules if module.name in known for _, shape in module.parameters]
    words = max(found, key=prod, default=None)
    return [
        module.name
        for module in model.modules
        if module.name not in known and not model.block_of(module)
        and words in (*dict(module.parameters).values(), *((one.columns, one.inner) for one in module.products))
    ]  # fmt: skip


def routers(model: Model) -> set[str]:
    """Names of modules that send tokens to experts, which are beside them."""
    beside = {f"{_parent(module.name)}.{name}" for module in model.modules if module.experts for name in ROUTERS}
    return {module.name for module in model.modules if module.name in beside}


def in_tower(name: str) -> bool:
    """Whether a module is in what makes vectors of images or sound."""
    return any(part in TOWERS for part in name.split("."))


def _linear(model: Model) -> set[str]:
    """Names of linear layers, in the sense of the library, without the head."""
    weights = {one.name: dict(one.parameters).get("weight", ()) for one in model.modules if len(one.products) == 1}
    return {name for name, shape in weights.items() if len(shape) == MATRIX} - {*heads(model), *routers(model)}


def _targets(model: Model, kind: str, tuning: FineTuning, linear: set[str]) -> set[str]:
    """Names of the modules that have adapters. Raises UsageError where that is not known."""
    words = f"{'q' * tuning.packed}lora={tuning.rank}"
    if tuning.everywhere and any(module.experts for module in model.modules):
        remedy = f"write {words}, for those beside attention" if kind in TARGETS else f"leave {words}:all-linear out"
        raise UsageError(f"adapters beside experts cannot be counted yet: {remedy}")
    if not tuning.everywhere and kind not in TARGETS:
        experts = any(module.experts for module in model.modules)
        remedy = f"and those beside experts cannot be counted yet: leave {words} out" if experts else ""
        remedy = remedy or f"write {words}:all-linear"
        raise UsageError(
            f"PEFT has no default modules for adapters of type {kind!r}{', ' if experts else ': '}{remedy}"
        )
    found = linear if tuning.everywhere else {one for one in linear if one.rpartition(".")[2] in TARGETS[kind]}
    if not found:
        raise UsageError(f"{model.name} has no linear layers for adapters: leave {words} out")
    return found


def _named(model: Model, part: str) -> list[str]:
    """Names of the modules of a part. Raises UsageError where there are none."""
    names = [module.name for module in model.modules]
    found = [name for name in names if (in_tower(name) if part == TOWER else inside(name, part))]
    found = tables(model) if part == EMBEDDINGS else found
    if not found:
        if part == TOWER:
            raise UsageError(f"{model.name} has no vision or audio tower: leave frozen={TOWER} out")
        towers = [TOWER] if any(map(in_tower, names)) else []
        known = dict.fromkeys([EMBEDDINGS, *towers, *(one for name in names for one in around(name))])
        raise UsageError(f"{part!r} is no part of {model.name} that can be frozen: {suggestion(part, known)}")
    return found


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _walk(
    model: Model, still: Collection[str], targets: Collection[str], rank: int, packed: Collection[str]
) -> Iterator[Module]:
    """The modules and adapters, with what backward computes of each, and what each keeps for it.

    Modules side by side that keep nothing of their input have that of the first of them (as queries, keys and values).
    """
    trained = reached = there = False  # something so far; something before this input; this input is kept
    size, last = 0, Module("", ())
    for module in model.modules:
        frozen, own = module.name in still, _own_input(module)
        shared = module.products and last.products and _parent(module.name) == _parent(last.name)
        if own or module.scores or not shared:
            reached, size = trained, own
            there = reached and bool(module.scores)  # attention keeps its result
        kept = module.kept - own * (not there) if reached else 0
        if not frozen:
            kept += size if module.products and not there else 0 if reached or module.products else module.kept
            there = there or bool(module.products)
        yield replace(module, frozen=frozen, reached=reached, kept=kept, packed=module.name in packed)
        if module.name in targets:
            yield from _adapter(module, rank, reached, 0 if there else size)
            there = True
        trained = trained or module.name in targets or (not frozen and bool(module.parameters))
        last = module


def _own_input(module: Module) -> int:
    """Elements of its input that a module keeps for nothing but the gradients of its weights."""
    read = sum(one.rows * one.inner * one.times // one.taps for one in module.products)
    return max(0, min(read, module.kept))


def _adapter(module: Module, rank: int, reached: bool, kept: int) -> Iterator[Module]:
    """The two matrices beside that of a linear layer, of which the first keeps ``kept`` elements of the input."""
    rows, inner, columns = module.products[0][:3]
    first = (Product(rows, inner, rank),)
    yield Module(f"{module.name}.lora_A.default", (("weight", (rank, inner)),), first, kept=kept, reached=reached)
    yield Module(
        f"{module.name}.lora_B.default", (("weight", (columns, rank)),), (Product(rows, rank, columns),),
        moved=ADDED * rows * columns, kept=rows * rank,
    )  # fmt: skip
