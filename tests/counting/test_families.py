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


def test_a_tiny_mamba_is_counted_by_hand():
    """Products with matrices for each token, and the scan by the closed form: 2 heads of 4, chunks of 8, states 5."""
    config = {
        "model_type": "mamba2", "hidden_size": 4, "num_heads": 2, "head_dim": 4, "state_size": 5, "n_groups": 1,
        "chunk_size": 8, "conv_kernel": 3, "vocab_size": 10, "num_hidden_layers": 1,
    }  # fmt: skip
    model = MODEL_FAMILIES["mamba2"].build(Config("tiny", config), 16)
    inner, mixed = 2 * 4, 2 * 4 + 2 * 5
    products = 4 * (inner + mixed + 2) + 3 * mixed + inner * 4 + 4 * 10
    in_chunk, states = 8 * (5 + 2 * 4), 2 * (2 * 5 * 4)
    assert model.operations == 3 * 16 * 2 * (products + in_chunk + states)


def test_latent_attention_has_wider_keys_than_values():
    model = model_of(parse_words("deepseek-v3:h100,seq4096"))
    last = next(module for module in model.modules if module.scores)
    assert [(one.inner, one.columns, one.times) for one in last.scores] == [(192, 2048, 128), (2048, 128, 128)]
    assert last.keys == 4096 * 128 * (192 + 128)


def test_blocks_with_experts_follow_each_way_of_saying_where():
    tiny = {
        "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 4, "num_attention_heads": 2, "vocab_size": 9,
        "num_key_value_heads": 2, "num_experts_per_tok": 1,
    }  # fmt: skip
    said = {
        "qwen3_moe": ({"mlp_only_layers": [0], "decoder_sparse_step": 2}, [1, 3]),
        "qwen2_moe": ({"mlp_only_layers": [2]}, [0, 1, 3]),
        "glm4_moe": ({"first_k_dense_replace": 3, "head_dim": 4}, [3]),
        "llama4_text": ({"interleave_moe_layer_step": 2}, [1, 3]),
        "mixtral": ({}, [0, 1, 2, 3]),
    }
    for kind, (fields, blocks) in said.items():
        model = MODEL_FAMILIES[kind].build(Config(kind, {"model_type": kind, **tiny, **fields}), 16)
        assert [int(one.name.split(".")[2]) for one in model.modules if one.experts] == blocks
        assert model.active < model.parameters


def test_llama4_attends_within_chunks_and_gpt_oss_within_a_window_in_every_other_block():
    for name, columns in (("llama4-scout", [4096, 4096, 4096, 8192]), ("gpt-oss-20b", [128, 8192])):
        model = model_of(parse_words(f"{name}:h100,seq16384"))
        decoder = [module for module in model.modules if module.scores and not module.whole]
        assert [module.scores[0].columns for module in decoder][: len(columns)] == columns


def test_the_tower_of_gemma_sees_one_image_of_a_sample():
    model = model_of(parse_words("gemma3-4b:h100,seq2048"))
    tower = [module for module in model.modules if "vision_tower" in module.name and module.scores]
    assert [tower[0].scores[0][:3], len(tower), tower[0].whole] == [(4096, 72, 4096), 27, True]
    joined = next(module for module in model.modules if module.name.endswith("projector"))
    assert joined.products[0].rows == 256
