"""Parallelism of GPUs in a replica: parts add up to the model, messages are counted by hand, nonsense is refused."""

from __future__ import annotations

import json
from math import prod

import pytest

import osfmodel as osf
from osfmodel.counting.blocks import outline
from osfmodel.counting.groups import GroupMessage, Parallelism, folded_stages, shard_of, stages_of
from osfmodel.counting.words import model_of, parse_words
from tests.counting.test_words import TINY


@pytest.fixture
def tiny(tmp_path):
    """A tiny Llama for samples of 16 tokens."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    return model_of(parse_words(f"{path}:h100,seq16"))


def operations(model):
    return sum(one.operations for module in model.modules for one in (*module.products, *module.scores))


def test_a_tensor_group_shares_matrices_and_not_norms(tiny):
    part = shard_of(tiny, Parallelism(tensor=2))
    norms = sum(prod(shape) for module in tiny.modules for _, shape in module.parameters if len(shape) == 1)
    assert part.model.parameters == (tiny.parameters - norms) // 2 + norms
    assert operations(part.model) * 2 == operations(tiny)
    shapes = {module.name.split(".")[-1]: module.parameters[0][1] for module in part.model.modules}
    assert shapes["q_proj"] == (4, 8)
    assert shapes["o_proj"] == (8, 4)
    assert shapes["up_proj"] == (12, 8)
    assert shapes["down_proj"] == (8, 12)
    assert shapes["embed_tokens"] == (50, 8)
    assert shapes["lm_head"] == (50, 8)


def test_a_tensor_group_gathers_before_each_part_and_scatters_behind_it(tiny):
    part = shard_of(tiny, Parallelism(tensor=2))
    both = (
        GroupMessage("tensor", 2, "all_gather", 16 * 8, 1, 1),
        GroupMessage("tensor", 2, "reduce_scatter", 16 * 8, 1, 1),
    )
    for block in (0, 1):
        assert part.sent[f"model.layers.{block}.self_attn.o_proj"] == both
        assert part.sent[f"model.layers.{block}.mlp.down_proj"] == both
    assert part.sent["model.embed_tokens"] == (
        GroupMessage("tensor", 2, "reduce_scatter", 128, 1, 0), GroupMessage("tensor", 2, "all_gather", 128, 0, 1),
    )  # fmt: skip
    assert part.sent["lm_head"] == (
        GroupMessage("tensor", 2, "all_gather", 128, 1, 0), GroupMessage("tensor", 2, "reduce_scatter", 128, 0, 1),
    )  # fmt: skip
    assert sum(bool(one) for one in part.sent.values()) == 6


def test_a_transposed_matrix_is_shared_alike():
    model = model_of(parse_words("gpt2:h100,seq128"))
    part = shard_of(model, Parallelism(tensor=2))
    shapes = {module.name: dict(module.parameters) for module in part.model.modules}
    block = "transformer.h.0"
    assert shapes[f"{block}.attn.c_attn"] == {"weight": (768, 3 * 768 // 2), "bias": (3 * 768 // 2,)}
    assert shapes[f"{block}.mlp.c_proj"] == {"weight": (4 * 768 // 2, 768), "bias": (768,)}


@pytest.mark.parametrize("name", ["llama3-8b", "phi3-medium"])
def test_a_tensor_group_copies_the_heads_of_keys_that_are_fewer(name):
    """Each GPU has one whole head of keys, its copies count as if the model had as many of them."""
    model = model_of(parse_words(f"{name}:h100,seq160"))
    heads = {"llama3-8b": (32, 8), "phi3-medium": (40, 10)}[name]
    size = heads[1] * 2
    part = shard_of(model, Parallelism(tensor=size, context=2))
    own = {module.name: module for module in part.model.modules}
    whole = {module.name: module for module in model.modules}
    block, head = "model.layers.0.self_attn.", 128
    queries = heads[0] // size * head
    if name == "llama3-8b":
        found = [own[f"{block}{kind}_proj"].parameters[0][1][0] for kind in "qkv"]
        assert found == [queries, head, head]
    else:
        assert own[f"{block}qkv_proj"].parameters[0][1][0] == queries + 2 * head
        assert own[f"{block}qkv_proj"].products[0].columns == queries + 2 * head
    gathered = next(one for one in part.sent[f"{block}o_proj"] if one.group == "context")
    assert gathered.elements == 2 * head * 160
    attended = own[f"{block}o_proj"]
    kept = whole[f"{block}o_proj"].kept + 2 * head * heads[1] * 160
    assert attended.kept == kept // (2 * size)
    fewer = shard_of(model, Parallelism(tensor=heads[1]))
    assert fewer.model.parameters < 2 * part.model.parameters < 1.05 * fewer.model.parameters


def test_a_context_group_shares_tokens_and_gathers_keys_and_values(tiny):
    part = shard_of(tiny, Parallelism(context=4))
    assert part.model.parameters == tiny.parameters
    assert operations(part.model) * 4 == operations(tiny)
    keys = 2 * 4 * 16  # keys and values, two heads of width 2, tokens
    assert part.sent["model.layers.0.self_attn.o_proj"] == (
        GroupMessage("context", 4, "all_gather", keys, 1, 1), GroupMessage("context", 4, "reduce_scatter", keys, 0, 1),
    )  # fmt: skip
    both = shard_of(tiny, Parallelism(tensor=2, context=2))
    assert both.sent["model.layers.0.self_attn.o_proj"][:2] == (
        GroupMessage("tensor", 2, "all_gather", 8 * 8, 1, 1), GroupMessage("tensor", 2, "reduce_scatter", 8 * 8, 1, 1),
    )  # fmt: skip
    assert both.sent["model.layers.0.self_attn.o_proj"][2].elements == keys // 2


def test_a_column_parallel_layer_keeps_its_input_as_it_was_gathered(tiny):
    kept = {module.name.split(".")[-1]: module.kept for module in shard_of(tiny, Parallelism(tensor=2)).model.modules}
    whole = {module.name.split(".")[-1]: module.kept for module in tiny.modules}
    assert {name: kept[name] for name in ("q_proj", "k_proj", "gate_proj", "up_proj")} == {
        name: whole[name] for name in ("q_proj", "k_proj", "gate_proj", "up_proj")
    }
    assert {name: 2 * kept[name] for name in ("o_proj", "down_proj", "input_layernorm")} == {
        name: whole[name] for name in ("o_proj", "down_proj", "input_layernorm")
    }


def test_the_stages_of_a_pipeline_are_the_whole_model(tiny):
    stages, places = stages_of(tiny, Parallelism(pipeline=2))
    assert places == [0, 1]
    assert [module for part in stages for module in part.model.modules] == list(tiny.modules)
    assert [part.model.blocks for part in stages] == [("model.layers.0",), ("model.layers.1",)]
    names = {part.model.modules[0].name for part in stages}
    assert names == {"model.embed_tokens", "model.layers.1.input_layernorm"}


@pytest.mark.parametrize(("stages", "blocks"), [(2, [18, 14]), (4, [9, 9, 8, 6]), (8, [5, 4, 4, 5, 4, 4, 4, 2])])
def test_stages_by_cost_end_with_the_block_that_passes_their_share(stages, blocks):
    """A block of Llama-3-8B costs 4 x 4096 x 4096 + 3 x 4096 x 14336 elements, its head 2.16 times as many.

    So each of two stages has a share of 17.1 blocks, which the 18th passes, and each of eight one of 4.27.
    """
    model = model_of(parse_words("llama3-8b:h100,seq128"))
    parts = [shard_of(model, Parallelism(pipeline=stages), stage, by_cost=True).model for stage in range(stages)]
    assert [len(part.blocks) for part in parts] == blocks
    assert sum(part.parameters for part in parts) == model.parameters


def test_each_stage_by_cost_has_a_unit_where_the_head_is_large():
    model, groups = model_of(parse_words("llama3.2-1b:h100,seq128")), Parallelism(pipeline=16)
    parts = [shard_of(model, groups, stage, by_cost=True).model for stage in range(16)]
    assert [len(part.blocks) for part in parts] == [2] + [1] * 14 + [0]


def test_stages_that_differ_in_names_alone_are_divided_once():
    model, groups = model_of(parse_words("gpt2:h100,seq128")), Parallelism(tensor=2, pipeline=7)
    shards, places = stages_of(model, groups)
    assert places == [0, 1, 1, 1, 1, 1, 2]
    for stage, place in enumerate(places):
        sizes = [module.elements for module in shard_of(model, groups, stage).model.modules]
        assert sizes == [module.elements for module in shards[place].model.modules]


def test_a_tied_head_on_another_stage_has_a_matrix_of_its_own():
    model = model_of(parse_words("gpt2:h100,seq128"))
    (first, last), _ = stages_of(model, Parallelism(pipeline=2))
    table = model.modules[0].elements
    assert first.model.parameters + last.model.parameters == model.parameters + table


def test_experts_are_shared_and_each_token_is_sent_there_and_back():
    model = model_of(parse_words("mixtral-8x7b:h100,seq128"))
    part = shard_of(model, Parallelism(expert=4))
    name = "model.layers.0.mlp.experts"
    (whole,) = (module for module in model.modules if module.name == name)
    (mine,) = (module for module in part.model.modules if module.name == name)
    assert mine.elements * 4 == whole.elements
    assert [shape for _, shape in mine.parameters] == [(2 * 2 * 14336, 4096), (2 * 4096, 14336)]
    assert operations(part.model) == operations(model)  # of as many tokens, by fewer experts
    assert part.sent[name] == (GroupMessage("expert", 4, "all_gather", 2 * 128 * 4096, 2, 2, 2),)


@pytest.mark.parametrize("name", ["gpt2", "pythia-1b", "bert-base", "t5-base", "mpt-125m", "gemma2-2b", "phi3-mini"])
def test_parts_of_every_family_add_up(name):
    model = model_of(parse_words(f"{name}:h100,seq128"))
    part = shard_of(model, Parallelism(tensor=2, context=2))
    assert operations(part.model) * 4 == pytest.approx(operations(model), rel=0.01)
    matrices = sum(prod(shape) for module in model.modules for _, shape in module.parameters if len(shape) > 1)
    held = sum(prod(shape) for module in part.model.modules for _, shape in module.parameters if len(shape) > 1)
    assert held * 2 == pytest.approx(matrices, rel=0.01)
    assert any(one.group == "tensor" for sent in part.sent.values() for one in sent)
    assert any(one.group == "context" for sent in part.sent.values() for one in sent)


@pytest.mark.parametrize(
    ("name", "groups", "said"),
    [
        ("llama3-8b", Parallelism(tensor=3), "the 32 attention heads of llama3-8b cannot be divided by 3"),
        ("llama3-8b", Parallelism(context=3), "the 128 tokens of llama3-8b cannot be divided by 3"),
        ("llama3-8b", Parallelism(expert=8), "--ep 8: llama3-8b has no experts: leave it out"),
        ("llama3-8b", Parallelism(pipeline=64), "--pp 64: llama3-8b has only 32 blocks"),
        ("qwen2.5-14b", Parallelism(tensor=5), "the 8 key and value heads of qwen2.5-14b cannot be divided by 5"),
        ("mixtral-8x7b", Parallelism(expert=3), "the 8 experts of mixtral-8x7b cannot be divided by 3"),
        ("resnet50", Parallelism(tensor=2), "is no language model"),
    ],
)
def test_what_is_not_shared_is_refused(name, groups, said):
    sequence = "" if name == "resnet50" else ",seq128"
    with pytest.raises(osf.UsageError, match=said):
        shard_of(model_of(parse_words(f"{name}:h100{sequence}")), groups)


def test_numbers_of_gpus_are_whole_replicas():
    groups = Parallelism(tensor=8, pipeline=2, context=2)
    assert (groups.gpus, groups.replicas(64), groups.ranks(64)) == (32, 2, 4)
    with pytest.raises(osf.UsageError, match="48 GPUs cannot be divided into replicas of 32"):
        groups.replicas(48)
    with pytest.raises(osf.UsageError, match="--ep 8 does not divide the 4 data-parallel ranks"):
        Parallelism(expert=8).replicas(4)
    for size in (0, -1, 10**6, True):
        with pytest.raises(osf.UsageError, match="it must be a whole number from 1"):
            Parallelism(tensor=size)


@pytest.mark.parametrize("checkpointing", ["", ",ac=full", ",ac=selective", ",ac=budget:0.4"])
@pytest.mark.parametrize("name", ["llama3-8b", "deepseek-v3"])
def test_an_outline_of_one_block_of_each_run_is_that_of_all(name, checkpointing):
    words = parse_words(f"{name}:h100,batch2,bf16{checkpointing}")
    model = model_of(words)
    for groups in (Parallelism(), Parallelism(2, 4), Parallelism(1, 4, chunks=2), Parallelism(2, 1, 2)):
        every, folds = stages_of(model, groups)[0], folded_stages(model, groups)
        whole = sorted((*outline(one.model, words.setting), one.model.trained) for one in every)
        found = sorted((*outline(one.shard.model, words.setting, more=one.more), one.trained) for one in folds)
        assert [one[1:] for one in found] == [one[1:] for one in whole]
        assert [one[0] for one in found] == pytest.approx([one[0] for one in whole])
        assert max(len(one.shard.model.modules) for one in folds) < 30
