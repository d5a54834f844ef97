"""Fine-tuning in words: adapters as PEFT has them, and what backward computes and keeps behind frozen parameters."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from math import prod

import pytest
from click.testing import CliRunner

import osfmodel as osf
from osfmodel.cli import main
from osfmodel.counting.config import Config
from osfmodel.counting.families import MODEL_FAMILIES
from osfmodel.counting.finetuning import TARGETS, FineTuning, fine_tuned
from osfmodel.counting.groups import Parallelism, shard_of
from osfmodel.counting.modules import Model, Product, embedding, head, linear
from osfmodel.counting.remarks import remarks
from osfmodel.counting.roofline import PACKED
from osfmodel.counting.words import model_of, parse_words
from osfmodel.engine.memory import memory_of
from osfmodel.engine.strategies.fully_sharded import ShardedStep
from tests.commands import invoke
from tests.conftest import ROOT
from tests.counting.libraries import LIBRARIES, kept_by, library_of

ROWS, WIDTH, INNER = 3, 8, 32
TWO_LAYERS = Model(
    "two", (linear("first", WIDTH, INNER, ROWS), linear("second", INNER, WIDTH, ROWS)), tokens=ROWS, blocks=()
)
ONE_PRODUCT = 2 * ROWS * WIDTH * INNER


@pytest.mark.parametrize(
    ("frozen", "backward", "kept"),
    [
        (("first",), 1, ROWS * INNER),  # the weight of the second alone: nothing before it is trained
        (("second",), 2, ROWS * WIDTH),  # the input of the second, and the weight of the first
    ],
)
def test_backward_multiplies_for_what_is_trained_and_what_leads_to_it(frozen, backward, kept):
    model = fine_tuned(TWO_LAYERS, "", FineTuning(frozen=frozen))
    assert model.operations == (2 + backward) * ONE_PRODUCT
    assert sum(module.kept for module in model.modules) == kept
    assert model.trained == WIDTH * INNER
    assert [module.frozen for module in model.modules] == [module.name in frozen for module in model.modules]


def test_an_adapter_adds_its_products_and_keeps_its_input():
    model = fine_tuned(TWO_LAYERS, "", FineTuning(rank=2, everywhere=True))
    adapter = 2 * ROWS * 2 * (WIDTH + INNER)
    # Of the first: forward; weights of both matrices and the input of B. Of the second: inputs of all as well.
    first, second = adapter + adapter + 2 * ROWS * 2 * INNER, 3 * adapter
    assert model.operations == 2 * ONE_PRODUCT + ONE_PRODUCT + first + second
    assert model.trained == 2 * 2 * (WIDTH + INNER)
    assert sum(module.kept for module in model.modules) == ROWS * (WIDTH + INNER + 2 * 2)


def test_modules_side_by_side_keep_their_input_once():
    """Of queries, keys and values; with adapters beside any of them it is kept, else not."""
    tokens, layers, width, inner = 8, 16, 2048, 8192
    few, all_, last = (
        sum(module.kept for module in model_of(parse_words(f"llama3.2-1b:h100,seq{tokens},{rest}")).modules)
        for rest in ("lora=1", "lora=1:all-linear", "frozen=embeddings+model.layers")
    )
    # Five more results of A, and inputs of the feed-forward part: one of its first two matrices, one of the last.
    assert all_ - few == tokens * layers * (5 + width + inner)
    assert last == tokens * width, "the norm's input: the tied head is frozen"


def test_frozen_weights_take_memory_and_neither_state_nor_messages():
    full, lora, packed = (
        osf.load_workload(f"llama3-8b:h100,seq4096,bf16{rest}") for rest in ("", ",lora=16", ",qlora=16:all-linear")
    )
    assert lora.gradient_bytes == 4 * 6_815_744
    assert lora.state_bytes == 8 * 6_815_744
    assert lora.fixed_bytes == 2 * 8_030_261_248
    assert full.fixed_bytes is None
    matrices = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    assert packed.fixed_bytes == pytest.approx(2 * (8_030_261_248 - matrices) + PACKED * matrices)
    plain = osf.load_workload("llama3-8b:h100,seq4096,bf16,lora=16:all-linear")
    assert plain.forward_time < packed.forward_time < 1.1 * plain.forward_time
    assert plain.backward_time < packed.backward_time < 1.1 * plain.backward_time
    assert lora.backward_time < 0.75 * full.backward_time


def test_a_whole_frozen_part_is_left_out_of_backward():
    """Blocks under the first that is trained have no backward, and keep nothing."""
    lower = "+".join(["embeddings", *(f"model.layers.{number}" for number in range(8))])
    workload = osf.load_workload(f"llama3.2-1b:h100,seq512,bf16,frozen={lower}")
    below = [layer for layer in workload.layers if layer.name.split(".")[2:3] in [[str(one)] for one in range(8)]]
    assert below
    assert {(layer.backward_time, layer.gradient_bytes, layer.activation_bytes) for layer in below} == {(0.0, 0, 0)}
    trained = {layer.name.split(".")[2] for layer in workload.layers if layer.gradient_bytes and "layers" in layer.name}
    assert trained == {str(number) for number in range(8, 16)}


def test_a_tied_head_is_frozen_with_its_table():
    table, top = embedding("table", 100, WIDTH, ROWS), head("head", WIDTH, 100, ROWS, tied=True)
    model = Model("tied", (table, linear("middle", WIDTH, WIDTH, ROWS), top), ROWS, ())
    tuned = fine_tuned(model, "", FineTuning(frozen=("embeddings",)))
    assert [(module.frozen, module.passes) for module in tuned.modules] == [(True, 0), (False, 1), (True, 1)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("llama3-8b:h100,lora=0", "the rank must be from 1 to"),
        ("llama3-8b:h100,lora=8,qlora=8", "a second time"),
        ("llama3-8b:h100,lora=8:some", "write lora=RANK or lora=RANK:all-linear"),
        ("llama3-8b:h100,frozen=", "write frozen=embeddings, frozen=tower or a module"),
        ("llama3-8b:h100,frozen=model.layer.0", "did you mean model.layers.0"),
        ("llama3-8b:h100,frozen=tower", "llama3-8b has no vision or audio tower: leave frozen=tower out"),
        ("qwen3-30b-a3b:h100,lora=8", "write lora=8:all-linear"),
        ("llama3-8b:h100,loar=16", "did you mean lora=16?"),
        ("llama3-8b:h100,frozen=model+lm_head", "nothing of llama3-8b is left to train"),
        ("phi3-mini:h100,lora=8", "write lora=8:all-linear"),
        ("llama3-8b:h100,fp8,qlora=8", "leave fp8 out"),
        ("llama3-8b:h100,fp8=rowwise,qlora=8", "leave fp8=rowwise out"),
        ("dlrm:h100,lora=8", "write lora=8:all-linear"),
    ],
)
def test_impossible_fine_tuning_gets_one_line(words, said):
    with pytest.raises(osf.UsageError) as error:
        osf.load_workload(words)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def adapted(config, rank, everywhere, device="meta"):
    """The library's model of a configuration with PEFT's adapters."""
    return with_adapters(library_of(config, device), rank, everywhere)


def with_adapters(model, rank, everywhere):
    """A model with PEFT's adapters."""
    peft = pytest.importorskip("peft")
    chosen = "all-linear" if everywhere else None
    return peft.get_peft_model(model, peft.LoraConfig(r=rank, target_modules=chosen), autocast_adapter_dtype=False)


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("name", ["llama3.2-1b", "gpt2", "bert-base", "t5-small", "qwen3-0.6b", "mpt-1b", "pythia-1b"])
def test_as_many_parameters_train_as_peft_reports(name, everywhere):
    config = json.loads((ROOT / f"profiles/architectures/{name}.json").read_text())["config"]
    trained, _ = adapted(config, 8, everywhere).get_nb_trainable_parameters()
    assert model_of(parse_words(f"{name}:h100,lora=8{':all-linear' * everywhere}")).trained == trained


