"""Mamba 2: blocks of a state space, which each token changes and reads, in the place of attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from osfmodel.counting.config import Config
from osfmodel.counting.modules import Model, Module, Product, embedding, head, linear, norm


def build(config: Config, tokens: int) -> Model:
    """The model for samples of ``tokens`` tokens. Raises DataError for a configuration that lacks something.

    Names and shapes are those of ``Mamba2ForCausalLM`` in transformers.
    """
    width, vocabulary = config.count("hidden_size"), config.count("vocab_size")
    modules = [embedding("backbone.embeddings", vocabulary, width, tokens)]
    blocks = tuple(f"backbone.layers.{number}" for number in range(config.layers("num_hidden_layers")))
    for name in blocks:
        modules.append(norm(f"{name}.norm", width, tokens))
        modules += _mixer(config, f"{name}.mixer", width, tokens)
    modules.append(norm("backbone.norm_f", width, tokens))
    modules.append(head("lm_head", width, vocabulary, tokens, config.flag("tie_word_embeddings", False)))
    return Model(config.name, tuple(modules), tokens, blocks)


def _mixer(config: Config, name: str, width: int, tokens: int) -> Iterator[Module]:
    """A projection, a short convolution, the scan in chunks, and a gated norm, as the kernels of mamba_ssm do them.

    Inside a chunk the scan is masked attention, whose keys (B) and queries (C) all heads of a group share; each chunk
    adds to the state of a head, and reads the state before it (arXiv 2405.21060, section 6). The convolution and the
    states are computed again in backward.
    """
    heads, head_width, state = (config.count(one) for one in ("num_heads", "head_dim", "state_size"))
    groups, taps = config.count("n_groups"), config.count("conv_kernel")
    chunk, inner, biased = min(tokens, config.count("chunk_size")), heads * head_width, config.flag("use_bias", False)
    mixed = inner + 2 * groups * state
    yield linear(f"{name}.in_proj", width, inner + mixed + heads, tokens, biased)
    filters = (("weight", (mixed, 1, taps)), *([("bias", (mixed,))] if config.flag("use_conv_bias", True) else []))
    products = (Product(tokens, taps, 1, mixed, taps),)
    yield Module(f"{name}.conv1d", filters, products, moved=2 * mixed * tokens, kept=mixed * tokens)
    of_heads = tuple((one, (heads,)) for one in ("dt_bias", "A_log", "D"))
    scan = (
        Product(tokens, state, chunk, groups),
        Product(tokens, chunk, head_width, heads),
        *[Product(tokens, state, head_width, heads)] * 2,
    )
    states = 2 * inner * state * -(-tokens // chunk)
    moved = (mixed + inner + 2 * heads) * tokens + states
    yield Module(name, of_heads, scores=scan, moved=moved, kept=heads * tokens)
    yield Module(f"{name}.norm", (("weight", (inner,)),), moved=3 * inner * tokens, kept=2 * inner * tokens)
    yield replace(linear(f"{name}.out_proj", inner, width, tokens, biased), row_parallel=True)
