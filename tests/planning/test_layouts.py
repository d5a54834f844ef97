"""The search for a layout, held against every layout of small spaces."""

from __future__ import annotations

import json
import math

import pytest

from osfmodel import load_cluster
from osfmodel.counting.groups import Parallelism
from osfmodel.counting.training import FULL, NOTHING
from osfmodel.entities.errors import UsageError
from osfmodel.planning.scaling.layouts import LayoutSearch, scale_layouts, simplest
from osfmodel.planning.scaling.scale import ScaleOptions
from osfmodel.planning.scaling.spaces import Layout, Space, parse_space
from osfmodel.planning.what_if import WhatIf
from osfmodel.solve.solution import MemoryLimit
from osfmodel.targets import CONFIG_TARGETS
from osfmodel.targets.target import JobSettings
from tests.cli.test_cli import run
from tests.commands import invoke

WORDS, CLUSTER = "llama3.2-1b:h100,seq4096,batch1,bf16", "nccl:h100x4,100Gbps"
SHALLOW = WORDS.replace(":", "+num_hidden_layers=4:")
SPACE = "tp<=2,cp=1,pp<=4,batch<=2,ac=none|full"
ROOMS = (80 << 30, 14 << 30, 9 << 30)
"""Memory in which all layouts fit, some, and few."""


def search(room: int, words: str = SHALLOW, optimizer: str | None = None) -> tuple[LayoutSearch, list[Layout]]:
    """A search of a small space on 8 GPUs, and its layouts."""
    made = LayoutSearch(words, load_cluster(CLUSTER), 8, ScaleOptions(limit=MemoryLimit(room, optimizer)))
    return made, made.candidates(parse_space(SPACE), 16)


@pytest.mark.parametrize(
    ("room", "optimizer"),
    [
        (ROOMS[0], None),
        pytest.param(ROOMS[1], None, marks=pytest.mark.long),
        (ROOMS[2], None),
        (8 << 30, "sgd"),
    ],
)
def test_brute_force_finds_nothing_faster_and_no_bound_is_above_a_step(room: int, optimizer: str | None) -> None:
    made, layouts = search(room, optimizer=optimizer)
    best: dict[Parallelism, float] = {}
    pruned = 0
    for layout in layouts:
        workload = made._counted(layout)
        assert workload is not None
        point = made.price(layout)
        assert point is not None
        assert point.best.peak is not None
        grouped, _ = made._grouped(layout, workload)
        counted = layout.accumulated * (grouped.forward_time + grouped.backward_time)
        assert made._shared(layout) <= counted * (1 + 1e-9)
        assert counted <= min(row.time for row in point.rows) * (1 + 1e-9)
        outlined = made._outlined(layout)
        assert outlined is not None
        assert made._shared(layout) <= outlined.time * (1 + 1e-9)
        assert outlined.time <= counted * (1 + 1e-9)
        assert all(row.peak is not None and outlined.lacking <= row.peak.bytes - room for row in point.rows), layout
        least = made._least(layout, grouped)
        assert all(row.peak is not None and least <= row.peak.bytes for row in point.rows), layout
        pruned += least > room
        if point.fits == "yes":
            best[layout.groups] = min(point.time, best.get(layout.groups, point.time))
    found = search(room, optimizer=optimizer)[0].best(layouts, wanted=3)
    assert [point.time for _, point in found] == pytest.approx(sorted(best.values())[:3])
    assert (pruned > 0) == (room != ROOMS[0])


def test_where_nothing_fits_the_layout_that_lacks_least_is_named() -> None:
    made, layouts = search(2 << 30)
    found = made.best(layouts, wanted=2)
    assert found
    assert all(point.fits == "no" for _, point in found)
    peaks = [point.best.peak.bytes for _, point in found if point.best.peak is not None]
    assert peaks == sorted(peaks)
    assert peaks[0] > 2 << 30


def test_experts_are_shared_as_well() -> None:
    _made, layouts = search(80 << 30, "olmoe-1b-7b:h100,seq4096,batch1,bf16")
    assert {layout.groups.expert for layout in layouts} >= {1, 2, 4, 8}
    assert all(layout.groups.ranks(8) % layout.groups.expert == 0 for layout in layouts)