EXPERTS = ("mixtral", "qwen3_moe", "qwen2_moe", "olmoe", "deepseek_v3", "glm4_moe", "gpt_oss", "llama4_text")


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", EXPERTS)
def test_adapters_beside_experts_are_those_of_peft(kind):
    """By name and shape; some types have them on their experts and router, others only on linear layers."""
    config = {"model_type": kind, **LIBRARIES[kind].small(random.Random(f"experts {kind}"))}
    theirs = adapted(config, 3, everywhere=True)
    base = MODEL_FAMILIES[kind].build(Config("small", config), 16)
    ours = fine_tuned(base, kind, FineTuning(rank=3, everywhere=True))
    assert {
        f"base_model.model.{module.name}.{name}": shape
        for module in ours.modules
        for name, shape in module.parameters
        if not module.frozen
    } == {name: tuple(one.shape) for name, one in theirs.named_parameters() if one.requires_grad}


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe"])
def test_defaults_beside_experts_are_those_of_their_table(kind):
    """PEFT 0.21 with transformers 5 finds none by itself for Mixtral, of which its table says queries and values."""
    peft = pytest.importorskip("peft")
    config = {"model_type": kind, **LIBRARIES[kind].small(random.Random(kind))}
    names = TARGETS.get(kind, ("q_proj", "v_proj"))
    theirs = peft.get_peft_model(library_of(config), peft.LoraConfig(r=3, target_modules=list(names)))
    assert names == ("q_proj", "v_proj")
    if kind in TARGETS:
        base = MODEL_FAMILIES[kind].build(Config("small", config), 16)
        assert fine_tuned(base, kind, FineTuning(rank=3)).trained == theirs.get_nb_trainable_parameters()[0]


