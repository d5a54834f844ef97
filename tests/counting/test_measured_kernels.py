"""Kernels measured on one's own GPU: their file is read, answers its sizes, stands in words, is refused if damaged."""

from __future__ import annotations

import copy
import json
import math
from itertools import product

import pytest

import osfmodel as osf
from osfmodel.counting import in_words
from osfmodel.counting.kernels import LAUNCHED, attention_work, kernels_in, kernels_of, product_work
from osfmodel.counting.roofline import Roofline as Clock
from osfmodel.counting.stacks import EAGER, STACKS, learned
from osfmodel.counting.training import TrainingSetup
from osfmodel.counting.words import model_of, parse_words
from osfmodel.entities.errors import DataError
from osfmodel.entities.measurement import NO_GPU
from osfmodel.planning.scaling.replicas import on_gpu_of
from osfmodel.planning.scaling.strategies import COMMUNICATOR, CONTEXT, room_of
from tests.commands import invoke

SIZES, ATTENDED = [[64, 1024, 4096]] * 3, [[128, 2048], [4, 64], [64, 128], [0.5, 1.0], [1, 4]]


def grid(axes, law):
    """Values of 100 x ln of a made-up law at all nodes."""
    return [round(100 * math.log(law(*sizes)), 1) for sizes in product(*axes)]


def document(device="cuda", called="NVIDIA H200"):
    """The content of a file, as ``osf bench --kernels`` writes it."""
    products = {
        "nodes": SIZES,
        "values": grid(SIZES, lambda rows, columns, inner: 1.2 + 300 / inner),
        "gradients": [
            grid(SIZES, lambda rows, columns, inner: 1.3 + 300 / rows),
            grid(SIZES, lambda rows, columns, inner: 1.5 + 300 / columns),
        ],
    }
    attention = {
        "nodes": ATTENDED,
        "values": grid(ATTENDED, lambda tokens, heads, width, seen, sharing: 3 - seen + 100 / tokens - sharing / 10),
        "backward": grid(ATTENDED, lambda tokens, heads, width, seen, sharing: 2 + seen + heads / 64),
    }
    return {
        "schema_version": 1,
        "kind": "kernels",
        "gpu": {
            "called": called,
            "device": device,
            "memory_bytes": 141 * 10**9,
            "bytes_per_s": 4e12,
            "operations_per_s": {"bfloat16": 7e14, "float32": 5e13},
            "launch_s": 2e-6,
            "host_launch_s": 2 * LAUNCHED,
        },
        "source": "osf bench --kernels on 2026-11-28: by hand",
        "multiprocessors": 132,
        "products": {"bfloat16": products, "float32": products},
        "attention": {"bfloat16": attention},
    }


@pytest.fixture
def surface(tmp_path):
    """The path of a file that reads."""
    path = tmp_path / "my-gpu.json"
    path.write_text(json.dumps(document()))
    return path


def test_sizes_in_the_table_have_the_times_in_the_table(surface):
    kernels, said = kernels_in(surface), document()["products"]["bfloat16"]
    tables = (said["values"], *said["gradients"])
    for place, (rows, columns, inner) in enumerate(product(*SIZES)):
        operations, moved = product_work(rows, inner, columns, "bfloat16")
        law = operations / 7e14 + moved / 4e12 + 2e-6
        for operand, values in enumerate(tables):
            found = kernels.product(rows, inner, columns, "bfloat16", operand)
            assert found == pytest.approx(max(law * math.exp(values[place] / 100), operations / 7e14))
    table, own = kernels.attending("float32"), document()["attention"]["bfloat16"]  # that of bfloat16 serves all types
    for place, sizes in enumerate(product(*ATTENDED)):
        assert table.at(sizes) == pytest.approx(own["values"][place] / 100)
        assert table.again(sizes, math.nan) == pytest.approx(math.exp(own["backward"][place] / 100))


def test_a_layer_takes_what_was_measured_at_no_other_clock(surface):
    clock = Clock.of(TrainingSetup(str(surface), batch=1))
    model = model_of(parse_words(f"gpt2:{surface},seq1024"))
    block = [one for one in model.modules if one.name.startswith("transformer.h.0.")]
    up = next(one for one in block if one.name.endswith("mlp.c_fc"))
    (inner, columns), rows = dict(up.parameters)["weight"], 1024
    assert clock.product(up, up.products[0], in_block=True) == pytest.approx((
        clock.kernels.product(rows, inner, columns, "bfloat16"),
        clock.kernels.product(rows, columns, inner, "bfloat16", 1),
        clock.kernels.product(columns, rows, inner, "bfloat16", 2),
    ))  # fmt: skip
    scored = next(one for one in block if one.scores)
    sizes = (1024, 12, 64, 0.5, 1)
    forward, backward = (
        sum(times) for times in zip(*(clock.scores(scored, one) for one in scored.scores), strict=True)
    )
    law = clock.kernels.law(*attention_work(1024, 12, 64, 512, "bfloat16"), "bfloat16")
    table = clock.kernels.attending("bfloat16")
    assert forward == pytest.approx(law * math.exp(table.at(sizes)), rel=2e-3)
    assert backward / forward == pytest.approx(table.again(sizes, math.nan), rel=2e-3)


