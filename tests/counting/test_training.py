"""Memory by how a model is trained: closed forms of a decoder's block, of logits, weights and their copies."""

from __future__ import annotations

import json

import pytest

import osfmodel as osf
from osfmodel.counting.groups import Parallelism
from osfmodel.counting.recipes import RECIPES
from osfmodel.counting.stacks import STACKS, learned
from osfmodel.counting.training import activations
from osfmodel.counting.words import model_of, parse_words
from osfmodel.entities.errors import UsageError
from osfmodel.entities.gpus import GPUS
from osfmodel.planning.scaling.replicas import replica_workload

TOKENS, WIDTH, INNER, QUERIES, KEYS, LAYERS, WORDS = 1024, 2048, 8192, 2048, 512, 16, 128_256
CLUSTER = osf.load_cluster("nccl:b200x8")


def kept(rest: str = "") -> list[int]:
    """Bytes that stay after each module of the first block of llama3.2-1b."""
    inside = "model.layers.0."
    words = parse_words(f"llama3.2-1b:h100,seq{TOKENS}{rest}")
    model = model_of(words)
    stays, _ = activations(model, words.setting)
    return [size for size, module in zip(stays, model.modules, strict=True) if module.name.startswith(inside)]


@pytest.mark.parametrize(("how", "width", "norm"), [("", 2, 6), (",stack=compile", 2, 2), (",fp32", 4, 8)])
def test_a_block_keeps_inputs_of_norms_and_products_and_all_of_its_gated_part(how, width, norm):
    """A norm that is no kernel keeps its input in float32, and what it multiplies by its weight."""
    attention = 2 * WIDTH + QUERIES + QUERIES + 2 * KEYS  # two inputs, the result, queries, keys and values
    assert sum(kept(how)) == TOKENS * (width * (attention + 4 * INNER) + norm * 2 * WIDTH)


@pytest.mark.parametrize(("words", "norm"), [("bf16,lora=8", 4), ("fp32,lora=8", 4), ("bf16", 6)])
def test_a_frozen_norm_does_not_keep_what_only_its_weight_needs(words, norm):
    parsed = parse_words(f"llama3.2-1b:h100,seq{TOKENS},{words}")
    model = model_of(parsed)
    stays, _ = activations(model, parsed.setting)
    names = [module.name for module in model.modules]
    assert stays[names.index("model.layers.8.post_attention_layernorm")] == TOKENS * WIDTH * norm


def test_whole_blocks_recomputed_keep_their_input():
    assert kept(",ac=full") == [2 * TOKENS * WIDTH, *[0] * (len(kept()) - 1)]


def test_selective_checkpointing_keeps_every_second_product_attention_and_the_input():
    second = QUERIES + KEYS + INNER + WIDTH  # queries, values, gate and the last, of seven
    assert sum(kept(",ac=selective")) == 2 * TOKENS * (WIDTH + second + QUERIES)


@pytest.mark.parametrize(("stack", "each"), [("eager", 14), ("te", 6)])
def test_logits_take_what_the_loss_of_the_stack_keeps(stack, each):
    words = parse_words(f"llama3.2-1b:h100,seq{TOKENS},stack={stack}")
    model = model_of(words)
    stays, peaks = activations(model, words.setting)
    assert peaks[-1] - sum(stays[:-1]) == TOKENS * (2 * WIDTH + each * WORDS)


def test_a_model_whose_makers_fuse_the_loss_keeps_logits_and_their_gradient():
    words = parse_words(f"mpt-125m:h100,seq{TOKENS}")
    model = model_of(words)
    stays, peaks = activations(model, words.setting)
    head = model.modules[-1]
    assert head.logits == TOKENS * head.products[0].columns
    assert peaks[-1] - sum(stays[:-1]) == 4 * head.logits + 2 * head.kept


@pytest.mark.parametrize(("stack", "weights", "state"), [("eager", None, 8), ("te", 2, 12), ("nanotron", 4, 12)])
def test_weights_in_half_precision_have_a_copy_in_the_state(stack, weights, state):
    one = osf.load_workload(f"llama3.2-1b:h100,seq{TOKENS},stack={stack}")
    parameters = one.gradient_bytes // 4
    assert (one.weight_bytes, one.state_bytes) == (weights and weights * parameters, state * parameters)
    assert osf.load_workload(f"llama3.2-1b:h100,seq{TOKENS},fp32,stack={stack}").weight_bytes is None


def test_tensor_parallelism_divides_the_inputs_that_a_stack_gathers_again():
    """Inputs of queries and of the gate: Megatron keeps a share of the tokens, torchtitan all of them."""
    words, groups = f"llama3.2-1b:b200,seq{TOKENS}", Parallelism(tensor=4)
    made = [replica_workload(f"{words},stack={stack}", CLUSTER, groups) for stack in ("compile", "te")]
    held = [
        sum(one.activation_bytes for one in workload.layers if one.name.startswith("model.layers."))
        for workload in made
    ]
    assert held[0] - held[1] == LAYERS * 2 * 2 * TOKENS * WIDTH * 3 // 4


