"""GPT-2: learned positions, norms before attention and feed-forward parts, the embedding as the head.

Names and shapes are those of ``GPT2LMHeadModel`` in transformers.
"""

from __future__ import annotations

from osfmodel.counting.config import Config
from osfmodel.counting.modules import Model, embedding, feed_forward, fused_attention, head, norm

EXPANSION = 4
"""Width of the feed-forward part over that of the model, where the configuration does not say."""


def build(config: Config, tokens: int) -> Model:
    """The model for samples of ``tokens`` tokens. Raises DataError for a configuration that lacks something."""
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
