"""Families of models, counted by hand where no library can be installed or none counts the same."""

from __future__ import annotations

from osfmodel.counting.config import Config
from osfmodel.counting.families import MODEL_FAMILIES
from osfmodel.counting.modules import attention
from osfmodel.counting.words import model_of, parse_words


def test_a_tiny_dlrm_is_counted_by_hand():
    config = {
        "arch_sparse_feature_size": 4, "arch_embedding_size": [10, 20], "arch_mlp_bot": [13, 8, 4],
        "arch_mlp_top": [6, 1],
    }  # fmt: skip
    model = MODEL_FAMILIES["dlrm"].build(Config("tiny", config), 0)
    joined = 4 + 3  # the bottom's vector, and the pairs of 3 vectors
    assert [(module.name, module.parameters[0][1]) for module in model.modules] == [
        ("emb_l.0", (10, 4)), ("emb_l.1", (20, 4)), ("bot_l.0", (8, 13)), ("bot_l.2", (4, 8)), ("top_l.0", (6, joined)),
        ("top_l.2", (1, 6)),
    ]  # fmt: skip
    products = 2 * (13 * 8 + 8 * 4 + joined * 6 + 6)
    assert model.operations == 3 * (products + 2 * 3 * 4 * 3)


def test_a_sliding_window_bounds_the_keys_of_a_query():
    seen = attention(8, 1, 2, causal=True, window=3)[0].columns
    assert seen == (1 + 2 + 3 * 6) // 8 + 1  # rounded up
    assert attention(8, 1, 2, causal=True, window=8) == attention(8, 1, 2, causal=True)


def test_mistral_attends_within_its_window_and_gemma_in_every_other_block():
    inside = {
        name: [
            module.scores[0].columns
            for module in model_of(parse_words(f"{name}:h100,seq8192")).modules
            if module.scores
        ][:2]
        for name in ("mistral-7b", "gemma2-2b", "llama3-8b")
    }
    assert inside["llama3-8b"] == [4096, 4096]
    assert inside["mistral-7b"] == [3073, 3073]  # half of the first 4096, all 4096 for the others
    assert inside["gemma2-2b"] == [3073, 4096]


def test_the_experts_of_mixtral_share_the_tokens():
    model = model_of(parse_words("mixtral-8x7b:h100,seq4096"))
    experts = next(module for module in model.modules if module.name.endswith("mlp.experts"))
    assert experts.elements == 8 * 3 * 4096 * 14336
    assert sum(product.operations for product in experts.products) == 2 * 2 * 4096 * 3 * 4096 * 14336
