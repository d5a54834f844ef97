"""Models that libraries' classes count: against the own families, transformers' numbers and PyTorch's counter."""

from __future__ import annotations

import json
import os

import pytest

import osfmodel as osf
from osfmodel.counting import library
from osfmodel.counting.config import Config
from osfmodel.counting.library.hugging_face import class_of
from osfmodel.counting.modules import LOGITS, Model, Product, attention
from osfmodel.counting.words import configuration, family_of, model_of, parse_words

if os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")
from torch.utils.flop_counter import FlopCounterMode

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    """A folder for caches, in which nothing is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches"


def products(model: Model) -> int:
    return sum(one.operations for module in model.modules for one in module.products)


def scores(model: Model) -> int:
    return sum(one.operations for module in model.modules for one in module.scores)


AGREEING = ("llama3.2-1b", "qwen2.5-0.5b", "qwen3-0.6b", "mixtral-8x7b", "gemma2-2b", "phi3-mini", "gpt2", "pythia-70m",
            "t5-small", "bert-base")  # fmt: skip
CLASSES = {"bert": "BertForPreTraining"}
"""The class that an own family counts, where the type's first is another."""


@pytest.mark.parametrize("name", AGREEING)
def test_own_families_and_transformers_agree(name):
    """To the parameter and the product, by module, and about as much kept and moved."""
    config = configuration(name)
    own = family_of(config).build(config, 512)
    fields = {**config.fields, "architectures": [CLASSES.get(config.word("model_type"), "")]}
    found = library.build(Config(name, fields), 512)
    assert found.parameters == own.parameters
    assert (products(found), scores(found), found.causal) == (products(own), scores(own), own.causal)
    assert [name.split(".")[-1] for name in found.blocks] == [name.split(".")[-1] for name in own.blocks]
    kept = [sum(module.kept + LOGITS * module.logits for module in model.modules) for model in (found, own)]
    assert kept[0] == pytest.approx(kept[1], rel=0.15)


SMALL = {
    "llama": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2, "vocab_size": 96},
    "bert": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
             "vocab_size": 96},
    "opt": {"hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 96,
            "word_embed_proj_dim": 32},
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "vocab_size": 96},
    "vit": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
            "image_size": 32, "patch_size": 8},
    "whisper": {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
                "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 96,
                "max_source_positions": 20, "max_target_positions": 16, "num_mel_bins": 8, "pad_token_id": 1,
                "bos_token_id": 1, "eos_token_id": 1, "decoder_start_token_id": 1},
}  # fmt: skip
INPUTS = {
    "vit": lambda: {"pixel_values": torch.randn(1, 3, 32, 32)},
    "whisper": lambda: {
        "input_features": torch.randn(1, 8, 40), "decoder_input_ids": torch.ones(1, 16, dtype=torch.long)
    },
}  # fmt: skip
TOKENS = 16


def real(kind: str):
    """A small model of a type with data, on the CPU, and inputs for it."""
    config = transformers.AutoConfig.for_model(kind, **SMALL[kind])
    model = class_of(transformers, config)._from_config(config, attn_implementation="eager")
    tokens = {"input_ids": torch.ones(1, TOKENS, dtype=torch.long)}
    return model, INPUTS.get(kind, lambda: tokens)()


def counted(kind: str) -> Model:
    tokens = 0 if kind in INPUTS else TOKENS
    return library.build(Config(kind, {"model_type": kind, **SMALL[kind]}), tokens)


@pytest.mark.parametrize("kind", SMALL)
def test_products_are_those_of_real_models(kind):
    """Besides attention, of which PyTorch's counter has all: a masked half is computed by this implementation."""
    model, inputs = real(kind)
    with FlopCounterMode(display=False) as counter:
        model(**inputs)
    by_kind = counter.get_flop_counts()["Global"]
    batched = sum(number for operator, number in by_kind.items() if "bmm" in str(operator))
    found = counted(kind)
    assert products(found) == sum(by_kind.values()) - batched
    if found.causal:
        dense = [one._replace(rows=TOKENS) for m in found.modules for one in m.scores]
        assert all(TOKENS // 2 in (one.inner, one.columns) for one in dense)
        assert 2 * scores(found) == batched
    elif kind == "whisper":  # its decoder alone is causal
        (first, second) = attention(TOKENS, 4, 8, causal=True)
        assert batched - scores(found) == first.operations + second.operations
    else:
        assert scores(found) == batched
    assert found.parameters == model.num_parameters()


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "mm_tokens_per_image": 4,
             "text_config": {"model_type": "gemma3_text", "hidden_size": 32, "intermediate_size": 48,
                             "num_hidden_layers": 7, "num_attention_heads": 2, "num_key_value_heads": 1,
                             "head_dim": 16, "vocab_size": 300, "sliding_window": 8},
             "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 16, "intermediate_size": 24,
                               "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28, "patch_size": 7}},
        {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 32,
             "moe_intermediate_size": 24, "num_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 96},
        {"model_type": "mamba2", "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "head_dim": 8,
             "num_heads": 8, "expand": 2, "vocab_size": 96, "n_groups": 1, "tie_word_embeddings": True},
    ],
)  # fmt: skip
def test_towers_experts_and_scans_are_counted(tmp_path, fields):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields))
    model = model_of(parse_words(f"{path}:h100,seq64"))
    config = transformers.AutoConfig.for_model(**fields)
    with torch.device("meta"):
        own = class_of(transformers, config)._from_config(config)
    assert model.parameters == own.num_parameters()
    workload = osf.load_workload(f"{path}:h100,seq64,batch1,bf16")
    assert sum(layer.elements for layer in workload.layers) == model.parameters
    assert model.blocks


