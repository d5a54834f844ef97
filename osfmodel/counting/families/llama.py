"""Decoders after Llama: norms, rotary positions, grouped queries, gated feed-forward parts, a head of their own.

Names and shapes are those of ``LlamaForCausalLM`` in transformers, and of its relatives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from osfmodel.counting.config import MOST_LAYERS, Config, OptionError
from osfmodel.counting.modules import Model, Module, Product, attention, embedding, feed_forward, head, linear, norm
from osfmodel.entities.errors import DataError

ALWAYS = "always"
"""In the place of a flag of the configuration."""


class Experts(NamedTuple):
    """A feed-forward part of several, of which a router picks some for each token.

    inner:      field of the width of an expert
    dense:      field of the width of the feed-forward part of blocks without experts
    part:       its name
    router:     that of the router in it
    shared:     that of the experts that all tokens pass; "" for none
    number:     field of how many these are; "" for one
    width:      field of the width of one of these; "" for that of any expert
    gated:      whether a gate of its own weighs what these give (Qwen2)
    biased:     whether router and experts have biases
    transposed: whether matrices of experts have inputs before outputs
    """

    inner: str = "moe_intermediate_size"
    dense: str = "intermediate_size"
    part: str = "mlp"
    router: str = "gate"
    shared: str = ""
    number: str = ""
    width: str = ""
    gated: bool = False
    biased: bool = False
    transposed: bool = False


class Kind(NamedTuple):
    """Differences of a relative. Flags are fields of the configuration, ALWAYS, or "" for never.

    fused:      whether queries, keys and values are one matrix, and the two of the feed-forward part: "both", "second"
    biased:     flags of biases: of queries, keys and values, of the matrix behind attention, of the feed-forward part
    head_norm:  flag of norms of queries and keys
    normed:     whether these are of any head, of all as one ("whole"), or of each by itself ("each")
    norms:      names of the norms of a block: before attention, after it, before the feed-forward part, after it
    last:       name of the norm behind the blocks
    shifted:    whether norms have biases
    plain:      names of the two matrices of a feed-forward part without gate; empty for one with
    out:        name of the matrix behind attention
    head_bias:  whether the head has a bias
    unmade:     flags of what is not counted
    experts:    of its feed-forward part, where it has several
    latent:     whether keys and values come from a vector that they share (MLA)
    sinks:      whether each head has a weight for attention to nothing
    window:     which blocks have a sliding window where the configuration has one: 0 for none, 1 for all, N for all but
                each Nth
    """

    fused: str = ""
    biased: tuple[str, str, str] = ("attention_bias", "attention_bias", "")
    head_norm: str = ""
    normed: str = "any"
    norms: tuple[str, str, str, str] = ("input_layernorm", "", "post_attention_layernorm", "")
    last: str = "norm"
    shifted: bool = False
    plain: tuple[str, str] | None = None
    out: str = "o_proj"
    head_bias: bool = False
    unmade: tuple[str, ...] = ()
    experts: Experts | None = None
    latent: bool = False
    sinks: bool = False
    window: int = 0


NEVER = ("", "", "")
IN = ("attention_bias", "", "")
BOTH = ("attention_bias", "attention_bias", "mlp_bias")
ONE, AFTER = ("input_layernorm", "", "", ""), ("", "post_attention_layernorm", "", "post_feedforward_layernorm")
GEMMA = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
GLM = ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
DEEPSEEK = Experts(shared="shared_experts", number="n_shared_experts")
RELATIVES = {
    "llama": Kind(biased=BOTH),
    "granite": Kind(biased=BOTH),
    "smollm3": Kind(biased=BOTH),
    "seed_oss": Kind(biased=("attention_bias", "attention_out_bias", "mlp_bias")),
    "ernie4_5": Kind(biased=("use_bias", "use_bias", "use_bias")),
    "mistral": Kind(biased=NEVER, window=1),
    "ministral3": Kind(biased=NEVER, window=1),
    "mixtral": Kind(biased=NEVER, window=1, experts=Experts("intermediate_size")),
    "qwen2": Kind(biased=(ALWAYS, "", "")),
    "qwen3": Kind(head_norm=ALWAYS),
    "qwen2_moe": Kind(
        biased=("qkv_bias", "", ""),
        experts=Experts(shared="shared_expert", width="shared_expert_intermediate_size", gated=True),
    ),
    "qwen3_moe": Kind(head_norm=ALWAYS, experts=Experts()),
    "phi": Kind(
        biased=(ALWAYS, ALWAYS, ALWAYS), norms=ONE, shifted=True, plain=("fc1", "fc2"), out="dense", head_bias=True,
        last="final_layernorm", unmade=("qk_layernorm",),
    ),
    "phi3": Kind(fused="both", biased=NEVER, window=1),
    "gemma": Kind(),
    "gemma2": Kind(norms=GEMMA, window=2),
    "gemma3_text": Kind(norms=GEMMA, head_norm=ALWAYS, window=6),
    "deepseek_v2": Kind(biased=BOTH, latent=True, experts=DEEPSEEK),
    "deepseek_v3": Kind(latent=True, experts=DEEPSEEK),
    "kimi_k2": Kind(latent=True, experts=DEEPSEEK),
    "gpt_oss": Kind(
        sinks=True, window=2, experts=Experts("intermediate_size", router="router", biased=True, transposed=True)
    ),
    "llama4_text": Kind(
        window=4,
        experts=Experts(
            "intermediate_size", "intermediate_size_mlp", "feed_forward", "router", "shared_expert", transposed=True
        ),
    ),
    "glm": Kind(fused="second", biased=IN),
    "glm4": Kind(fused="second", biased=IN, norms=GLM),
    "glm4_moe": Kind(biased=IN, head_norm="use_qk_norm", experts=DEEPSEEK),
    "olmo2": Kind(norms=AFTER, head_norm=ALWAYS, normed="whole"),
    "olmo3": Kind(norms=AFTER, head_norm=ALWAYS, normed="whole", window=4),
    "olmoe": Kind(head_norm=ALWAYS, normed="whole", experts=Experts("intermediate_size")),
    "exaone4": Kind(biased=NEVER, norms=AFTER, head_norm=ALWAYS, window=4),
    "cohere": Kind(norms=ONE, head_norm="use_qk_norm", normed="each"),
    "cohere2": Kind(norms=ONE, window=4),
    "starcoder2": Kind(biased=("use_bias", "use_bias", "use_bias"), shifted=True, plain=("c_fc", "c_proj"), window=1),
    "stablelm": Kind(
        biased=("use_qkv_bias", "", ""), shifted=True, unmade=("qk_layernorm", "use_parallel_residual")
    ),
}  # fmt: skip
"""By ``model_type``."""
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""Fields by which configurations say that there are several feed-forward parts."""
STRETCHED = ("linear", "dynamic", "yarn")
"""Rotary positions that reach further than ``max_position_embeddings`` says, by a factor."""
FULL = "full_attention"
"""In ``layer_types``: blocks without a window."""


