"""Models of text, besides the relatives of Llama: (configuration, tokens of a sample) -> the model.

All raise DataError for a configuration that lacks something.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from osfmodel.counting.config import Config
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

EXPANSION = 4
"""Width of the feed-forward part over that of the model, where the configuration does not say."""


def gpt2(config: Config, tokens: int) -> Model:
    """GPT-2: learned positions, norms before attention and feed-forward parts, the embedding as the head.

    Names and shapes are those of ``GPT2LMHeadModel`` in transformers.
    """
    width, heads, layers = config.count("n_embd"), config.count("n_head"), config.layers("n_layer")
    config.require_multiple("n_embd", width, heads)
    vocabulary, inner = config.count("vocab_size"), config.count("n_inner", default=EXPANSION * width)
    modules = [
        embedding("transformer.wte", vocabulary, width, tokens),
        embedding("transformer.wpe", max(tokens, config.count("n_positions")), width, tokens),
    ]
    blocks = tuple(f"transformer.h.{number}" for number in range(layers))
    for name in blocks:
        modules.append(norm(f"{name}.ln_1", width, tokens, bias=True))
        names = (f"{name}.attn.c_attn", f"{name}.attn.c_proj")
        modules += fused_attention(names, width, heads, tokens, causal=True, transposed=True)
        modules.append(norm(f"{name}.ln_2", width, tokens, bias=True))
        modules += feed_forward((f"{name}.mlp.c_fc", f"{name}.mlp.c_proj"), width, inner, tokens, transposed=True)
    modules.append(norm("transformer.ln_f", width, tokens, bias=True))
    modules.append(head("lm_head", width, vocabulary, tokens, config.flag("tie_word_embeddings", True)))
    return Model(config.name, tuple(modules), tokens, blocks, causal=True)


def gpt_neox(config: Config, tokens: int) -> Model:
    """GPT-NeoX, and Pythia: rotary positions, attention and feed-forward part side by side.

    Names and shapes are those of ``GPTNeoXForCausalLM`` in transformers.
    """
    width, heads = config.count("hidden_size"), config.count("num_attention_heads")
    config.require_multiple("hidden_size", width, heads)
    vocabulary, inner = config.count("vocab_size"), config.count("intermediate_size")
    biased = config.flag("attention_bias", True)
    modules = [embedding("gpt_neox.embed_in", vocabulary, width, tokens)]
    blocks = tuple(f"gpt_neox.layers.{number}" for number in range(config.layers("num_hidden_layers")))
    for name in blocks:
        modules.append(norm(f"{name}.input_layernorm", width, tokens, bias=True))
        modules.append(norm(f"{name}.post_attention_layernorm", width, tokens, bias=True))
        names = (f"{name}.attention.query_key_value", f"{name}.attention.dense")
        modules += fused_attention(names, width, heads, tokens, biased, causal=True, rotated=True)
        modules += feed_forward((f"{name}.mlp.dense_h_to_4h", f"{name}.mlp.dense_4h_to_h"), width, inner, tokens)
    modules.append(norm("gpt_neox.final_layer_norm", width, tokens, bias=True))
    modules.append(head("lm_head", width, vocabulary, tokens, config.flag("tie_word_embeddings", False)))
    return Model(config.name, tuple(modules), tokens, blocks, causal=True)


def mpt(config: Config, tokens: int) -> Model:
    """MPT: biases by distance (ALiBi) in the place of positions, no bias in its layers, the embedding as the head.

    Names and shapes are those of ``MptForCausalLM`` in transformers.
    """
    width, heads = config.count("d_model"), config.count("n_heads")
    config.require_multiple("d_model", width, heads)
    vocabulary, inner = config.count("vocab_size"), config.count("expansion_ratio", default=4) * width
    modules = [embedding("transformer.wte", vocabulary, width, tokens)]
    blocks = tuple(f"transformer.blocks.{number}" for number in range(config.layers("n_layers")))
    for name in blocks:
        modules.append(norm(f"{name}.norm_1", width, tokens))
        names = (f"{name}.attn.Wqkv", f"{name}.attn.out_proj")
        modules += fused_attention(names, width, heads, tokens, biased=False, causal=True)
        modules.append(norm(f"{name}.norm_2", width, tokens))
        modules += feed_forward((f"{name}.ffn.up_proj", f"{name}.ffn.down_proj"), width, inner, tokens, biased=False)
    modules.append(norm("transformer.norm_f", width, tokens))
    modules.append(head("lm_head", width, vocabulary, tokens, config.flag("tie_word_embeddings", True)))
    return Model(config.name, tuple(modules), tokens, blocks, causal=True)


SENTENCES = 2
"""Classes of the prediction whether a sentence follows."""


def bert(config: Config, tokens: int) -> Model:
    """BERT: an encoder with norms behind each addition, trained on masked words and on whether a sentence follows.

    Names and shapes are those of ``BertForPreTraining`` in transformers; logits are computed for every token, as there.
    """
    width, heads = config.count("hidden_size"), config.count("num_attention_heads")
    config.require_multiple("hidden_size", width, heads)
    vocabulary, inner = config.count("vocab_size"), config.count("intermediate_size")
    tables = {
        "word": vocabulary,
        "position": max(tokens, config.count("max_position_embeddings")),
        "token_type": config.count("type_vocab_size", default=2),
    }
    modules = [embedding(f"bert.embeddings.{kind}_embeddings", size, width, tokens) for kind, size in tables.items()]
    modules.append(norm("bert.embeddings.LayerNorm", width, tokens, bias=True))
    blocks = tuple(f"bert.encoder.layer.{number}" for number in range(config.layers("num_hidden_layers")))
    for name in blocks:
        inside = f"{name}.attention.self"
        names = (f"{inside}.query", f"{inside}.key", f"{inside}.value", f"{name}.attention.output.dense")
        modules += split_attention(names, width, heads, width // heads, tokens)
        modules.append(norm(f"{name}.attention.output.LayerNorm", width, tokens, bias=True))
        modules += feed_forward((f"{name}.intermediate.dense", f"{name}.output.dense"), width, inner, tokens)
        modules.append(norm(f"{name}.output.LayerNorm", width, tokens, bias=True))
    modules += _bert_heads(width, vocabulary, tokens, config.flag("tie_word_embeddings", True))
    return Model(config.name, tuple(modules), tokens, blocks)


def _bert_heads(width: int, vocabulary: int, tokens: int, tied: bool) -> Iterator[Module]:
    """The pooler, the head for masked words, and that for sentences."""
    yield linear("bert.pooler.dense", width, width, 1, bias=True)
    yield linear("cls.predictions.transform.dense", width, width, tokens, bias=True)
    yield norm("cls.predictions.transform.LayerNorm", width, tokens, bias=True)
    if not tied:
        yield replace(head("cls.predictions.decoder", width, vocabulary, tokens, tied=False), products=())
    made = head("cls.predictions", width, vocabulary, tokens, tied=True)
    yield replace(made, parameters=(("bias", (vocabulary,)),))
    yield linear("cls.seq_relationship", width, SENTENCES, 1, bias=True)


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
        modules.append(norm(f"{part}.final_layer_norm", width, rows))
        blocks += names
    modules.append(head("lm_head", width, vocabulary, targets, config.flag("tie_word_embeddings", True)))
    return Model(config.name, tuple(modules), tokens, tuple(blocks))


def _t5_block(config: Config, name: str, rows: int, keys: int, first: bool) -> Iterator[Module]:
    """A block; with attention to ``keys`` tokens of the encoder if there are any."""
    width, heads, head_width = config.count("d_model"), config.count("num_heads"), config.count("d_kv")
    for place, (kind, others) in enumerate([("SelfAttention", 0), *([("EncDecAttention", keys)] if keys else [])]):
        layer = f"{name}.layer.{place}"
        inside = f"{layer}.{kind}"
        yield norm(f"{layer}.layer_norm", width, rows)
        if first and not place:
            buckets = config.count("relative_attention_num_buckets", default=32)
            yield Module(
                f"{inside}.relative_attention_bias", (("weight", (buckets, heads)),), moved=heads * rows * rows
            )
        names = (f"{inside}.q", f"{inside}.k", f"{inside}.v", f"{inside}.o")
        yield from split_attention(names, width, heads, head_width, rows, biased=False, keys=others)
    layer = f"{name}.layer.{1 + bool(keys)}"
    yield norm(f"{layer}.layer_norm", width, rows)
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
