"""BERT: an encoder with norms behind each addition, trained on masked words and on whether a sentence follows.

Names and shapes are those of ``BertForPreTraining`` in transformers; logits are computed for every token, as there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from osfmodel.counting.config import Config
from osfmodel.counting.modules import Model, Module, embedding, feed_forward, head, linear, norm, split_attention

SENTENCES = 2
"""Classes of the prediction whether a sentence follows."""


def build(config: Config, tokens: int) -> Model:
    """The model for samples of ``tokens`` tokens. Raises DataError for a configuration that lacks something."""
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
    modules += _heads(width, vocabulary, tokens, config.flag("tie_word_embeddings", True))
    return Model(config.name, tuple(modules), tokens, blocks)


def _heads(width: int, vocabulary: int, tokens: int, tied: bool) -> Iterator[Module]:
    """The pooler, the head for masked words, and that for sentences."""
    yield linear("bert.pooler.dense", width, width, 1, bias=True)
    yield linear("cls.predictions.transform.dense", width, width, tokens, bias=True)
    yield norm("cls.predictions.transform.LayerNorm", width, tokens, bias=True)
    if not tied:
        yield replace(head("cls.predictions.decoder", width, vocabulary, tokens, tied=False), products=())
    made = head("cls.predictions", width, vocabulary, tokens, tied=True)
    yield replace(made, parameters=(("bias", (vocabulary,)),))
    yield linear("cls.seq_relationship", width, SENTENCES, 1, bias=True)
