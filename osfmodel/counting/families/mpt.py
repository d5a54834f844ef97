"""MPT: biases by distance (ALiBi) in the place of positions, no bias in its layers, the embedding as the head.

Names and shapes are those of ``MptForCausalLM`` in transformers.
"""

from __future__ import annotations

from osfmodel.counting.config import Config
from osfmodel.counting.modules import Model, embedding, feed_forward, fused_attention, head, norm


def build(config: Config, tokens: int) -> Model:
    """The model for samples of ``tokens`` tokens. Raises DataError for a configuration that lacks something."""
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
