"""T5: an encoder, and a decoder that attends to it; positions by learned biases; no bias in its layers.

Names and shapes are those of ``T5ForConditionalGeneration`` in transformers. A sample of N tokens has N in the encoder
and a quarter in the decoder, about as in its own training (512 and 114). Masks are added to all of attention, so that
none of it is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from osfmodel.counting.config import Config
from osfmodel.counting.modules import Model, Module, embedding, feed_forward, head, linear, norm, split_attention

TARGETS = 4
"""Tokens of the encoder for each of the decoder."""


def build(config: Config, tokens: int) -> Model:
    """The model for samples of ``tokens`` tokens. Raises DataError for a configuration that lacks something."""
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
            modules += _block(config, name, rows, keys, first=name == names[0])
        modules.append(norm(f"{part}.final_layer_norm", width, rows))
        blocks += names
    modules.append(head("lm_head", width, vocabulary, targets, config.flag("tie_word_embeddings", True)))
    return Model(config.name, tuple(modules), tokens, tuple(blocks))


def _block(config: Config, name: str, rows: int, keys: int, first: bool) -> Iterator[Module]:
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
    yield from _feed_forward(config, f"{layer}.DenseReluDense", rows)


def _feed_forward(config: Config, name: str, rows: int) -> Iterator[Module]:
    width, inner = config.count("d_model"), config.count("d_ff")
    if not config.word("feed_forward_proj", "relu").startswith("gated-"):
        yield from feed_forward((f"{name}.wi", f"{name}.wo"), width, inner, rows, biased=False)
        return
    yield linear(f"{name}.wi_0", width, inner, rows)
    yield linear(f"{name}.wi_1", width, inner, rows, kept=-width * rows)  # the same input
    last = linear(f"{name}.wo", inner, width, rows, moved=5 * inner * rows, kept=3 * inner * rows)
    yield replace(last, row_parallel=True)