def test_heads_that_share_keys_have_a_time_of_their_own(surface):
    clock = Clock.of(TrainingSetup(str(surface)))
    shared, alone = (
        next(one for one in model_of(parse_words(f"{name}:{surface},seq2048")).modules if one.scores)
        for name in ("llama3-8b", "llama2-7b")
    )
    assert clock.scores(shared, shared.scores[0])[0] < clock.scores(alone, alone.scores[0])[0]


def test_words_with_a_file_use_it(surface):
    words = f"llama3-8b:{surface},seq2048"
    mine, theirs = osf.load_workload(words), osf.load_workload("llama3-8b:h200,seq2048")
    assert 0 < mine.forward_time != theirs.forward_time
    assert mine.compute_time < osf.load_workload(f"{words},batch2").compute_time < 2.5 * mine.compute_time
    assert mine.compute_time < osf.load_workload(f"{words},ac=full").compute_time
    assert osf.load_workload(f"{words},fp32").compute_time > 3 * mine.compute_time
    assert mine.doubt == learned().doubts["any"]["any"] > theirs.doubt  # no run on it was compared
    assert mine.source.gpu == "NVIDIA H200"
    assert "by hand" in mine.source.conditions
    assert mine.ideal_time == pytest.approx(theirs.ideal_time * 989.4e12 / 7e14)
    assert room_of(mine).bytes == round(141e9) - CONTEXT - COMMUNICATOR


def test_words_of_a_cpu_are_of_no_gpu(tmp_path):
    path = tmp_path / "cpu.json"
    path.write_text(json.dumps(document("cpu", "CPU AMD EPYC")))
    assert osf.load_workload(f"gpt2:{path}").source.gpu == NO_GPU


def test_a_slow_host_holds_small_blocks_up(surface):
    times = Clock.of(TrainingSetup(str(surface))).kernels
    assert times.pace == pytest.approx(2)
    assert STACKS[EAGER].host_time(repeated=False, pace=times.pace) == 2 * STACKS[EAGER].host_time(repeated=False)
    small = osf.load_workload(f"gpt2:{surface},seq8")
    block = [one for one in small.layers if one.name.startswith("transformer.h.0.")]
    assert sum(one.forward_time + one.backward_time for one in block) == pytest.approx(2 * STACKS[EAGER].host)


def test_experts_that_were_not_measured_are_products_one_by_one(surface):
    kernels = kernels_of(str(surface))
    clock = Clock.of(TrainingSetup(str(surface)))
    module = next(one for one in model_of(parse_words(f"mixtral-8x7b:{surface},seq2048")).modules if one.experts)
    first = module.products[0]
    alone = kernels.product(first.rows, first.inner, first.columns, "bfloat16")
    assert clock.product(module, first, in_block=True) == pytest.approx((first.times * alone,) * 3)


def test_a_file_is_for_its_own_gpu(surface, tmp_path):
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document("cuda", "Some Accelerator 9")))
    assert on_gpu_of(f"gpt2:{surface},batch2", "nccl:h200x8") == f"gpt2:{surface},batch2"
    assert on_gpu_of(f"gpt2:{surface},batch2", "nccl:b200x8") == "gpt2:b200,batch2"
    assert on_gpu_of(f"gpt2:{other},batch2", "nccl:b200x8") == f"gpt2:{other},batch2"
    assert on_gpu_of("gpt2:a100,batch2", "nccl:a100-40gbx8") == "gpt2:a100-40gb,batch2"
    assert on_gpu_of("gpt2:a100,batch2", "nccl:a100-40gbx8", chip=True) == "gpt2:a100,batch2"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpt2:/data/my-gpu.json,batch4", True),
        ("gpt2:my-gpu.json", True),
        ("C:/models/my-workload.json", False),
        ("https://host/my-gpu.json", False),
        ("gpt2:/data/my-gpu.txt", False),
    ],
)
def test_paths_of_gpus_are_words(text, words):
    assert in_words(text) is words


def changed(**paths):
    """The file with other values at paths such as ``gpu__launch_s``; None takes one out."""
    found = copy.deepcopy(document())
    for path, value in paths.items():
        *to, last = path.split("__")
        place = found
        for name in to:
            place = place[name]
        if value is None:
            del place[last]
        else:
            place[last] = value
    return json.dumps(found)


