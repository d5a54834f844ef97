"""Decoders after Llama: RMS norms, rotary positions, grouped queries, gated feed-forward parts, a head of their own.

Names and shapes are those of ``LlamaForCausalLM`` in transformers, and of its relatives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from osfmodel.counting.config import Config
from osfmodel.counting.modules import Model, Module, Shape, attention, embedding, linear, norm


class Kind(NamedTuple):
    """Differences of a relative.

    fused:     whether queries, keys and values are one matrix, and the two of the feed-forward part as well (Phi-3)
    biased:    whether queries, keys and values have biases
    head_norm: whether queries and keys are normalised in each head
    norms:     names of the norms of a block: before attention, after it, before the feed-forward part, after it
    tied:      whether the head is the embedding where the configuration does not say
    """

    fused: bool = False
    biased: bool = False
    head_norm: bool = False
    norms: tuple[str, str, str, str] = ("input_layernorm", "", "post_attention_layernorm", "")
    tied: bool = False


GEMMA_NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
RELATIVES = {
    "llama": Kind(),
    "mistral": Kind(),
    "qwen2": Kind(biased=True),
    "qwen3": Kind(head_norm=True),
    "phi3": Kind(fused=True),
    "gemma2": Kind(norms=GEMMA_NORMS, tied=True),
}
"""By ``model_type``."""
LOGITS = 5
"""Elements of half precision that each logit takes: itself, and in float32 its copy and gradient of the loss."""


class Dimensions(NamedTuple):
    """Of a block: tokens of a sample, width of the model, heads of queries and of keys, width of a head."""

    tokens: int
    width: int
    heads: int
    groups: int
    head: int
    inner: int


def build(config: Config, tokens: int) -> Model:
    """The model for samples of ``tokens`` tokens. Raises DataError for a configuration that lacks something."""
    kind = RELATIVES[config.word("model_type")]
    width, heads = config.count("hidden_size"), config.count("num_attention_heads")
    groups = config.count("num_key_value_heads", default=heads)
    head = config.count("head_dim", default=max(1, width // heads))
    size = Dimensions(tokens, width, heads, groups, head, config.count("intermediate_size"))
    layers, vocabulary = config.count("num_hidden_layers"), config.count("vocab_size")
    modules = [embedding("model.embed_tokens", vocabulary, width, tokens)]
    blocks = tuple(f"model.layers.{number}" for number in range(layers))
    for name in blocks:
        modules += block(config, kind, size, name)
    modules.append(norm("model.norm", width, tokens))
    modules.append(head_of(width, vocabulary, tokens, config.flag("tie_word_embeddings", kind.tied)))
    return Model(config.name, tuple(modules), tokens, blocks, causal=True)


def head_of(width: int, vocabulary: int, tokens: int, tied: bool, name: str = "lm_head") -> Module:
    """The head and the loss behind it; without a parameter if it is the embedding."""
    made = linear(name, width, vocabulary, tokens, moved=4 * LOGITS * vocabulary * tokens // 2)
    parameters: tuple[tuple[str, Shape], ...] = () if tied else made.parameters
    return Module(name, parameters, made.products, moved=made.moved, kept=made.kept + LOGITS * vocabulary * tokens)


def block(config: Config, kind: Kind, size: Dimensions, name: str) -> Iterator[Module]:
    """The modules of a block."""
    yield norm(f"{name}.{kind.norms[0]}", size.width, size.tokens)
    yield from _attention(config, kind, size, f"{name}.self_attn")
    if kind.norms[1]:
        yield norm(f"{name}.{kind.norms[1]}", size.width, size.tokens, added=False)
    yield norm(f"{name}.{kind.norms[2]}", size.width, size.tokens)
    yield from _feed_forward(config, kind, size, f"{name}.mlp")
    if kind.norms[3]:
        yield norm(f"{name}.{kind.norms[3]}", size.width, size.tokens, added=False)


def _attention(config: Config, kind: Kind, size: Dimensions, name: str) -> Iterator[Module]:
    tokens, width, (queries, keys) = size.tokens, size.width, (size.heads * size.head, size.groups * size.head)
    biased = kind.biased or config.flag("attention_bias", False)
    if kind.fused:
        yield linear(f"{name}.qkv_proj", width, queries + 2 * keys, tokens)
    else:
        yield linear(f"{name}.q_proj", width, queries, tokens, biased)
        for part in ("k_proj", "v_proj"):
            yield linear(f"{name}.{part}", width, keys, tokens, biased, kept=-width * tokens)  # the same input
    if kind.head_norm:
        yield Module(f"{name}.q_norm", (("weight", (size.head,)),), moved=2 * queries * tokens, kept=queries * tokens)
        yield Module(f"{name}.k_norm", (("weight", (size.head,)),), moved=2 * keys * tokens, kept=keys * tokens)
    rotated = 2 * (queries + keys) * tokens
    read = (queries + 2 * keys) * tokens
    yield linear(
        f"{name}.o_proj", queries, width, tokens, biased and not kind.biased, moved=rotated + read + queries * tokens,
        kept=read, scores=attention(tokens, size.heads, size.head, causal=True),
    )  # fmt: skip


def _feed_forward(config: Config, kind: Kind, size: Dimensions, name: str) -> Iterator[Module]:
    tokens, width, inner = size.tokens, size.width, size.inner
    biased = config.flag("mlp_bias", False)
    if kind.fused:
        yield linear(f"{name}.gate_up_proj", width, 2 * inner, tokens)
    else:
        yield linear(f"{name}.gate_proj", width, inner, tokens, biased)
        yield linear(f"{name}.up_proj", width, inner, tokens, biased, kept=-width * tokens)  # the same input
    gated = 5 * inner * tokens  # silu: read, written; product: two read, one written
    yield linear(f"{name}.down_proj", inner, width, tokens, biased, moved=gated, kept=3 * inner * tokens)
