"""The roofline by hand, its monotony, and the efficiencies as they were learned."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace

import pytest

import osfmodel as osf
from osfmodel.counting.modules import Module, Product, attention, linear
from osfmodel.counting.roofline import FULL, SELECTIVE, Efficiency, Roofline, TrainingSetup, efficiency_of, workload_of
from osfmodel.engine.bands import extremes
from osfmodel.entities.gpus import GPUS
from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "profiles"))
import make_efficiency as learning
from in_words import anchored, anchors, runs_in_words, step_time, workload_in_words

HALF = Efficiency(matrix=0.5, attention=0.25, memory=0.5, doubt=0.2)
GPU = GPUS["a100"]  # 312 TFLOPS in bfloat16, 2,039 GB/s


def clock(**changes) -> Roofline:
    return Roofline(GPU, HALF, TrainingSetup("a100", **changes))


def test_a_large_product_is_bound_by_the_rate():
    by_rate = 2 * 8192 * 4096 * 4096 / (0.5 * 312e12)
    by_memory = 2 * (8192 * (4096 + 4096) + 4096 * 4096) / (0.5 * 2039e9)
    assert clock(batch=2).product(Product(4096, 4096, 4096)) == pytest.approx(by_rate + by_memory)
    assert by_memory < 0.12 * by_rate


def test_a_product_of_few_features_is_bound_by_memory():
    product = Product(10**6, 8, 8)
    moved = 2 * (10**6 * (8 + 8) + 8 * 8)  # bytes of two inputs and the output
    by_rate, by_memory = product.operations / (0.5 * 312e12), moved / (0.5 * 2039e9)
    assert clock().product(product) == pytest.approx(by_rate + by_memory)
    assert by_rate < 0.03 * by_memory


def test_float32_moves_twice_the_bytes_at_a_16th_of_the_rate():
    assert clock(dtype="float32").moving(100) == 2 * clock().moving(100)
    large = Product(10**6, 10**6, 10**6)
    assert clock(dtype="float32").product(large) == pytest.approx(16 * clock().product(large), rel=1e-3)


def test_backward_has_two_products_for_each_and_five_of_attention_for_two():
    scores = attention(512, 8, 64, causal=True)
    module = linear("one", 512, 512, 512, moved=10**6, scores=scores)
    by_hand = Roofline.product(clock(), module.products[0])
    of_scores = sum(2 * one.operations for one in scores) / 2 / (0.25 * 312e12)
    moving = 2 * 10**6 / (0.5 * 2039e9)
    forward, backward = clock().times(module, True)
    assert forward == pytest.approx(by_hand + of_scores + moving)
    assert backward == pytest.approx(2 * by_hand + 2.5 * of_scores + 2 * moving)


def test_checkpointing_repeats_inside_blocks_only():
    module = linear("one", 512, 512, 512, moved=10**6)
    moving = clock().moving(10**6)
    forward, backward = clock().times(module, True)
    assert clock(checkpointing=FULL).times(module, True)[1] == pytest.approx(backward + forward)
    assert clock(checkpointing=SELECTIVE).times(module, True)[1] == pytest.approx(backward + moving)
    assert clock(checkpointing=FULL).times(module, False)[1] == backward


def test_compiling_halves_what_moves_elements():
    module = Module("norm", (("weight", (8,)),), moved=10**6)
    assert clock(compiled=True).times(module, True)[0] == clock().times(module, True)[0] / 2


@pytest.mark.parametrize("words", ["llama3-8b:h100,seq2048,batch{}", "llama3-8b:a100,seq{}048,batch1"])
def test_more_tokens_take_more_time_and_no_more_for_each_of_a_batch(words):
    times = [osf.load_workload(words.format(number)) for number in (1, 2, 4)]
    seconds = [one.forward_time + one.backward_time for one in times]
    assert seconds[0] < seconds[1] < seconds[2]
    if "batch{}" in words:
        assert seconds[2] <= 4 * seconds[0]
    else:
        assert seconds[2] > 2 * seconds[1] * 0.9  # attention grows by the square


def test_a_hopper_reaches_a_smaller_part_than_an_ampere_and_others_are_doubted_more():
    ampere, hopper, other = efficiency_of("A100 SXM"), efficiency_of("H100 SXM"), efficiency_of("Instinct MI300X")
    assert hopper.matrix < other.matrix < ampere.matrix
    assert other.doubt > max(ampere.doubt, hopper.doubt)


def test_the_doubt_is_in_the_band():
    one = next(one for one in runs_in_words() if one.smallest and one.source == "modalities-leonardo")
    workload = workload_of(one.model, one.setting, "said", replace(HALF, doubt=0.3))
    assert workload.doubt == 0.3
    plan = osf.make_plan("fsdp2", workload, osf.pricing_of(osf.load_cluster(one.run.cluster), 8))
    pricing = osf.pricing_of(osf.load_cluster(one.run.cluster), 8)
    timeline = osf.predict_timeline(workload, plan, pricing)
    fast, slow = extremes(workload, plan, timeline, pricing)
    none = extremes(replace(workload, doubt=0.0), plan, timeline, pricing)
    assert fast < none[0] / 1.1
    assert slow > none[1] * 1.1


def test_an_anchor_meets_its_run():
    one = next(iter(anchors(runs_in_words()).values()))
    factor = anchored(one, workload_in_words(one))
    assert step_time(one, workload_in_words(one).scaled(factor)) == pytest.approx(one.run.iteration_time, rel=1e-5)
    assert factor != pytest.approx(1, abs=1e-3)


def test_counted_operations_are_those_of_published_parameters():
    """6 for each parameter that is multiplied and token, 12 for each layer, feature and token of attention."""
    one = next(one for one in runs_in_words() if one.run.workload == "mpt-7b" and one.model.tokens == 2048)
    published = 6 * (32 * 12 * 4096**2 + 50368 * 4096) + 12 * 32 * 4096 * 2048
    assert one.model.utilised == 2048 * published


@pytest.mark.long
def test_efficiencies_are_what_the_script_learns():
    made, bundled = learning.document(), json.loads((ROOT / "profiles/efficiency.json").read_text())
    assert made["sources"] == bundled["sources"]
    assert made["efficiencies"].keys() == bundled["efficiencies"].keys()
    for name, row in made["efficiencies"].items():
        assert row == pytest.approx(bundled["efficiencies"][name], rel=0.02), name


@pytest.mark.parametrize(
    "words", ["llama3-8b:h100,seq2048,batch2,bf16,ac=full", "resnet50:a100,batch8,bf16", "gpt2:t4,seq512,batch4,fp16"]
)
@pytest.mark.parametrize("batch", [1, 16])
def test_another_batch_is_as_if_it_were_counted(words, batch):
    before = osf.load_workload(words)
    found = osf.at_batch(before, batch, fixed=0.35)
    counted = osf.load_workload(re.sub(r"batch[0-9]+", f"batch{batch}", words))
    assert found.forward_time + found.backward_time == pytest.approx(counted.forward_time + counted.backward_time)
    assert found.fixed_share == pytest.approx(counted.fixed_share)
    assert found.doubt == before.doubt
    assert found.ideal_time == pytest.approx(counted.ideal_time)
    assert [layer.peak_bytes for layer in found.layers] == [layer.peak_bytes for layer in counted.layers]


def test_attention_and_the_head_are_not_in_float8():
    """They take as long as in bfloat16, blocks' matrices half of that, and nobody learned from such runs."""
    wide, narrow = (osf.load_workload(f"llama3-8b:h100,seq8192,batch2,{dtype}") for dtype in ("bf16", "fp8"))
    times = [{layer.name: layer.forward_time for layer in one.layers} for one in (wide, narrow)]
    assert times[0]["lm_head.weight"] == times[1]["lm_head.weight"]
    assert times[1]["model.layers.0.mlp.up_proj.weight"] < 0.6 * times[0]["model.layers.0.mlp.up_proj.weight"]
    assert times[1]["model.layers.0.self_attn.o_proj.weight"] > 0.6 * times[0]["model.layers.0.self_attn.o_proj.weight"]
    assert narrow.doubt > wide.doubt
