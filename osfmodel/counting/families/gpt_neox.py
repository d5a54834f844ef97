"""GPT-NeoX, and Pythia: rotary positions, attention and feed-forward part side by side.

Names and shapes are those of ``GPTNeoXForCausalLM`` in transformers.
"""

from __future__ import annotations

from osfmodel.counting.config import Config
from osfmodel.counting.modules import Model, embedding, feed_forward, fused_attention, head, norm


def build(config: Config, tokens: int) -> Model:
    """The model for samples of ``tokens`` tokens. Raises DataError for a configuration that lacks something."""
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
