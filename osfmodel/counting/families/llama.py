"""Decoders after Llama: RMS norms, rotary positions, grouped queries, gated feed-forward parts, a head of their own.

Names and shapes are those of ``LlamaForCausalLM`` in transformers, and of its relatives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from osfmodel.counting.config import Config
from osfmodel.counting.modules import Model, Module, Product, attention, embedding, head, linear, norm
from osfmodel.entities.errors import DataError


class Kind(NamedTuple):
    """Differences of a relative.

    fused:     whether queries, keys and values are one matrix, and the two of the feed-forward part as well (Phi-3)
    biased:    whether queries, keys and values have biases
    head_norm: whether queries and keys are normalised in each head
    norms:     names of the norms of a block: before attention, after it, before the feed-forward part, after it
    tied:      whether the head is the embedding where the configuration does not say
    head:      width of a head where it does not say; 0 for the width of the model over the heads
    groups:    heads of keys where it does not say; 0 for as many as of queries
    experts:   whether the feed-forward part is several, of which a router picks some for each token (Mixtral)
    window:    which blocks have a sliding window where the configuration has one: every, every other, or none (0)
    """

    fused: bool = False
    biased: bool = False
    head_norm: bool = False
    norms: tuple[str, str, str, str] = ("input_layernorm", "", "post_attention_layernorm", "")
    tied: bool = False
    head: int = 0
    groups: int = 0
    experts: bool = False
    window: int = 0


GEMMA_NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
RELATIVES = {
    "llama": Kind(),
    "mistral": Kind(groups=8, window=1),
    "mixtral": Kind(groups=8, window=1, experts=True),
    "qwen2": Kind(biased=True),
    "qwen3": Kind(head_norm=True, head=128),
    "phi3": Kind(fused=True, window=1),
    "gemma2": Kind(norms=GEMMA_NORMS, tied=True, head=256, groups=4, window=2),
}
"""By ``model_type``."""
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""Fields by which configurations say that there are several feed-forward parts."""
STRETCHED = ("linear", "dynamic", "yarn")
"""Rotary positions that reach further than ``max_position_embeddings`` says, by a factor."""


