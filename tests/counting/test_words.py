"""Workloads in words: counted by hand, and nonsense refused in one line."""

from __future__ import annotations

import json

import pytest

import osfmodel as osf
from osfmodel.counting import library
from osfmodel.counting.remarks import remarks
from osfmodel.counting.stacks import STACKS
from osfmodel.counting.training import CHECKPOINTING
from osfmodel.counting.words import TYPES, model_of, parse_words
from osfmodel.entities.gpus import GPUS
from tests.commands import invoke
from tests.conftest import ROOT

TINY = {
    "model_type": "llama", "hidden_size": 8, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture
def tiny(tmp_path):
    """The path of a tiny Llama's configuration."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    return path


def test_a_tiny_llama_is_counted_by_hand(tiny):
    model = model_of(parse_words(f"{tiny}:h100,seq16"))
    attention, mlp, norms = 8 * 8 + 2 * 8 * 4 + 8 * 8, 3 * 8 * 24, 2 * 8
    assert model.parameters == 2 * (attention + mlp + norms) + 8 + 2 * 100 * 8
    products = 2 * 16 * (2 * (attention + mlp) + 100 * 8)
    scores = 2 * 2 * 2 * 4 * 16 * 2 * 8  # layers, products, multiply and add, heads, queries, width, keys seen of 16
    assert model.operations == 3 * (products + scores)
    assert model.utilised == 3 * (products + 2 * scores)
    assert model.blocks == ("model.layers.0", "model.layers.1")


def test_a_workload_in_words_has_the_parameters_the_state_and_the_ideal_time():
    workload = osf.load_workload("llama3-8b:h100,seq4096,batch2,bf16")
    assert sum(layer.elements for layer in workload.layers) == 8_030_261_248
    assert workload.state_bytes == 8 * 8_030_261_248
    assert (workload.batch_size, workload.sample_tokens, workload.computed_in) == (2, 4096, "bfloat16")
    model = model_of(parse_words("llama3-8b:h100,seq4096"))
    assert workload.ideal_time == pytest.approx(2 * model.utilised / 989.4e12)
    assert 0.2 < workload.ideal_time / workload.compute_time < 0.8
    assert workload.doubt > 0


def test_checkpointing_costs_forward_once_more_and_saves_memory():
    usual, full = (osf.load_workload(f"llama3-8b:h100,seq4096{rest}") for rest in ("", ",ac=full"))
    inside = sum(layer.forward_time for layer in usual.layers if layer.name.startswith("model.layers."))
    assert full.backward_time - usual.backward_time == pytest.approx(inside)
    assert max(layer.peak_bytes for layer in full.layers) < 0.5 * max(layer.peak_bytes for layer in usual.layers)


def test_mixed_precision_gathers_in_half_and_reduces_in_float32():
    """FSDP2 by its usual policy; DeepSpeed sends all in the type of computation; DDP sends gradients as they are."""
    workload, cluster = osf.load_workload("llama3-8b:h100,batch1,bf16"), osf.load_cluster("nccl:h100x8,400Gbps")
    types = {
        name: osf.make_plan(name, workload, osf.pricing_of(cluster, 16)).sharding
        for name in ("fsdp2", "hsdp", "zero-2")
    }
    assert (types["fsdp2"].gather_dtype, types["fsdp2"].reduce_dtype) == ("bfloat16", "float32")
    assert (types["hsdp"].gather_dtype, types["hsdp"].reduce_dtype) == ("bfloat16", "float32")
    assert (types["zero-2"].gather_dtype, types["zero-2"].reduce_dtype) == ("bfloat16", "bfloat16")
    plain = osf.load_workload("llama3-8b:h100,batch1,fp32")
    assert osf.make_plan("fsdp2", plain, osf.pricing_of(cluster, 16)).sharding.gather_dtype == ""


def test_stacks_have_other_spellings():
    for written, meant in (
        ("te", "te"),
        ("megatron", "te"),
        ("stack=nemo", "te"),
        ("compile", "compile"),
        ("ac=full", "eager"),
    ):
        assert parse_words(f"llama3-8b:h100,{written}").setting.stack == meant


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("llama3-8b:h1000", "unknown GPU 'h1000': did you mean h100?"),
        ("lama3-8b:h100", "did you mean llama3-8b or"),
        ("llama3-8b:v100,bf16", "no matrix products in bfloat16"),
        ("llama3-8b:v100,fp8", "no matrix products in float8"),
        ("llama3-8b:h100,batch0", "'batch0': the number must be from 1"),
        ("llama3-8b:h100,seq-5", "'seq-5': the number must be from 1"),
        ("llama3-8b:h100,seq8,seq16", "a second time"),
        ("llama3-8b:h100,bf16,fp8", "a second time"),
        ("llama3-8b:h100,ac=some", "none, selective, full"),
        ("llama3-8b:h100,te,compile", "a second time"),
        ("llama3-8b:h100,stak=te", "did you mean stack=te?"),
        ("llama3-8b:h100,stack=jax", "eager, compile, te, nanotron"),
        ("llama3-8b:h100,overlap=tp", "'overlap=tp': eager kernels do not overlap: add compile"),
        ("llama3-8b:h100,te,overlap=ep", "'overlap=ep' is no part of a workload: did you mean overlap=tp?"),
        ("llama3-8b:h100,fast", "'fast' is no part of a workload: leave it out, or write MODEL:GPU"),
        ("llama3-8b:", "unknown GPU ''"),
        ("resnet50:a100,seq512", "resnet50 has no sequence: leave seq512 out"),
        ("gpt5:h100", "no architecture named 'gpt5'"),
        ("llama3-8b:a100,fp8", "no matrix products in float8"),
        (
            "llama3-8b:h100,nvfp4",
            "no matrix products in nvfp4: it has float32, tf32, float16, bfloat16, float8; "
            "GPUs that have them: b200, gb200, b300, gb300",
        ),
        ("llama3-8b:rtx-pro-6000,mxfp8", "GPUs that have them: b200, gb200, b300, gb300, mi355x"),
        ("llama3-8b:b200,fp8=row", "did you mean fp8=rowwise"),
        ("llama3-8b:b200,mxfp8,nvfp4", "a second time"),
    ],
)
def test_nonsense_gets_one_line(words, said):
    with pytest.raises(osf.UsageError) as error:
        osf.load_workload(words)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"hidden_size": None}, "has no 'hidden_size'"),
        ({"num_hidden_layers": 0}, "'num_hidden_layers' is 0"),
        ({"num_hidden_layers": 10**9}, "from 1 to 10000"),
        ({"num_hidden_layers": "2"}, "'num_hidden_layers' is '2'"),
        ({"tie_word_embeddings": "no"}, "must be true or false"),
        ({"model_type": None}, "has no 'model_type'"),
        ({"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 5}, "from 1 to 4"),
        ({"num_local_experts": 16}, "'num_local_experts' says that it has experts"),
        ({"num_attention_heads": 3}, "'hidden_size' is 8, which 3 heads cannot share evenly"),
        ({"num_key_value_heads": 3}, "which 3 groups of heads cannot share evenly"),
        ({"max_position_embeddings": None}, "has no 'max_position_embeddings'"),
        ({"rope_scaling": "linear"}, "has no 'rope_scaling' with fields"),
        ({"rope_scaling": {"type": "linear", "factor": "4"}}, "'factor' is '4': it must be a number"),
        ({"model_type": "torchvision-resnet", "layers": 3}, "'layers' is 3: it must be a list"),
        ({"model_type": "torchvision-resnet", "layers": [3, 0]}, "'layers' is 0"),
        ({"model_type": "torchvision-swin", "embed_dim": 8, "depths": [2, 2], "num_heads": [1]}, "2 stages and"),
        ({"model_type": "clip", "text_config": 3}, "has no 'text_config' with fields"),
    ],
)
def test_a_configuration_that_cannot_be_counted_is_refused(tmp_path, changed, said):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**TINY, **changed}))
    with pytest.raises(osf.DataError) as error:
        osf.load_workload(f"{path}:h100")
    assert said in str(error.value)


@pytest.mark.parametrize("name", ["num_nextn_predict_layers", "num_mtp_layers"])
def test_layers_for_multi_token_prediction_are_left_out_with_a_remark(tmp_path, name):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**TINY, name: 2}))
    (said,) = remarks(f"{path}:h100")
    assert said.startswith(f"of the layers of {path} 2 for multi-token prediction ({name})")
    path.write_text(json.dumps({**TINY, name: 0}))
    remarks.cache_clear()
    assert remarks(f"{path}:h100") == ()


def test_an_option_without_an_own_way_gets_the_command_that_installs_one(tmp_path, monkeypatch):
    def missing(*_):
        raise osf.UsageError("torch")

    monkeypatch.setattr(library, "build", missing)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**TINY, "model_type": "stablelm", "qk_layernorm": True}))
    with pytest.raises(osf.DataError, match=r"'qk_layernorm' is set.*pip install 'osfmodel\[names\]'") as error:
        osf.load_workload(f"{path}:h100")
    assert "\n" not in str(error.value)


def test_quantised_weights_are_counted_as_trained_in_full(tmp_path):
    plain, path = tmp_path / "plain.json", tmp_path / "config.json"
    plain.write_text(json.dumps(TINY))
    path.write_text(json.dumps({**TINY, "quantization_config": {"quant_method": "gptq"}}))
    (said,) = remarks(f"{path}:h100")
    assert "are quantised (quantization_config): counted as trained in full" in said
    one, other = (model_of(parse_words(f"{found}:h100")) for found in (plain, path))
    assert (one.modules, remarks(f"{plain}:h100")) == (other.modules, ())


@pytest.mark.parametrize(
    ("changed", "most"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 256),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32}}, 128),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, 64),
        ({"rope_scaling": None}, 64),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 64),
    ],
)
def test_rotary_positions_reach_as_far_as_they_are_stretched(tmp_path, changed, most):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**TINY, **changed}))
    for tokens in (most, most + 1):
        assert model_of(parse_words(f"{path}:h100,seq{tokens}")).tokens == tokens
    assert not remarks(f"{path}:h100,seq{most}")
    (said,) = remarks(f"{path}:h100,seq{most + 1}")
    assert f"{path} has positions for {most} tokens" in said


@pytest.mark.parametrize("words", ["llama3-8b:h100,seq32768,bf16", "gpt2:h100,seq2048", "bert-base:h100,seq1024"])
def test_samples_beyond_the_positions_are_counted_with_a_note(words):
    """Attention grows by the square of the tokens; a learned table of positions gets as many rows."""
    model, cluster = model_of(parse_words(words)), osf.load_cluster("nccl:h100x8,400Gbps")
    half = model_of(parse_words(words.replace(f"seq{model.tokens}", f"seq{model.tokens // 2}")))
    scores, fewer = (sum(one.operations for own in m.modules for one in own.scores) for m in (model, half))
    assert scores == pytest.approx(4 * fewer, rel=0.01)
    tables = [shape[0] for module in model.modules for _, shape in module.parameters if "position" in module.name]
    assert tables in ([], [model.tokens])
    (found,) = osf.compare(osf.load_workload(words), cluster, 16, ["ddp"]).predictions
    name, tokens = words.partition(":")[0], f"{model.tokens:,}"
    tuned = osf.tune(osf.load_workload(words), cluster, 16, "ddp")
    for notes in (found.notes, tuned.notes):
        assert any(name in note and "max_position_embeddings" in note and tokens in note for note in notes)


def test_defaults_are_those_of_the_class(tmp_path):
    """Of fields that a configuration leaves out, as transformers writes none that have the usual value."""
    path, said = tmp_path / "config.json", {key: TINY[key] for key in TINY if key != "num_key_value_heads"}
    shapes = {}
    for kind, heads in (("llama", 4), ("qwen3", 64), ("gemma2", 4)):
        path.write_text(json.dumps({**said, "model_type": kind, "num_attention_heads": heads}))
        modules = model_of(parse_words(f"{path}:h100")).modules
        shapes[kind] = {module.name.rpartition(".")[2]: dict(module.parameters).get("weight") for module in modules}
    assert (shapes["llama"]["k_proj"], shapes["llama"]["lm_head"]) == ((8, 8), (100, 8))
    assert (shapes["qwen3"]["k_proj"], shapes["qwen3"]["lm_head"]) == ((32 * 128, 8), (100, 8))
    assert (shapes["gemma2"]["k_proj"], shapes["gemma2"]["lm_head"]) == ((4 * 256, 8), None)


def test_names_are_in_any_case_and_bundled_files_can_be_given_by_path(tmp_path):
    counted = {
        model_of(parse_words(f"{model}:H100")).parameters
        for model in ("GPT2", "gpt2", str(ROOT / "profiles/architectures/gpt2.json"))
    }
    assert counted == {124_439_808}


def test_every_gpu_is_whole():
    for name, gpu in GPUS.items():
        assert name == name.lower()
        assert {"float32"} <= set(gpu.rates)
        assert gpu.memory > 10**10
        assert 10**11 < gpu.bandwidth < 10**14, f"{name}: bytes per second of its memory"


@pytest.mark.parametrize("path", sorted((ROOT / "profiles/architectures").glob("*.json")), ids=lambda path: path.stem)
def test_every_bundled_architecture_has_its_published_parameters(path):
    published = json.loads(path.read_text())
    assert published["source"]
    assert model_of(parse_words(f"{path.stem}:h100")).parameters == published["parameters"]


def test_published_figures_are_met_as_far_as_those_are_rounded():
    """Of parameters in all and of those that a token passes, of which some makers leave out the embedding or head."""
    told = {path.stem: json.loads(path.read_text()) for path in (ROOT / "profiles/architectures").glob("*.json")}
    rounded = {name: one for name, one in told.items() if "published" in one}
    assert len(rounded) >= 25
    for name, one in rounded.items():
        model = model_of(parse_words(f"{name}:h100"))
        ends = {"embedding": "embed_tokens", "head": "lm_head"}
        left = tuple(ends[part] for part in one.get("active_without", ()))
        active = model.active - sum(module.elements for module in model.modules if module.name.endswith(left or "-"))
        for published, counted in ((one["published"], model.parameters), (one.get("active"), active)):
            if published:
                unit = 10 ** (len(str(published)) - len(str(published).rstrip("0")))
                assert abs(counted - published) < min(unit, 0.05 * published), (name, counted)


def test_models_of_mpt_are_counted_as_composer_ran_them():
    assert parse_words("mosaicml/mpt-7b:a100").setting.stack == parse_words("mpt-7b:a100").setting.stack == "composer"
    assert parse_words("mpt-7b:a100,stack=eager").setting.stack == "eager"
    assert any("Composer" in said for said in remarks("mpt-7b:a100"))
    assert not any("Composer" in said for said in remarks("mpt-7b:a100,stack=te"))


def test_the_help_of_predict_names_all_words():
    said = invoke(["predict", "--help"]).output.replace("\n", "").replace(" ", "")
    for word in (*TYPES, *STACKS, *CHECKPOINTING):
        assert word in said
