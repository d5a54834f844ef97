"""Models of text, besides the relatives of Llama: (configuration, tokens of a sample) -> the model.

All raise DataError for a configuration that lacks something.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from osfmodel.counting.config import Config, OptionError
from osfmodel.counting.families.llama import ALWAYS, flagged
from osfmodel.counting.modules import (
    Model,
    Module,
    embedding,
    feed_forward,
    fused_attention,
    head,
    linear,
    norm,
    split_attention,
)

WIDTH, HEADS = ("hidden_size", "n_embd", "n_embed", "d_model"), ("num_attention_heads", "n_head", "n_heads")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers")
INNER = ("intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim")
"""Names that configurations have for the same."""


class Plain(NamedTuple):
    """A decoder with feed-forward parts of two matrices: names of its modules, and in what it differs from GPT-2.

    words, positions: names of the embeddings; "" for none
    layers:     that of the blocks
    norms:      those before attention and before the feed-forward part; the second "" where both have the same input
    attention:  one for queries, keys and values and one behind it, or four
    second:     those of the feed-forward part
    last:       that of the norm behind the blocks
    biased:     flags of biases, as in llama.Kind: of attention and of the feed-forward part
    first:      name of a norm of the embedding
    shifted:    whether norms have biases
    rotated:    whether positions are rotary
    beside:     whether attention and the feed-forward part work side by side
    transposed: whether matrices have inputs before outputs
    head_bias:  whether the head has a bias
    unused:     rows of the embedding of positions that are left out
    loss:       as ``Module.loss``
    """

    words: str
    positions: str
    layers: str
    norms: tuple[str, str]
    attention: tuple[str, ...]
    second: tuple[str, str]
    last: str
    biased: tuple[str, str] = (ALWAYS, ALWAYS)
    first: str = ""
    shifted: bool = True
    rotated: bool = False
    beside: bool = False
    transposed: bool = False
    head_bias: bool = False
    unused: int = 0
    loss: tuple[int, int] | None = None


FUSED = (2, 2)
"""Bytes of a logit, and of its gradient, in the loss of flash-attn, with which LLM Foundry trains MPT by default
(``loss_fn: fused_crossentropy``)."""
FOURFOLD = ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
USUAL, SELF = ("input_layernorm", "post_attention_layernorm"), "self_attention"
PLAIN = {
    "gpt2": Plain(
        "transformer.wte", "transformer.wpe", "transformer.h", ("ln_1", "ln_2"), ("attn.c_attn", "attn.c_proj"),
        ("mlp.c_fc", "mlp.c_proj"), "transformer.ln_f", transposed=True,
    ),
    "gpt_neox": Plain(
        "gpt_neox.embed_in", "", "gpt_neox.layers", USUAL, ("attention.query_key_value", "attention.dense"), FOURFOLD,
        "gpt_neox.final_layer_norm", ("attention_bias", ALWAYS), rotated=True, beside=True,
    ),
    "gptj": Plain(
        "transformer.wte", "", "transformer.h", ("ln_1", ""),
        tuple(f"attn.{one}_proj" for one in ("q", "k", "v", "out")), ("mlp.fc_in", "mlp.fc_out"), "transformer.ln_f",
        ("", ALWAYS), rotated=True, beside=True, head_bias=True,
    ),
    "mpt": Plain(
        "transformer.wte", "", "transformer.blocks", ("norm_1", "norm_2"), ("attn.Wqkv", "attn.out_proj"),
        ("ffn.up_proj", "ffn.down_proj"), "transformer.norm_f", ("", ""), shifted=False, loss=FUSED,
    ),
    "bloom": Plain(
        "transformer.word_embeddings", "", "transformer.h", USUAL, (f"{SELF}.query_key_value", f"{SELF}.dense"),
        FOURFOLD, "transformer.ln_f", first="transformer.word_embeddings_layernorm",
    ),
    "falcon": Plain(
        "transformer.word_embeddings", "", "transformer.h", USUAL, (f"{SELF}.query_key_value", f"{SELF}.dense"),
        FOURFOLD, "transformer.ln_f", ("bias", "bias"), rotated=True,
    ),
    "opt": Plain(
        "model.decoder.embed_tokens", "model.decoder.embed_positions", "model.decoder.layers",
        ("self_attn_layer_norm", "final_layer_norm"), tuple(f"self_attn.{one}_proj" for one in ("q", "k", "v", "out")),
        ("fc1", "fc2"), "model.decoder.final_layer_norm", ("enable_bias", "enable_bias"), unused=2,
    ),
}  # fmt: skip
"""By ``model_type``."""


def plain(config: Config, tokens: int) -> Model:
    """A decoder of PLAIN; names and shapes are those of its class for causal language models in transformers."""
    kind, groups = PLAIN[config.word("model_type")], 0
    if config.word("model_type") == "falcon":
        kind, groups = _falcon(config, kind)
    width, heads, layers = config.count(*WIDTH), config.count(*HEADS), config.layers(*LAYERS)
    config.require_multiple("hidden_size", width, heads)
    if config.count("word_embed_proj_dim", default=width) != width or not config.flag("do_layer_norm_before", True):
        raise OptionError(f"{config.name}: its embeddings or norms are those of OPT-350M, which osfmodel cannot count")
    vocabulary, relu = config.count("vocab_size"), config.word("activation_function") == "relu"
    inner = config.count(*INNER, default=config.count("expansion_ratio", default=4) * width)
    biased, other = (flagged(config, flag) for flag in kind.biased)
    modules = [embedding(kind.words, vocabulary, width, tokens)]
    if kind.positions:
        positions = max(tokens, config.count("n_positions", "max_position_embeddings")) + kind.unused
        modules.append(embedding(kind.positions, positions, width, tokens))
    if kind.first:
        modules.append(norm(kind.first, width, tokens, kind.shifted, added=False))
    blocks = tuple(f"{kind.layers}.{number}" for number in range(layers))
    for name in blocks:
        before, second = ([norm(f"{name}.{one}", width, tokens, kind.shifted)] if one else [] for one in kind.norms)
        modules += [*before, *(second if kind.beside else ())]
        names, matrices = ([f"{name}.{one}" for one in part] for part in (kind.attention, kind.second))
        if len(names) == 4:
            modules += split_attention(names, width, heads, width // heads, tokens, biased, causal=True)
        else:
            how = (biased, True, kind.transposed, kind.rotated, groups)
            modules += fused_attention(names, width, heads, tokens, *how)
        modules += () if kind.beside else second
        modules += feed_forward(matrices, width, inner, tokens, other, kind.transposed, in_place=relu)
    modules.append(norm(kind.last, width, tokens, kind.shifted))
    tied = config.flag("tie_word_embeddings", False)
    last = head("lm_head", width, vocabulary, tokens, tied, kind.head_bias)
    return Model(config.name, (*modules, replace(last, loss=kind.loss)), tokens, blocks, causal=True)


def _falcon(config: Config, kind: Plain) -> tuple[Plain, int]:
    """Falcon with the norms of its blocks, and heads of keys: of its own number, one, or as many as of queries."""
    new = config.flag("new_decoder_architecture", False)
    heads, beside = config.count(*HEADS), config.flag("parallel_attn", True)
    both = config.count("num_ln_in_parallel_attn", default=1 + new) == 2
    norms = USUAL if not beside else ("ln_attn", "ln_mlp") if both else (USUAL[0], "")
    one = 1 if config.flag("multi_query", True) else heads
    groups = config.count("num_kv_heads", default=heads) if new else one
    return kind._replace(norms=norms, beside=beside), groups


SENTENCES = 2
"""Classes of the prediction whether a sentence follows."""


MASKED = {
    "bert": (
        "bert", "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions",
        "cls.predictions.decoder",
    ),
    **dict.fromkeys(
        ("roberta", "xlm-roberta", "camembert"),
        ("roberta", "lm_head.dense", "lm_head.layer_norm", "lm_head", "lm_head.decoder"),
    ),
    "electra": (
        "electra", "generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head",
        "generator_lm_head",
    ),
}  # fmt: skip
"""Names by ``model_type``: of the encoder, and in the head of matrix, norm, bias, and an embedding of its own."""
UNUSED = {"roberta": 2}
"""Rows of the embedding of positions that no token has, by the name of the encoder."""


def masked_longest(config: Config) -> int:
    """The most tokens that the positions of an encoder are for."""
    return config.count("max_position_embeddings") - UNUSED.get(MASKED[config.word("model_type")][0], 0)


def masked(config: Config, tokens: int) -> Model:
    """BERT or a relative: an encoder with norms behind each addition; embeddings may be narrower (ELECTRA).

    Names and shapes are those of ``BertForPreTraining``, or of the class for masked words, in transformers; logits are
    computed for every token, as there.
    """
    encoder, dense, normed, bias, words = MASKED[config.word("model_type")]
    width, heads = config.count("hidden_size"), config.count("num_attention_heads")
    config.require_multiple("hidden_size", width, heads)
    vocabulary, inner = config.count("vocab_size"), config.count("intermediate_size")
    narrow, body = config.count("embedding_size", default=width), f"{encoder}.embeddings"
    tables = {
        "word": vocabulary,
        "position": max(tokens + UNUSED.get(encoder, 0), config.count("max_position_embeddings")),
        "token_type": config.count("type_vocab_size", default=2),
    }
    modules = [embedding(f"{body}.{name}_embeddings", size, narrow, tokens) for name, size in tables.items()]
    modules.append(norm(f"{body}.LayerNorm", narrow, tokens, bias=True))
    if narrow != width:
        modules.append(linear(f"{body}_project", narrow, width, tokens, bias=True))
    blocks = tuple(f"{encoder}.encoder.layer.{number}" for number in range(config.layers("num_hidden_layers")))
    for name in blocks:
        inside = f"{name}.attention.self"
        names = (f"{inside}.query", f"{inside}.key", f"{inside}.value", f"{name}.attention.output.dense")
        modules += split_attention(names, width, heads, width // heads, tokens)
        modules.append(norm(f"{name}.attention.output.LayerNorm", width, tokens, bias=True))
        modules += feed_forward((f"{name}.intermediate.dense", f"{name}.output.dense"), width, inner, tokens)
        modules.append(norm(f"{name}.output.LayerNorm", width, tokens, bias=True))
    if encoder == "bert":
        modules.append(linear("bert.pooler.dense", width, width, 1, bias=True))
    modules.append(linear(dense, width, narrow, tokens, bias=True))
    modules.append(norm(normed, narrow, tokens, bias=True))
    if not config.flag("tie_word_embeddings", True):
        modules.append(replace(head(words, narrow, vocabulary, tokens, tied=False), products=(), moved=0, logits=0))
    modules.append(head(bias, narrow, vocabulary, tokens, tied=True, biased=True))
    if encoder == "bert":
        modules.append(linear("cls.seq_relationship", width, SENTENCES, 1, bias=True))
    return Model(config.name, tuple(modules), tokens, blocks)


def distilbert(config: Config, tokens: int) -> Model:
    """DistilBERT: BERT's encoder without types of tokens and pooler; named as ``DistilBertForMaskedLM``."""
    width, heads, vocabulary = config.count("dim"), config.count("n_heads"), config.count("vocab_size")
    config.require_multiple("dim", width, heads)
    inner, tied = config.count("hidden_dim"), config.flag("tie_word_embeddings", True)
    tables = {"word": vocabulary, "position": max(tokens, config.count("max_position_embeddings"))}
    body = "distilbert.embeddings"
    modules = [embedding(f"{body}.{name}_embeddings", size, width, tokens) for name, size in tables.items()]
    modules.append(norm(f"{body}.LayerNorm", width, tokens, bias=True))
    blocks = tuple(f"distilbert.transformer.layer.{number}" for number in range(config.layers("n_layers")))
    for name in blocks:
        names = [f"{name}.attention.{one}_lin" for one in ("q", "k", "v", "out")]
        modules += split_attention(names, width, heads, width // heads, tokens)
        modules.append(norm(f"{name}.sa_layer_norm", width, tokens, bias=True))
        modules += feed_forward((f"{name}.ffn.lin1", f"{name}.ffn.lin2"), width, inner, tokens)
        modules.append(norm(f"{name}.output_layer_norm", width, tokens, bias=True))
    modules.append(linear("vocab_transform", width, width, tokens, bias=True))
    modules.append(norm("vocab_layer_norm", width, tokens, bias=True))
    modules.append(head("vocab_projector", width, vocabulary, tokens, tied, biased=True))
    return Model(config.name, tuple(modules), tokens, blocks)


TARGETS = 4
"""Tokens of the encoder for each of the decoder."""


def t5(config: Config, tokens: int) -> Model:
    """T5: an encoder, and a decoder that attends to it; positions by learned biases; no bias in its layers.

    Names and shapes are those of ``T5ForConditionalGeneration`` in transformers. A sample of N tokens has N in the
    encoder and a quarter in the decoder, about as in its own training (512 and 114). Masks are added to all of
    attention, so that none of it is left out.
    """
    width, vocabulary, layers = config.count("d_model"), config.count("vocab_size"), config.layers("num_layers")
    targets = max(1, tokens // TARGETS)
    modules = [embedding("shared", vocabulary, width, tokens + targets)]
    parts = [
        ("encoder", tokens, layers, 0),
        ("decoder", targets, config.layers("num_decoder_layers", default=layers), tokens),
    ]
    blocks: list[str] = []
    for part, rows, number, keys in parts:
        names = [f"{part}.block.{place}" for place in range(number)]
        for name in names:
            modules += _t5_block(config, name, rows, keys, first=name == names[0])
        modules.append(norm(f"{part}.final_layer_norm", width, rows, squared=True))
        blocks += names
    modules.append(head("lm_head", width, vocabulary, targets, config.flag("tie_word_embeddings", True)))
    return Model(config.name, tuple(modules), tokens, tuple(blocks))


def _t5_block(config: Config, name: str, rows: int, keys: int, first: bool) -> Iterator[Module]:
    """A block; with attention to ``keys`` tokens of the encoder if there are any."""
    width, heads, head_width = config.count("d_model"), config.count("num_heads"), config.count("d_kv")
    for place, (kind, others) in enumerate([("SelfAttention", 0), *([("EncDecAttention", keys)] if keys else [])]):
        layer = f"{name}.layer.{place}"
        inside = f"{layer}.{kind}"
        yield norm(f"{layer}.layer_norm", width, rows, squared=True)
        if first and not place:
            buckets = config.count("relative_attention_num_buckets", default=32)
            yield Module(
                f"{inside}.relative_attention_bias", (("weight", (buckets, heads)),), moved=heads * rows * rows
            )
        names = (f"{inside}.q", f"{inside}.k", f"{inside}.v", f"{inside}.o")
        yield from split_attention(names, width, heads, head_width, rows, biased=False, keys=others)
    layer = f"{name}.layer.{1 + bool(keys)}"
    yield norm(f"{layer}.layer_norm", width, rows, squared=True)
    yield from _t5_feed_forward(config, f"{layer}.DenseReluDense", rows)


def _t5_feed_forward(config: Config, name: str, rows: int) -> Iterator[Module]:
    width, inner = config.count("d_model"), config.count("d_ff")
    if not config.word("feed_forward_proj", "relu").startswith("gated-"):
        yield from feed_forward((f"{name}.wi", f"{name}.wo"), width, inner, rows, biased=False)
        return
    yield linear(f"{name}.wi_0", width, inner, rows)
    yield linear(f"{name}.wi_1", width, inner, rows, kept=-width * rows)  # the same input
    last = linear(f"{name}.wo", inner, width, rows, moved=5 * inner * rows, kept=3 * inner * rows)
    yield replace(last, row_parallel=True)