def test_adapters_added_to_weights_keep_them_once_more_and_spare_no_product():
    """The product of both matrices for each expert and a second copy of all of them are the same for any batch."""
    words = "qwen3-30b-a3b:h100,seq512,bf16,lora=8:all-linear"
    tuned, full = model_of(parse_words(words)), model_of(parse_words("qwen3-30b-a3b:h100,seq512"))
    before = next(module for module in full.modules if module.experts)
    experts = next(module for module in tuned.modules if module.name == before.name)
    assert (experts.frozen, experts.passes, experts.kept) == (True, 2, before.kept)
    pairs = [module for module in tuned.modules if module.name.startswith(f"{before.name}.") and module.products]
    assert [module.products for module in pairs] == [(Product(1536, 16, 2048, 128),), (Product(2048, 8, 768, 128),)]
    assert sum(module.kept for module in pairs) == before.elements
    one, four = (osf.load_workload(f"{words},batch{batch}") for batch in (1, 4))
    copies = [sum(layer.activation_bytes for layer in of.layers if "experts" in layer.name and "lora_B" in layer.name)
              for of in (one, four)]  # fmt: skip
    assert copies == [2 * 48 * before.elements] * 2
    assert "a second copy of these is kept" in " ".join(remarks(words))


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2", "bert", "mpt"])
def test_a_real_step_sends_and_computes_what_is_predicted(kind, everywhere):
    """On the CPU: gradients by name and size, and operations of products with parameters in forward and backward."""
    config = {"model_type": kind, **LIBRARIES[kind].small(random.Random(f"lora {kind}"))}
    theirs = adapted(config, 2, everywhere, "cpu")
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    ours = fine_tuned(
        MODEL_FAMILIES[kind].build(Config("small", config), 16), kind, FineTuning(rank=2, everywhere=everywhere)
    )
    positional, keywords = LIBRARIES[kind].inputs(config, 16)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        result = theirs(*positional, **keywords)
        sum(one.float().sum() for one in result.to_tuple() if torch.is_tensor(one) and one.requires_grad).backward()
    sent = {name: one.numel() for name, one in theirs.named_parameters() if one.grad is not None}
    assert sent == {
        f"base_model.model.{module.name}.{name}": prod(shape)
        for module in ours.modules
        for name, shape in module.parameters
        if not module.frozen
    }
    counted = {str(name): count for name, count in counter.get_flop_counts()["Global"].items()}
    inside = sum(count for name, count in counted.items() if "bmm" in name)
    scores = [product.operations * (1 + ours.causal) for module in ours.modules for product in module.scores]
    # Keys of the first block with a matrix of their own, and nothing trained before it, need no gradient.
    spared = scores[0] if kind in ("llama", "qwen3", "bert") and not everywhere else 0
    products = sum((1 + module.passes) * sum(one.operations for one in module.products) for module in ours.modules)
    assert products == sum(counted.values()) - inside
    assert 3 * sum(scores) - spared == inside
    assert ours.utilised == products + 3 * sum(scores)


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("everywhere", [False, True])
def test_about_as_much_is_kept_with_adapters_as_autograd_keeps(everywhere):
    config = {
        "model_type": "bert", "hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 4,
        "num_hidden_layers": 4, "vocab_size": 64, "max_position_embeddings": 512, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    build = MODEL_FAMILIES["bert"].build
    ours, full = (
        sum(module.kept for module in model.modules)
        for base in [build(Config("small", config), 512)]
        for model in (fine_tuned(base, "bert", FineTuning(rank=4, everywhere=everywhere)), base)
    )
    theirs = kept_by(config, 512, lambda model: with_adapters(model, 4, everywhere))
    assert ours == pytest.approx(theirs, rel=0.06)
    assert everywhere or theirs < 0.9 * full


def test_fsdp_shards_and_gathers_frozen_parameters_and_reduces_none():
    workload = osf.load_workload("llama3.2-1b:h100,seq512,bf16,lora=16")
    cluster = osf.load_cluster("nccl:h100x8,400Gbps")
    pricing = osf.pricing_of(cluster, 16)
    block = 2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192 + 2 * 2048
    adapters = 16 * (2048 + 2048) + 16 * (2048 + 512)
    step = ShardedStep(workload, osf.make_plan("fsdp2", workload, pricing), pricing)
    assert set(step.gathered) == {2 * (block + adapters)}
    assert set(step.reducing) == {4 * adapters}
    assert step.shard_bytes() == 16 * (2 * block + 4 * adapters) // 16
    outside = 2 * (128256 * 2048 + 2048)
    held = {plan: lasting(workload, plan, pricing) for plan in ("ddp", "fsdp2", "fsdp1", "hsdp", "zero-3")}
    assert held["ddp"]["buffers"] == held["zero-3"]["buffers"] == workload.fixed_bytes == 16 * 2 * block + outside
    assert {held[plan]["buffers"] for plan in ("fsdp2", "fsdp1", "hsdp")} == {outside}
    assert held["hsdp"]["weights"] == 2 * held["fsdp2"]["weights"]


def lasting(workload, name, pricing):
    """Bytes by owner at the highest moment of a step."""
    plan = osf.make_plan(name, workload, pricing)
    timeline = osf.predict_timeline(workload, plan, pricing)
    return memory_of(workload, plan, timeline, pricing.workers).peak.held


def test_a_note_says_which_frozen_parameters_are_not_sharded():
    run = CliRunner()
    words = ["memory", "llama3.2-1b:h100,seq512,lora=8", "--cluster", "nccl:h100x8,400Gbps", "--workers", "8", "--plan"]
    fsdp, zero, ddp = (
        run.invoke(main, [*words, plan]).stdout.replace("\n", " ") for plan in ("fsdp2", "zero-3", "ddp")
    )
    assert "501.0 MiB of frozen parameters lie outside trained blocks: they are counted as whole" in fsdp
    assert "2.302 GiB of frozen parameters are counted as whole" in zero
    assert "frozen" not in ddp


def test_memory_of_other_experts_is_not_called_frozen():
    words = ["scale", "mixtral-8x7b:h100,seq512", "--cluster", "nccl:h100x8,400Gbps", "--workers", "16", "--ep", "8"]
    assert "frozen" not in invoke(words).stdout


def test_fine_tuning_is_kept_in_files(tmp_path):
    workload = osf.load_workload("llama3.2-1b:h100,seq512,bf16,lora=16")
    osf.save(workload, tmp_path / "w.json")
    assert osf.load_workload(tmp_path / "w.json").layers == workload.layers
    with pytest.raises(osf.DataError, match="more frozen_bytes than fixed_bytes"):
        replace(workload, fixed_bytes=1)
    with pytest.raises(osf.UsageError, match="leave --tp 2 out, or train all parameters"):
        shard_of(model_of(parse_words("llama3.2-1b:h100,lora=16")), Parallelism(tensor=2))