FAULTS = {
    "not JSON": ("{", "Expecting property name"),
    "a list": ("[]", "its 'kind' is not 'kernels'"),
    "another kind": (changed(kind="cluster"), "its 'kind' is not 'kernels'"),
    "another version": (changed(schema_version=2), "'schema_version' not 1"),
    "no launch": (changed(gpu__launch_s=None), "it has no 'launch_s'"),
    "no products": (changed(products=None), "it has no 'products'"),
    "empty products": (changed(products={}), "no products or no attention"),
    "no rates": (changed(gpu__operations_per_s={}), "no operations_per_s"),
    "a rate of 0": (changed(gpu__operations_per_s={"bfloat16": 0}), "rate of bfloat16 is 0, not a number above 0"),
    "memory in words": (changed(gpu__memory_bytes="141 GB"), "memory_bytes is '141 GB'"),
    "no finite bandwidth": (changed(gpu__bytes_per_s=math.inf), "bytes_per_s is inf"),
    "an unknown GPU": (changed(gpu="h1000"), "unknown GPU 'h1000'"),
    "too few values": (changed(products__bfloat16__values=[1.0]), "1 values for 27 nodes"),
    "no number": (changed(products__bfloat16__values=["many"] * 27), "could not convert string to float"),
    "not a number": (changed(products__bfloat16__values=[math.nan] * 27), "a value is not a number"),
    "a value beyond measure": (changed(products__bfloat16__values=[1e6] * 27), "not a number between -2000 and 2000"),
    "one gradient": (changed(products__bfloat16__gradients=[[0] * 27]), "not two lists"),
    "nodes that fall": (changed(products__float32__nodes=[[64, 32]] * 3), "do not ascend"),
    "two axes": (changed(attention__bfloat16__nodes=[[1, 2]] * 2), "has 2 axes"),
    "nodes that are no lists": (changed(attention__bfloat16__nodes=[1, 2, 3]), "a field is empty, or of another type"),
    "backward of another size": (changed(attention__bfloat16__backward=[0, 1]), "2 values for "),
    "nested without end": ("[" * 100_000, "recursion"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_file_is_refused_in_one_line_with_its_remedy(fault, tmp_path):
    text, reason = FAULTS[fault]
    path = tmp_path / "damaged.json"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        osf.load_workload(f"gpt2:{path},batch2")
    said = str(caught.value)
    assert reason in said
    assert said.startswith(f"{path}: is no table of kernels (")
    assert said.endswith("; make one of this machine: osf bench --kernels -o my-gpu.json"), "what is there stays"
    assert "\n" not in said


def test_a_file_that_is_not_there_says_how_it_is_made(tmp_path):
    result = invoke(["predict", f"gpt2:{tmp_path}/no.json", "--cluster", "ring:50us,10Gbps", "--workers", "2"])
    assert result.exit_code == 1
    assert "no.json cannot be read: No such file or directory" in result.stderr
    assert "osf bench --kernels -o" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["predict", "tune", "scale", "memory", "report"])
def test_commands_take_words_with_a_file(command, surface):
    words = [command, f"gpt2:{surface},seq512,batch2", "--cluster", "nccl:h200x8,400Gbps", "--workers", "8"]
    result = invoke(words)
    assert result.exit_code == 0, result.output
    assert f"gpt2:{surface}" in result.output


def test_a_sweep_takes_words_with_a_file(surface, tmp_path):
    grid = tmp_path / "grid.yaml"
    words = [f"gpt2:{surface},batch2", "gpt2:h200,batch2"]
    grid.write_text(json.dumps({"workloads": words, "clusters": ["nccl:h200x8,400Gbps"], "workers": [8]}))
    result = invoke(["sweep", str(grid), "--json"])
    assert result.exit_code == 0, result.output
    assert f"gpt2:{surface},batch2" in result.output


def test_a_file_that_is_written_anew_is_read_anew(tmp_path):
    path, said = tmp_path / "mine.json", document()
    path.write_text(json.dumps(said))
    before = osf.load_workload(f"gpt2:{path}")
    said["gpu"]["operations_per_s"]["bfloat16"] /= 2
    path.write_text(json.dumps(said | {"spread": 0.25}))
    after = osf.load_workload(f"gpt2:{path}")
    assert after.compute_time > before.compute_time
    assert after.doubt == pytest.approx(math.hypot(before.doubt, 0.25))


def test_an_empty_field_of_a_file_is_said_in_words(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document() | {"products": None}))
    with pytest.raises(DataError, match="a field is empty, or of another type"):
        kernels_in(path)