def test_experts_have_the_tokens_that_choose_them():
    fields = {"model_type": "qwen3_moe", "hidden_size": 32, "moe_intermediate_size": 24, "num_experts": 8,
              "num_experts_per_tok": 2, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
              "head_dim": 8, "vocab_size": 96}  # fmt: skip
    model = library.build(Config("moe", fields), 64)
    (experts,) = [module for module in model.modules if module.experts]
    assert experts.name == "model.layers.0.mlp.experts"
    assert experts.products == (Product(16, 32, 48, 8), Product(16, 24, 32, 8))


def test_a_window_of_attention_is_counted_by_layer():
    fields = {"model_type": "gemma3_text", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 6,
              "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 300,
              "sliding_window": 8}  # fmt: skip
    found = [one for module in library.build(Config("gemma", fields), 64).modules for one in module.scores]
    windowed, whole = attention(64, 2, 16, causal=True, window=8), attention(64, 2, 16, causal=True)
    assert found == [*windowed * 5, *whole]


def test_code_beside_a_configuration_is_never_run(tmp_path):
    (tmp_path / "modeling_own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Own: pass\n")
    fields = {"model_type": "own_kind", "auto_map": {"AutoModel": "modeling_own.Own", "AutoConfig": "modeling_own.Own"}}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(osf.DataError, match=r"'own_kind' cannot be counted: transformers .* never run"):
        osf.load_workload(f"{tmp_path}:h100")
    known = {**SMALL["llama"], "model_type": "opt", **SMALL["opt"], "auto_map": fields["auto_map"]}
    (tmp_path / "config.json").write_text(json.dumps(known))
    assert osf.load_workload(f"{tmp_path}:h100,seq16").sample_tokens == 16
    assert not (tmp_path / "ran").exists()


def test_a_function_that_returns_a_module(tmp_path, monkeypatch):
    (tmp_path / "own_models.py").write_text(
        "from torch import nn\n"
        "def words(): return nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50))\n"
        "def images():\n"
        "    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))\n"
        "def number(): return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    model = model_of(parse_words("own_models:words:h100,seq16"))
    assert (model.parameters, model.tokens) == (50 * 8 + 8 * 50 + 50, 16)
    assert [one for module in model.modules for one in module.products] == [Product(16, 8, 50)]
    images = model_of(parse_words("own_models:images:h100"))
    assert (images.parameters, images.tokens) == (3 * 4 * 9 + 4 + 4 * 2 + 2, 0)
    assert images.modules[0].products == (Product(222 * 222, 27, 4, taps=9),)
    for name, said in (("images:h100,seq8", "has no sequence"), ("number:h100", "returned int, not a torch.nn.Module"),
                       ("none:h100", "has no function 'none'")):  # fmt: skip
        with pytest.raises(osf.OsfError, match=said):
            model_of(parse_words(f"own_models:{name}"))


def test_chunks_of_attention_and_experts_that_are_given_all_tokens():
    fields = {"model_type": "llama4_text", "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 4,
              "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 96,
              "num_local_experts": 8, "num_experts_per_tok": 1, "attention_chunk_size": 16,
              "interleave_moe_layer_step": 1}  # fmt: skip
    modules = library.build(Config("chunks", fields), 64).modules
    chunked, whole = attention(64, 4, 8, keys=8), attention(64, 4, 8, causal=True)
    assert [one for module in modules for one in module.scores] == [*chunked * 3, *whole]
    experts = [module.products for module in modules if module.experts]
    assert experts == [(Product(8, 32, 48, 8), Product(8, 24, 32, 8))] * 4


@pytest.mark.parametrize("kind", SMALL)
def test_products_of_backward_are_those_of_real_models(kind):
    """Two for each of forward, but one where the input is data; those of attention, without parameters, have two.

    PyTorch's counter leaves the groups of a convolution out in one of its two: as many times the work there.
    """
    model, inputs = real(kind)
    with FlopCounterMode(display=False) as forward:
        output = model(**inputs)
    loss = sum(value.float().sum() for value in output.values() if isinstance(value, torch.Tensor))
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    there, back = (counter.get_flop_counts()["Global"] for counter in (forward, backward))
    batched = [sum(number for name, number in one.items() if "bmm" in str(name)) for one in (there, back)]
    assert batched[1] == 2 * batched[0]
    found = counted(kind)
    made = [one for module in found.modules for one in module.products]
    data = made[0].operations if kind in INPUTS else 0
    assert sum(back.values()) - batched[1] == sum(one.operations * (1 + one.times) for one in made) - data
