"""Workloads in words: counted by hand, and nonsense refused in one line."""

from __future__ import annotations

import json

import pytest

import osfmodel as osf
from osfmodel.counting.gpus import GPUS
from osfmodel.counting.words import model_of, parse_words
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("llama3-8b:h1000", "unknown GPU 'h1000': did you mean h100?"),
        ("lama3-8b:h100", "did you mean llama3-8b?"),
        ("llama3-8b:v100,bf16", "no matrix products in bfloat16"),
        ("llama3-8b:v100,fp8", "no matrix products in float8"),
        ("llama3-8b:h100,seq99999", "sequences of up to 8192 tokens"),
        ("llama3-8b:h100,batch0", "'batch0': the number must be from 1"),
        ("llama3-8b:h100,seq-5", "'seq-5': the number must be from 1"),
        ("llama3-8b:h100,seq8,seq16", "a second time"),
        ("llama3-8b:h100,bf16,fp8", "a second time"),
        ("llama3-8b:h100,ac=some", "none, selective, full"),
        ("llama3-8b:h100,fast", "'fast' is not known here: write MODEL:GPU"),
        ("llama3-8b:", "unknown GPU ''"),
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
        ({"model_type": "mamba"}, "'mamba'"),
        ({"hidden_size": None}, "has no 'hidden_size'"),
        ({"num_hidden_layers": 0}, "'num_hidden_layers' is 0"),
        ({"num_hidden_layers": "2"}, "'num_hidden_layers' is '2'"),
        ({"tie_word_embeddings": "no"}, "must be true or false"),
    ],
)
def test_a_configuration_that_cannot_be_counted_is_refused(tmp_path, changed, said):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**TINY, **changed}))
    with pytest.raises(osf.DataError) as error:
        osf.load_workload(f"{path}:h100")
    assert said in str(error.value)


def test_every_gpu_is_whole():
    for name, gpu in GPUS.items():
        assert name == name.lower()
        assert {"float32"} <= set(gpu.rates)
        assert gpu.memory > 10**10
        assert 10**11 < gpu.bandwidth < 10**13


@pytest.mark.parametrize("path", sorted((ROOT / "profiles/architectures").glob("*.json")), ids=lambda path: path.stem)
def test_every_bundled_architecture_has_its_published_parameters(path):
    published = json.loads(path.read_text())
    assert published["source"]
    assert model_of(parse_words(f"{path.stem}:h100")).parameters == published["parameters"]
