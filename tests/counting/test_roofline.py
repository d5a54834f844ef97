"""Times of modules by hand, their monotony, and what was learned."""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import replace

import pytest

import osfmodel as osf
from osfmodel.counting.kernels import LAUNCH, AttentionTimes, KernelTimes, Products, Residuals
from osfmodel.counting.modules import Model, Module, attention, linear
from osfmodel.counting.roofline import HALF, SCORES_BACKWARD, Roofline, timed, workload_of
from osfmodel.counting.stacks import STACKS, Learned, Traffic, learned
from osfmodel.counting.training import FULL, SELECTIVE, TrainingSetup
from osfmodel.counting.words import model_of, parse_words
from osfmodel.engine.bands import extremes
from osfmodel.entities.errors import UsageError
from osfmodel.entities.gpus import GPUS
from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "profiles"))
import make_efficiency as learning
from in_words import anchored, anchors, runs_in_words, step_time, workload_in_words

GPU = GPUS["a100"]  # 312 TFLOPS in bfloat16, 2,039 GB/s
FLAT = Residuals(((1.0, 2.0),) * 3, (round(100 * math.log(2)),) * 8)
"""All kernels take 1.99 times as long as the law."""
TWICE = math.exp(FLAT.values[0] / 100)
KERNELS = KernelTimes(
    GPU, 108, {"bfloat16": Products(FLAT, (0.0,) * 4)}, {"bfloat16": AttentionTimes(FLAT)}, FLAT, 0.0, "by hand"
)
TAUGHT = Learned(
    {"any": {"bfloat16": 0.5, "float8": 0.5}},
    {"flash": {"any": 0.25}, "cudnn": {"any": 0.25}},
    {"eager": Traffic(1.0, 0.5, 1.0), "compile": Traffic(0.5, 0.25, 1.0), "te": Traffic(0.5, 0.25, 1.0)},
    {"any": {"any": 0.3}},
)


def clock(**changes) -> Roofline:
    return Roofline(KERNELS, TAUGHT, TrainingSetup("a100", **changes))


def law(rows: float, inner: float, columns: float, rate: float = 312e12, width: int = 2) -> float:
    """Operations at the data sheet's rate, bytes at its bandwidth, and a launch."""
    moved = width * (rows * inner + inner * columns + rows * columns)
    return 2 * rows * inner * columns / rate + moved / 2039e9 + LAUNCH


def test_a_linear_layer_is_three_products_of_their_own_shapes_at_the_clock_of_training():
    module = linear("one", 4096, 1024, 512)
    forward, backward = clock(batch=2).times(module, True)
    assert forward == pytest.approx(TWICE * law(1024, 4096, 1024) / 0.5)
    assert backward == pytest.approx(TWICE * (law(1024, 1024, 4096) + law(1024, 1024, 4096)) / 0.5)


def test_a_matrix_that_is_frozen_has_no_gradient():
    module = replace(linear("one", 4096, 1024, 512), frozen=True)
    assert clock().times(module, True)[1] == pytest.approx(TWICE * law(512, 1024, 4096) / 0.5)


def test_float32_moves_twice_the_bytes_at_a_16th_of_the_rate():
    assert clock(dtype="float32").moving(100) == 2 * clock().moving(100)
    module = linear("one", 4096, 4096, 4096)
    assert clock(dtype="float32").times(module, True)[0] == pytest.approx(
        TWICE * law(4096, 4096, 4096, 19.5e12, width=4) / 0.5
    )


def test_attention_takes_its_operations_at_the_rate_of_its_library():
    scores = attention(512, 8, 64, causal=True)
    module = Module("one", (), scores=scores, moved=10**6)
    operations, moved = sum(one.operations for one in scores), 2 * 2 * 2 * 512 * 64 * 8
    alone = TWICE * (operations / 312e12 + moved / 2039e9 + LAUNCH) / 0.25
    moving = 2 * 10**6 / 2039e9
    forward, backward = clock().times(module, True)
    assert forward == pytest.approx(alone + moving)
    assert backward == pytest.approx(SCORES_BACKWARD * alone + 2 * moving)


def test_matrices_with_one_input_are_one_product_where_the_stack_fuses_them():
    model = Model("two", (linear("b.q", 4096, 512, 8192), linear("b.k", 4096, 256, 8192)), 8192, ("b",))
    apart, fused = (timed(model, clock(stack=name)) for name in ("eager", "te"))
    assert sum(map(sum, fused.values())) < sum(map(sum, apart.values()))
    forward = sum(one[0] for one in fused.values())
    assert forward == pytest.approx(TWICE * law(8192, 4096, 768) / 0.5)


def test_a_block_takes_at_least_what_the_host_does_for_it():
    model = Model("small", (linear("b.q", 8, 8, 8), linear("head", 8, 8, 8)), 8, ("b",))
    found = timed(model, clock(stack="nanotron"))
    assert sum(found["b.q"]) == pytest.approx(STACKS["nanotron"].host)
    assert sum(found["head"]) < STACKS["nanotron"].host
    assert sum(timed(model, clock(stack="nanotron", checkpointing=FULL))["b.q"]) > sum(found["b.q"])