class Dimensions(NamedTuple):
    """Of a block: tokens of a sample, width of the model, heads of queries and of keys, width of a head and of the
    feed-forward part, and the most tokens that a query sees (0: all before it)."""

    tokens: int
    width: int
    heads: int
    groups: int
    head: int
    inner: int
    window: int = 0


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
    kind = RELATIVES[config.word("model_type")]
    if not kind.experts and (found := [name for name in EXPERTS if config.fields.get(name)]):
        raise DataError(f"{config.name}: {found[0]!r} says that it has experts, which only mixtral is counted with")
    width, heads = config.count("hidden_size"), config.count("num_attention_heads")
    groups = config.count("num_key_value_heads", default=_groups(config, kind, heads))
    if not kind.head and not config.fields.get("head_dim"):
        config.require_multiple("hidden_size", width, heads)
    config.require_multiple("num_attention_heads", heads, groups, "groups of heads")
    head_width = config.count("head_dim", default=kind.head or width // heads)
    size = Dimensions(tokens, width, heads, groups, head_width, config.count("intermediate_size"))
    layers, vocabulary = config.layers("num_hidden_layers"), config.count("vocab_size")
    modules = [embedding("model.embed_tokens", vocabulary, width, tokens)]
    blocks = tuple(f"model.layers.{number}" for number in range(layers))
    for number, name in enumerate(blocks):
        modules += block(config, kind, size._replace(window=_window(config, kind, number)), name)
    modules.append(norm("model.norm", width, tokens))
    modules.append(head("lm_head", width, vocabulary, tokens, config.flag("tie_word_embeddings", kind.tied)))
    return Model(config.name, tuple(modules), tokens, blocks, causal=True)


def _groups(config: Config, kind: Kind, heads: int) -> int:
    """Heads of keys where ``num_key_value_heads`` is null, or missing."""
    return heads if "num_key_value_heads" in config.fields else kind.groups or heads


def _window(config: Config, kind: Kind, number: int) -> int:
    """The most tokens that a query of this block sees; 0 for all before it."""
    if not kind.window or not config.fields.get("sliding_window"):
        return 0
    return 0 if number % kind.window else config.count("sliding_window")


def block(config: Config, kind: Kind, size: Dimensions, name: str) -> Iterator[Module]:
    """The modules of a block."""
    yield norm(f"{name}.{kind.norms[0]}", size.width, size.tokens)
    yield from _attention(config, kind, size, f"{name}.self_attn")
    if kind.norms[1]:
        yield norm(f"{name}.{kind.norms[1]}", size.width, size.tokens, added=False)
    yield norm(f"{name}.{kind.norms[2]}", size.width, size.tokens)
    yield from (_experts if kind.experts else _feed_forward)(config, kind, size, f"{name}.mlp")
    if kind.norms[3]:
        yield norm(f"{name}.{kind.norms[3]}", size.width, size.tokens, added=False)


def _attention(config: Config, kind: Kind, size: Dimensions, name: str) -> Iterator[Module]:
    tokens, width, (queries, keys) = size.tokens, size.width, (size.heads * size.head, size.groups * size.head)
    biased = kind.biased or config.flag("attention_bias", False)
    if kind.fused:
        yield replace(linear(f"{name}.qkv_proj", width, queries + 2 * keys, tokens), of_keys=2 * keys)
    else:
        yield linear(f"{name}.q_proj", width, queries, tokens, biased)
        for part in ("k_proj", "v_proj"):
            same = linear(f"{name}.{part}", width, keys, tokens, biased, kept=-width * tokens)  # the same input
            yield replace(same, of_keys=keys)
    if kind.head_norm:
        yield Module(f"{name}.q_norm", (("weight", (size.head,)),), moved=2 * queries * tokens, kept=queries * tokens)
        yield Module(f"{name}.k_norm", (("weight", (size.head,)),), moved=2 * keys * tokens, kept=keys * tokens)
    rotated = 2 * (queries + keys) * tokens
    read = (queries + 2 * keys) * tokens
    last = linear(
        f"{name}.o_proj", queries, width, tokens, biased and not kind.biased, moved=rotated + read + queries * tokens,
        kept=read, scores=attention(tokens, size.heads, size.head, causal=True, window=size.window),
    )  # fmt: skip
    yield replace(last, keys=2 * keys * tokens, row_parallel=True)


def _feed_forward(config: Config, kind: Kind, size: Dimensions, name: str) -> Iterator[Module]:
    tokens, width, inner = size.tokens, size.width, size.inner
    biased = config.flag("mlp_bias", False)
    if kind.fused:
        yield linear(f"{name}.gate_up_proj", width, 2 * inner, tokens)
    else:
        yield linear(f"{name}.gate_proj", width, inner, tokens, biased)
        yield linear(f"{name}.up_proj", width, inner, tokens, biased, kept=-width * tokens)  # the same input
    gated = 5 * inner * tokens  # silu: read, written; product: two read, one written
    last = linear(f"{name}.down_proj", inner, width, tokens, biased, moved=gated, kept=3 * inner * tokens)
    yield replace(last, row_parallel=True)


def _experts(config: Config, _kind: Kind, size: Dimensions, name: str) -> Iterator[Module]:
    """The router, and all experts as two tensors; each has its even share of the tokens."""
    experts, chosen = config.count("num_local_experts", default=8), config.count("num_experts_per_tok", default=2)
    width, inner = size.width, size.inner
    routed = size.tokens * chosen
    share = -(-routed // experts)
    yield linear(f"{name}.gate", width, experts, size.tokens, kept=-width * size.tokens)
    yield Module(
        f"{name}.experts",
        (("gate_up_proj", (experts, 2 * inner, width)), ("down_proj", (experts, width, inner))),
        (Product(share, width, 2 * inner, experts), Product(share, inner, width, experts)),
        moved=(4 * width + 5 * inner) * routed,  # sorted by expert, and added up; silu and product, as above
        kept=(width + 4 * inner) * routed,
        experts=experts,
        row_parallel=True,
    )