class Dimensions(NamedTuple):
    """Of a block: tokens of a sample, width of the model, heads of queries and of keys, width of a head and of the
    feed-forward part, and the most tokens that a query sees (0: all before it), or of a chunk that sees none before."""

    tokens: int
    width: int
    heads: int
    groups: int
    head: int
    inner: int
    window: int = 0
    chunk: int = 0


def longest(config: Config) -> int:
    """The most tokens that the positions of a configuration are for."""
    positions = config.count("max_position_embeddings")
    scaling = config.part_or_none("rope_scaling") or config.part_or_none("rope_parameters")
    if scaling is None or scaling.word("rope_type", scaling.word("type")) not in STRETCHED:
        return positions
    original = scaling.count("original_max_position_embeddings", default=positions)
    return max(positions, int(original * scaling.number("factor", 1)))


def build(config: Config, tokens: int) -> Model:
    """The model for samples of ``tokens`` tokens. Raises DataError for a configuration that lacks something."""
    modules, blocks = decoder(config, tokens)
    return Model(config.name, tuple(modules), tokens, blocks, causal=True)


def decoder(config: Config, tokens: int, body: str = "model", last: str = "lm_head") -> tuple[list[Module], Names]:
    """Its modules, and the names of its blocks; with names of all but the head, and of the head. Raises DataError."""
    kind = RELATIVES[config.word("model_type")]
    if not kind.experts and (found := [name for name in EXPERTS if config.value(name)]):
        raise DataError(f"{config.name}: {found[0]!r} says that it has experts, which its 'model_type' has not")
    if found := [name for name in kind.unmade if config.flag(name, False)]:
        raise OptionError(f"{config.name}: {found[0]!r} is set, which osfmodel cannot count")
    width, heads = config.count("hidden_size"), config.count("num_attention_heads")
    groups = config.count("num_key_value_heads", default=heads)
    if not config.value("head_dim") and not kind.latent:
        config.require_multiple("hidden_size", width, heads)
    config.require_multiple("num_attention_heads", heads, groups, "groups of heads")
    inner = config.count(kind.experts.dense if kind.experts else "intermediate_size")
    size = Dimensions(tokens, width, heads, groups, config.count("head_dim", default=max(1, width // heads)), inner)
    layers, vocabulary = config.layers("num_hidden_layers"), config.count("vocab_size")
    modules = [embedding(f"{body}.embed_tokens", vocabulary, width, tokens)]
    blocks = tuple(f"{body}.layers.{number}" for number in range(layers))
    for number, name in enumerate(blocks):
        modules += block(config, kind, _seen(config, kind, size, number), name, number)
    modules.append(norm(f"{body}.{kind.last}", width, tokens, kind.shifted, squared=not kind.shifted))
    tied = config.flag("tie_word_embeddings", False)
    return [*modules, head(last, width, vocabulary, tokens, tied, kind.head_bias)], blocks


Names = tuple[str, ...]


def flagged(config: Config, flag: str) -> bool:
    """Whether a flag of Kind is set."""
    return flag == ALWAYS or (bool(flag) and config.flag(flag, False))


def _seen(config: Config, kind: Kind, size: Dimensions, number: int) -> Dimensions:
    """With the window or the chunk of this block."""
    types = config.value("layer_types")
    if isinstance(types, list) and number < len(types):
        bounded = types[number] != FULL
    else:
        every = config.count("sliding_window_pattern", "no_rope_layer_interval", default=kind.window or 1)
        bounded = kind.window == 1 or bool(kind.window and (number + 1) % every)
    if not bounded:
        return size
    window = config.count("sliding_window", default=0) if config.flag("use_sliding_window", True) else 0
    return size._replace(window=window, chunk=config.count("attention_chunk_size", default=0))


def block(config: Config, kind: Kind, size: Dimensions, name: str, number: int) -> Iterator[Module]:
    """The modules of the block of that number."""
    sparse = kind.experts is not None and _sparse(config, number)
    part = f"{name}.{kind.experts.part if kind.experts else 'mlp'}"
    parts = (
        (_latent if kind.latent else _attention)(config, kind, size, f"{name}.self_attn"),
        (_experts if sparse else _feed_forward)(config, kind, size, part),
    )
    for place, modules in enumerate(parts):
        before, after = kind.norms[2 * place : 2 * place + 2]
        if before:
            yield norm(f"{name}.{before}", size.width, size.tokens, kind.shifted, squared=not kind.shifted)
        yield from modules
        if after:
            yield norm(f"{name}.{after}", size.width, size.tokens, kind.shifted, not before, not kind.shifted)


def _sparse(config: Config, number: int) -> bool:
    """Whether the block of that number has experts."""
    dense, only = (
        config.counts(name, MOST_LAYERS, least=0) if config.value(name) else ()
        for name in ("mlp_only_layers", "moe_layers")
    )
    if number < config.count("first_k_dense_replace", default=0, least=0) or number in dense:
        return False
    if only:
        return number in only
    return (number + 1) % config.count("decoder_sparse_step", "interleave_moe_layer_step", default=1) == 0


def _attention(config: Config, kind: Kind, size: Dimensions, name: str) -> Iterator[Module]:
    tokens, width, (queries, keys) = size.tokens, size.width, (size.heads * size.head, size.groups * size.head)
    biased = flagged(config, kind.biased[0])
    if kind.fused == "both":
        yield replace(linear(f"{name}.qkv_proj", width, queries + 2 * keys, tokens), of_keys=2 * keys)
    else:
        yield linear(f"{name}.q_proj", width, queries, tokens, biased)
        for part in ("k_proj", "v_proj"):
            same = linear(f"{name}.{part}", width, keys, tokens, biased, kept=-width * tokens)  # the same input
            yield replace(same, of_keys=keys)
    if flagged(config, kind.head_norm):
        for part, heads in (("q_norm", size.heads), ("k_norm", size.groups)):
            columns = heads * size.head
            shape = {"any": (size.head,), "whole": (columns,), "each": (heads, size.head)}[kind.normed]
            apart = norm(f"{name}.{part}", columns, tokens, added=False, squared=True)
            yield replace(apart, parameters=(("weight", shape),))
    if kind.sinks:
        yield Module(name, (("sinks", (size.heads,)),), moved=size.heads * tokens)
    rotated = 2 * (queries + keys) * tokens  # in Python 7 more: halves swapped, two products and a sum
    read = (queries + 2 * keys) * tokens
    last = linear(
        f"{name}.{kind.out}", queries, width, tokens, flagged(config, kind.biased[1]), kept=read,
        moved=rotated + read + queries * tokens,
        scores=attention(tokens, size.heads, size.head, causal=True, window=size.window, chunk=size.chunk),
    )  # fmt: skip
    yield replace(last, keys=2 * keys * tokens, row_parallel=True, unfused=7 * rotated // 2)


def _latent(config: Config, kind: Kind, size: Dimensions, name: str) -> Iterator[Module]:
    """Latent attention: keys and values of all heads from one narrow vector, and a part of keys that heads share."""
    tokens, width, heads = size.tokens, size.width, size.heads
    rotary, rank, value = (config.count(one) for one in ("qk_rope_head_dim", "kv_lora_rank", "v_head_dim"))
    key, narrow = config.count("qk_nope_head_dim") + rotary, config.count("q_lora_rank", default=0)
    biased = flagged(config, kind.biased[0])
    if narrow:
        yield linear(f"{name}.q_a_proj", width, narrow, tokens, biased)
        yield norm(f"{name}.q_a_layernorm", narrow, tokens, added=False)
    yield linear(f"{name}.{'q_b_proj' if narrow else 'q_proj'}", narrow or width, heads * key, tokens)
    yield linear(f"{name}.kv_a_proj_with_mqa", width, rank + rotary, tokens, biased, kept=-width * tokens)
    yield norm(f"{name}.kv_a_layernorm", rank, tokens, added=False)
    yield linear(f"{name}.kv_b_proj", rank, heads * (key - rotary + value), tokens)
    read = heads * (2 * key + value) * tokens
    joined = 2 * heads * key * tokens  # keys, of the part of each head and the shared one
    scores = attention(tokens, heads, key, causal=True)
    last = linear(
        f"{name}.o_proj", heads * value, width, tokens, flagged(config, kind.biased[1]), kept=read,
        moved=2 * (heads + 1) * rotary * tokens + joined + read + heads * value * tokens,
        scores=(scores[0], scores[1]._replace(columns=value)),
    )  # fmt: skip
    yield replace(last, keys=heads * (key + value) * tokens, row_parallel=True)


def _feed_forward(config: Config, kind: Kind, size: Dimensions, name: str) -> Iterator[Module]:
    tokens, width, inner = size.tokens, size.width, size.inner
    biased = flagged(config, kind.biased[2])
    if kind.plain:
        names = (f"{name}.{kind.plain[0]}", f"{name}.{kind.plain[1]}")
        yield from feed_forward(names, width, inner, tokens, biased)
        return
    if kind.fused:
        yield linear(f"{name}.gate_up_proj", width, 2 * inner, tokens)
    else:
        yield linear(f"{name}.gate_proj", width, inner, tokens, biased)
        yield linear(f"{name}.up_proj", width, inner, tokens, biased, kept=-width * tokens)  # the same input
    gated = 5 * inner * tokens  # silu: read, written; product: two read, one written
    last = linear(f"{name}.down_proj", inner, width, tokens, biased, moved=gated, kept=3 * inner * tokens)
    yield replace(last, row_parallel=True)


def _experts(config: Config, kind: Kind, size: Dimensions, name: str) -> Iterator[Module]:
    """The router, all experts as two tensors, of which each has its even share of the tokens, and shared experts."""
    made = kind.experts or Experts()
    experts = config.count(*EXPERTS)
    chosen = config.count("num_experts_per_tok", most=experts)
    width, inner = size.width, config.count(made.inner)
    routed = size.tokens * chosen
    share = -(-routed // experts)
    yield linear(f"{name}.{made.router}", width, experts, size.tokens, made.biased, kept=-width * size.tokens)
    matrices = {"gate_up_proj": (2 * inner, width), "down_proj": (width, inner)}
    parameters = [(key, (experts, *(reversed(shape) if made.transposed else shape))) for key, shape in matrices.items()]
    if made.biased:
        parameters += [(f"{key}_bias", (experts, shape[0])) for key, shape in matrices.items()]
    yield Module(
        f"{name}.experts",
        tuple(parameters),
        (Product(share, width, 2 * inner, experts), Product(share, inner, width, experts)),
        moved=(4 * width + 5 * inner) * routed,  # sorted by expert, and added up; silu and product, as above
        kept=(width + 4 * inner) * routed,
        experts=experts,
        chosen=chosen,
        row_parallel=True,
    )
    shared = config.count(made.number, default=0, least=0) if made.number else 1
    if made.shared and shared:
        columns = shared * (config.count(made.width) if made.width else inner)
        for one in _feed_forward(config, kind, size._replace(inner=columns), f"{name}.{made.shared}"):
            yield replace(one, row_parallel=False)  # its result is added up with that of the others
    if made.gated:
        yield linear(f"{name}.{made.shared}_gate", width, 1, size.tokens, kept=-width * size.tokens)