def test_checkpointing_repeats_inside_blocks_only():
    module = linear("one", 512, 512, 512, moved=10**6)
    moving = clock().moving(10**6)
    forward, backward = clock().times(module, True)
    assert clock(checkpointing=FULL).times(module, True)[1] == pytest.approx(backward + forward)
    selective = backward + moving + HALF * (forward - moving)
    assert clock(checkpointing=SELECTIVE).times(module, True)[1] == pytest.approx(selective)
    assert clock(checkpointing=FULL).times(module, False)[1] == clock().times(module, False)[1]


def test_compiling_moves_what_was_learned():
    module = Module("norm", (("weight", (8,)),), moved=10**6)
    assert clock(stack="compile").times(module, True)[0] == clock().times(module, True)[0] / 2


@pytest.mark.parametrize("words", ["llama3-8b:h100,seq2048,batch{}", "llama3-8b:a100,seq{}048,batch1"])
def test_more_tokens_take_more_time_and_no_more_for_each_of_a_batch(words):
    times = [osf.load_workload(words.format(number)) for number in (1, 2, 4)]
    seconds = [one.forward_time + one.backward_time for one in times]
    assert seconds[0] < seconds[1] < seconds[2]
    if "batch{}" in words:
        assert seconds[2] <= 4 * seconds[0]
    else:
        assert seconds[2] > 2 * seconds[1] * 0.9  # attention grows by the square


def test_what_no_run_taught_is_doubted_more():
    taught = learned()
    own, elsewhere = taught.doubts["h100"]["compile"], taught.doubts["any"]["any"]
    assert taught.doubt("h100", "compile", "float8", False) == taught.doubt("h200", "compile", "bfloat16", False) == own
    assert taught.doubt("h100", "te", "float8", True) == max(own, taught.doubts["experts"]["any"])
    assert taught.doubt("b200", "te", "mxfp8", False) == taught.doubts["b200"]["te"] < elsewhere
    for gpu, stack, dtype in (
        ("mi300x", "compile", "bfloat16"),
        ("l40s", "te", "bfloat16"),
        ("h100", "nanotron", "float8"),
        ("b200", "compile", "bfloat16"),  # the GPU and the stack are known, but not together
        ("b200", "te", "float8-rowwise"),
        ("b200", "te", "nvfp4"),
    ):
        assert taught.doubt(gpu, stack, dtype, False) == elsewhere > own
    assert taught.clock("a100-64gb", "bfloat16") == taught.clocks["a100"]["bfloat16"]
    assert taught.clock("mi300x", "bfloat16") == taught.clocks["any"]["bfloat16"]


def test_the_doubt_is_in_the_band():
    one = next(one for one in runs_in_words() if one.smallest and one.source == "modalities-leonardo")
    workload = workload_of(one.model, one.setting, "said", TAUGHT)
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
    for part in ("clocks", "attention", "passes", "recipes"):
        assert made[part].keys() == bundled[part].keys()
        for name, row in made[part].items():
            assert row == pytest.approx(bundled[part][name], rel=0.02), name


def test_a_row_is_learned_from_as_it_is_predicted():
    """The parts of a row add up to the step that scale predicts: what is fitted is what users get."""
    one = next(one for one in learning.stated() if one.source == "simumax" and one.groups.pipeline == 2)
    other = TAUGHT._replace(clocks={"any": {"bfloat16": 0.7, "float8": 0.7}}, doubts={"any": {"any": 0.0}})
    row = learning.row_of_stated(one)
    assert row.computing(other) + row.rest == pytest.approx(learning.predicted(one, other), rel=0.02)


@pytest.mark.parametrize(
    "words", ["llama3-8b:h100,seq2048,batch2,bf16,ac=full", "resnet50:a100,batch8,bf16", "gpt2:t4,seq512,batch4,fp16"]
)
@pytest.mark.parametrize("batch", [1, 16])
def test_another_batch_is_as_if_it_were_counted(words, batch):
    before = osf.load_workload(words)
    counted = osf.load_workload(re.sub(r"batch[0-9]+", f"batch{batch}", words))
    for pace in (1, 1.5):
        found = osf.at_batch(before if pace == 1 else before.scaled(pace), batch, fixed=0.35)
        assert found.forward_time + found.backward_time == pytest.approx(
            pace * (counted.forward_time + counted.backward_time)
        )
        assert found.fixed_share == pytest.approx(counted.fixed_share)
        assert found.doubt == before.doubt
        assert found.ideal_time == pytest.approx(counted.ideal_time)
        assert [layer.peak_bytes for layer in found.layers] == [layer.peak_bytes for layer in counted.layers]