def test_a_table_of_the_best_of_each_number_names_no_option_of_one() -> None:
    asked = [
        "scale",
        "llama3-8b:h100,seq8192,bf16,batch4",
        "--cluster",
        CLUSTER,
        "--layout",
        "any",
        "--global-batch",
        "64",
    ]
    one, several = (invoke([*asked, "--workers", count]).stdout.splitlines() for count in ("16", "8,16"))
    title = f"llama3-8b:h100,seq8192,bf16 on {CLUSTER}"
    assert f"{title}: the best of each" in several
    assert any(line.startswith("llama3-8b:h100,seq8192,bf16,batch") and "accumulated" in line for line in one)


def test_of_layouts_that_are_as_fast_the_simplest_is_taken() -> None:
    curve = scale_layouts(WORDS, load_cluster(CLUSTER), [8], ScaleOptions(what_if=WhatIf(global_batch=16)), SPACE)
    (taken,) = (one for one in curve.combinations if one.taken)
    assert taken.groups == curve.groups == Parallelism()
    assert taken.samples == 16
    assert curve.points[0].time == taken.time
    assert curve.combinations[0].time == min(one.time for one in curve.combinations)
    near = [(Layout(one.groups, 1, 1, NOTHING), one) for one in curve.combinations]
    assert simplest(near) == [one.taken for one in curve.combinations].index(True)


def test_pipelines_of_megatron_are_interleaved() -> None:
    """With as many blocks in each chunk, embedding and head among them or not, and whole rounds of stages."""
    words = "llama3-405b:h100,seq8192,batch1,fp8,stack={}"
    for stack, chunks in (("te", {1, 8}), ("eager", {1})):
        made = LayoutSearch(words.format(stack), load_cluster("nccl:h100x8,400Gbps"), 1024, ScaleOptions())
        found = made.candidates(parse_space("tp=8,pp=8,cp=2,batch=1,ac=none"), 512)
        assert {one.groups.chunks for one in found} == chunks
    assert {one.groups.chunks for one in made.candidates(parse_space("tp=8,pp=8,vpp<=4,cp=2"), 512)} == {1, 2, 4}
    made = LayoutSearch(words.format("te"), load_cluster("nccl:h100x8,400Gbps"), 1024, ScaleOptions())
    assert made.candidates(parse_space("tp=8,pp=8,cp=2,batch=2,vpp=4"), 2 * 8 * 9) == []