def test_stacks_and_recipes_name_what_was_learned():
    taught = learned()
    for name, stack in STACKS.items():
        assert stack.like in taught.passes, f"learn passes of {name}: profiles/make_efficiency.py"
        assert stack.attention in taught.attention, f"learn attention of {name}: profiles/make_efficiency.py"
    for name, recipe in RECIPES.items():
        assert not recipe.like or recipe.like in RECIPES, f"{name} is like {recipe.like}, which is no recipe"


def test_a_recipe_is_slower_than_measured_kernels_in_float8_by_its_factor():
    taught = learned()
    assert taught.clock("mine.json", "float8") == taught.clock("mine.json", "bfloat16") == 1
    assert taught.clock("mine.json", "float8-rowwise") == 1 / taught.recipes["float8-rowwise"] < 1


def test_drivers_report_nearly_the_memory_of_the_data_sheet():
    """Error correction takes up to a sixteenth of GDDR6; a GB of a data sheet may be a GiB."""
    for gpu in GPUS.values():
        assert 0.93 * gpu.memory < gpu.reported < 1.08 * gpu.memory, gpu.called


@pytest.mark.parametrize(("tensor", "pipeline", "peak"), [(1, 2, 66.55), (2, 1, 60.68), (4, 1, 39.07), (8, 1, 28.29)])
def test_peaks_of_megatron_are_as_published(tmp_path, tensor, pipeline, peak):
    """GiB allocated on 8 B200 by 12 layers of Llama 3 70B, from SimuMax's measured runs; nothing is fitted to them."""
    config = {
        "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64,
        "num_hidden_layers": 12, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    groups = Parallelism(tensor=tensor, pipeline=pipeline)
    workload = replica_workload(f"{tmp_path}:b200,seq4096,batch1,stack=te", CLUSTER, groups)
    options = osf.ScaleOptions(plans=("zero-1",), groups=groups, what_if=osf.WhatIf(accumulate=4))
    found = osf.scale(workload, CLUSTER, [8], options).points[0].best.peak.bytes
    assert found / 2**30 == pytest.approx(peak, rel=0.02)


def in_blocks(how: str) -> int:
    """Bytes that stay in all blocks of llama3.2-1b."""
    words = parse_words(f"llama3.2-1b:h100,seq{TOKENS},ac={how}")
    model = model_of(words)
    stays, _ = activations(model, words.setting)
    return sum(size for size, module in zip(stays, model.modules, strict=True) if model.block_of(module))


def backward(*how: str) -> list[float]:
    """Seconds of backward under each of these."""
    return [osf.load_workload(f"llama3.2-1b:h100,seq{TOKENS},batch8,{one}").backward_time for one in how]


def test_a_portion_of_blocks_is_checkpointed_and_the_rest_keeps_all():
    """Of 16 blocks the first 4: 12 keep all, the others their input; each is repeated or not."""
    none, some, full = map(in_blocks, ("none", "full:4/16", "full"))
    assert 4 * some == 3 * none + full
    none, some, full = backward("ac=none", "ac=full:4/16", "ac=full")
    assert some == pytest.approx(0.75 * none + 0.25 * full)


def test_selective_checkpointing_of_megatron_repeats_the_core_of_attention_alone():
    plain, selective = (osf.load_workload(f"llama3.2-1b:h100,stack=te{how}") for how in ("", ",ac=selective"))
    assert [one.peak_bytes for one in selective.layers] == [one.peak_bytes for one in plain.layers]
    none, core, full = backward("stack=te", "stack=te,ac=selective", "stack=te,ac=full")
    assert none < core < none + 0.2 * (full - none)


def test_a_budget_keeps_its_part_beside_the_input_and_repeats_what_is_cheapest():
    none, full = in_blocks("none"), in_blocks("full")
    assert in_blocks("budget:1") == none
    assert in_blocks("budget:0") == full
    assert in_blocks("budget:0.25") == pytest.approx(full + 0.25 * (none - full), rel=1e-6)
    times = backward("ac=none", "ac=budget:0.9", "ac=budget:0.5", "ac=budget:0", "ac=full")
    assert times == sorted(times)
    assert times[2] - times[0] < 0.5 * (times[3] - times[0])  # the half of the bytes that is cheaper


@pytest.mark.parametrize("how", ["full:", "full:2", "budget", "budget:x", "none:0.5", "full:1/0", "budget:1.5"])
def test_a_portion_that_is_none_is_refused(how):
    with pytest.raises(UsageError, match="write ac=full:8/32"):
        parse_words(f"llama3.2-1b:h100,ac={how}")