@pytest.mark.parametrize("words", ["llama3-8b:h100,seq2048,batch2,bf16", "gpt2:a100,seq512,batch1,bf16"])
def test_a_workload_that_was_changed_follows_its_fixed_share(words):
    """Blocks that are recomputed are in no count: times grow on the line through once and twice the batch."""
    before = osf.load_workload(words)
    changed = before.recomputing([before.segments[0].name])
    found = osf.at_batch(changed, 2 * before.batch_size)
    longer = before.fixed_share + 2 * (1 - before.fixed_share)
    assert found.forward_time == pytest.approx(longer * changed.forward_time)


@pytest.mark.parametrize("recipe", ["fp8", "fp8=rowwise", "mxfp8", "nvfp4"])
def test_attention_and_the_head_are_in_no_recipe(recipe):
    """They take as long as in bfloat16, blocks' matrices less."""
    wide, narrow = (osf.load_workload(f"llama3-8b:b200,seq8192,batch2,{dtype}") for dtype in ("bf16", recipe))
    times = [{layer.name: layer.forward_time for layer in one.layers} for one in (wide, narrow)]
    assert times[0]["lm_head.weight"] == times[1]["lm_head.weight"]
    assert times[1]["model.layers.0.mlp.up_proj.weight"] < 0.9 * times[0]["model.layers.0.mlp.up_proj.weight"]
    assert times[1]["model.layers.0.self_attn.o_proj.weight"] > 0.6 * times[0]["model.layers.0.self_attn.o_proj.weight"]


def test_a_recipe_without_a_factor_has_that_of_the_one_it_is_like():
    taught = TAUGHT._replace(recipes={"mxfp8": 1.25})
    found = [taught.slower(dtype) for dtype in ("bfloat16", "float8", "float8-rowwise", "mxfp8", "nvfp4")]
    assert found == [1, 1, 1, 1.25, 1.25]
    assert taught.clock("h100", "nvfp4") == pytest.approx(0.5 / 1.25)


def test_recipes_say_what_is_gathered_and_kept():
    """Scales of tensors alone let weights travel in float8; Transformer Engine keeps inputs as they were cast."""
    words = "llama3-8b:b200,seq4096,batch1,{},stack={}"
    loaded = {
        (dtype, stack): osf.load_workload(words.format(dtype, stack))
        for dtype in ("bf16", "fp8", "fp8=rowwise", "mxfp8", "nvfp4")
        for stack in ("compile", "te")
    }
    sent = {dtype: one.computed_in for (dtype, _), one in loaded.items()}
    assert sent == {"fp8": "float8"} | dict.fromkeys(("bf16", "fp8=rowwise", "mxfp8", "nvfp4"), "bfloat16")

    def kept(dtype, stack):
        return sum(layer.activation_bytes for layer in loaded[dtype, stack].layers)

    assert kept("fp8", "compile") == kept("bf16", "compile")
    assert kept("nvfp4", "te") < kept("fp8", "te") < kept("mxfp8", "te") < kept("bf16", "te")
    inputs = 32 * 4096 * (4096 + 4096 + 4096 + 14336)  # of queries, the output, gate and up, and down
    assert kept("bf16", "te") - kept("fp8", "te") == inputs


def test_gradients_are_never_reduced_in_float8():
    workload = osf.load_workload("llama3-8b:h100,fp8")
    for name in ("fsdp2", "zero-1", "zero-3"):
        plan = osf.make_plan(name, workload, osf.pricing_of(osf.load_cluster("nccl:h100x8,400Gbps"), 8))
        assert plan.sharding.gather_dtype == "float8"
        assert plan.sharding.reduce_dtype in ("float32", "bfloat16")


def test_a_recipes_factor_gives_the_ratio_that_was_measured():
    runs = [one for one in learning.stated() if one.source == "torchao" and ":h100" in one.words]
    rows = [learning.row_of_stated(one) for one in runs if "fp8" in one.words]
    factors = learning.recipes_of(rows)
    assert factors.keys() == {"float8-rowwise"}
    assert 1 < factors["float8-rowwise"] < 2
    taught = learning.START._replace(recipes=factors)
    assert rows[0].missed(taught) == pytest.approx(rows[1].missed(taught), abs=1e-9)


def test_norms_and_positions_are_many_kernels_in_eager_pytorch_alone():
    (found,) = (one for one in model_of(parse_words("llama3-8b:h100,seq128")).modules if one.name == "model.norm")
    assert found.unfused == 16 * 4096 * 128
    eager, composer = (clock(stack=name).times(found, True)[0] for name in ("eager", "composer"))
    assert eager - composer == pytest.approx(2 * found.unfused / 2039e9)


def test_a_gpu_of_less_power_computes_at_a_lower_clock():
    taught = learned()
    for dtype in ("bfloat16", "float8"):
        assert taught.clock("h100-96gb", dtype) == pytest.approx(taught.clock("h100", dtype) * (5 / 7) ** (1 / 3))
    assert taught.attending("h100-96gb", "flash") < taught.attending("h100", "flash")


def test_unknown_stacks_and_checkpointing_are_refused():
    for wrong in ({"stack": "jax"}, {"checkpointing": "some"}):
        with pytest.raises(UsageError, match=f"'{next(iter(wrong.values()))}' is no stack"):
            TrainingSetup("a100", **wrong)