def test_a_space_in_words() -> None:
    assert parse_space("any") == Space()
    space = parse_space("tp<=8, pp=2,ac=full")
    assert space.sizes("tp", 12) == [1, 2, 3, 4, 6]
    assert space.sizes("pp", 12) == [2]
    assert space.sizes("cp", 2) == [1, 2]
    assert space.checkpointing == (FULL,)
    for wrong in ("tp", "tp<8", "xp=1", "tp=0", "ac=some", "tp=1,tp=2", ""):
        with pytest.raises(UsageError, match="--layout"):
            parse_space(wrong)
    with pytest.raises(UsageError, match="'xp' is none of tp, pp, cp, ep, vpp, batch, ac"):
        parse_space("xp=1")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--pp 4 --vpp 5 --accumulate 16", "--num-virtual-stages-per-pipeline-rank 5 --sequence-parallel"),
        ("--pp 8 --vpp 3 --accumulate 16", "divides 80 blocks, or 82 with embedding and head, evenly, and not by 24"),
        pytest.param(
            "--pp 8 --accumulate 16", "--pipeline-model-parallel-size 8 --sequence-parallel", marks=pytest.mark.long
        ),
        ("--pp 8 --vpp 2 --accumulate 12", "a multiple of 8 micro-batches, and there are 12"),
        ("--pp 8 --accumulate 12", "--pipeline-model-parallel-size 8 --sequence-parallel"),
    ],
)
def test_settings_for_megatron_are_those_that_it_takes(
    options: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without remedies, which test_rescues.py has."""
    monkeypatch.setattr("osfmodel.cli.scale.Rescuer.rescues", lambda self: [])
    words = ["llama3-70b:h100,batch1", "--cluster", CLUSTER, "--workers", "64", "--tp", "2", "--plan", "megatron"]
    made = run("scale", *words, *options.split(), "--for", "megatron", "-f", "code")
    assert said in made.output


@pytest.mark.parametrize(("chunks", "said"), [(3, True), (5, False)])
def test_chunks_that_megatron_refuses_are_priced_with_a_caution(
    chunks: int, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osfmodel.cli.scale.Rescuer.rescues", lambda self: [])
    words = "llama3-70b:h100,batch1", "--cluster", CLUSTER, "--workers", "64", "--accumulate", "16"
    made = run("scale", *words, "--pp", "8", "--vpp", str(chunks), "--tp", "2", "--plan", "zero-1")
    assert ("--vpp 3 is priced, but Megatron divides 80 blocks" in " ".join(made.output.split())) == said


def test_embedding_and_head_are_blocks_for_megatron_where_that_divides_them() -> None:
    knobs = CONFIG_TARGETS["megatron"].convert.default_knobs()
    for blocks, marked in ((126, True), (128, False), (0, False)):
        job = JobSettings((("pipeline", 8), ("chunks", 8)), 1, 32, 32, 8192, "none", blocks=blocks)
        found = CONFIG_TARGETS["megatron"].text.config(CONFIG_TARGETS["megatron"].text.in_job(knobs, job))
        assert ("account_for_loss_in_pipeline_split" in found) == marked


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--tp", "2"], "leave --tp out"),
        (["--accumulate", "2"], "leave --accumulate out"),
        (["--anchor", "8=1s"], "leave --anchor out"),
        (["--target-scaling", "0.9"], "leave a goal out"),
        (["--global-batch", "7"], "no layout of 8 GPUs for 7 samples"),
    ],
)
def test_what_the_search_decides_cannot_be_given(more: list[str], said: str) -> None:
    made = run("scale", WORDS, "--cluster", CLUSTER, "--workers", "8", "--layout", "tp=1,pp=1,cp=1", *more)
    assert made.exit_code
    assert said in made.stderr
    assert len(made.stderr.splitlines()) == 1


def test_of_tight_layouts_the_one_to_take_is_expected_to_be_fastest() -> None:
    for room in (8, 10):
        made, layouts = search(room * 2**30, WORDS)
        found = [point for _, point in made.best(layouts)]
        assert {point.fits for point in found} == {"tight"}
        expected = [point.best.expected_time for point in found]
        assert expected == sorted(expected)
        assert all(one > point.time for one, point in zip(expected, found, strict=True))


def test_layouts_for_a_framework_without_groups_have_none() -> None:
    given = (
        "scale",
        SHALLOW,
        "--cluster",
        CLUSTER,
        "--workers",
        "8",
        "--global-batch",
        "32",
        "--for",
        "fsdp2",
        "--json",
    )
    found = json.loads(run(*given, "--layout", "pp=1,ac=none").stdout)
    assert {(one["tp"], one["cp"], one["ep"]) for one in found["combinations"]} == {(1, 1, 1)}
    assert "fully_shard" in found["rendered"]
    refused = run(*given, "--layout", "tp=2,pp=1")
    assert "--for fsdp2 has no settings for --tp 2: give" in refused.stderr


def test_a_profile_has_no_layout() -> None:
    made = run("scale", "resnet50-v100", "--cluster", CLUSTER, "--workers", "8", "--layout", "any")
    assert made.exit_code
    assert "is a profile of one GPU" in made.stderr


def test_settings_and_records_are_of_the_layout_that_is_taken() -> None:
    words = [
        "scale",
        WORDS,
        "--cluster",
        CLUSTER,
        "--workers",
        "8",
        "--global-batch",
        "16",
        "--layout",
        "tp=2,cp=1,pp=2",
    ]
    made = run(*words, "--for", "torchtitan")
    assert "tensor_parallel_degree = 2" in made.stdout
    assert "pipeline_parallel_degree = 2" in made.stdout
    assert "global_batch_size = 16" in made.stdout
    rows = run(*words, "--format", "csv").stdout.splitlines()
    assert "checkpointing" in rows[0]
    assert "accumulate" in rows[0]
    assert len(rows) == 2


def test_rows_that_cannot_be_taken_change_no_choice() -> None:
    for room in ROOMS:
        made, layouts = search(room)
        for layout in layouts[::5]:
            workload = made._counted(layout)
            assert workload is not None
            some, every = made._point(layout, workload, math.inf), made._point(layout, workload)
            assert made._point(layout, workload, 1e-9) is None
            assert some is not None
            assert every is not None
            assert some.best.name == every.best.name, layout
            assert some.fits == every.fits
            assert {row.name for row in some.rows} <= {row.name for row in every.rows}
