"""DLRM: a table of vectors for each category, a perceptron for numbers, products of all pairs, a second perceptron.

Names and shapes are those of ``DLRM_Net`` in facebookresearch/dlrm, with one look-up in each table for a sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from osfmodel.counting.config import Config
from osfmodel.counting.modules import Model, Module, Product, embedding, linear
from osfmodel.entities.errors import DataError


def build(config: Config, _tokens: int) -> Model:
    """The model. Raises DataError for a configuration that lacks something."""
    tables, width = config.counts("arch_embedding_size"), config.count("arch_sparse_feature_size")
    bottom, top = config.counts("arch_mlp_bot"), config.counts("arch_mlp_top")
    if bottom[-1] != width:
        raise DataError(f"{config.name}: 'arch_mlp_bot' must end in {width}, the 'arch_sparse_feature_size'")
    vectors = len(tables) + 1
    modules = [embedding(f"emb_l.{number}", size, width, 1) for number, size in enumerate(tables)]
    modules += _perceptron("bot_l", bottom)
    joined = width + vectors * (vectors - 1) // 2
    first, *others = _perceptron("top_l", (joined, *top))
    pairs = Product(vectors, width, vectors)
    kept = first.kept + vectors * width
    modules.append(
        Module(first.name, first.parameters, first.products, (pairs,), 2 * vectors * (width + vectors), kept)
    )
    return Model(config.name, (*modules, *others), 0, ())


def _perceptron(name: str, widths: Sequence[int]) -> Iterator[Module]:
    """Linear layers, with an activation in place behind each."""
    for place, (inner, columns) in enumerate(pairwise(widths)):
        yield linear(f"{name}.{2 * place}", inner, columns, 1, bias=True, moved=2 * inner if place else 0)
