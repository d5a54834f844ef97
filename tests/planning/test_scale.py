"""Scaling curves: rates by hand, the choice of a strategy, anchors and goals."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace

import pytest

import osfmodel as osf
from osfmodel.counting.groups import Parallelism
from osfmodel.engine.bands import COUNTED, NEAREST, NODE, REPLICAS, extremes
from osfmodel.planning.scaling.curve import Anchor, TrainingLength
from osfmodel.planning.scaling.goals import Answer, Goals
from osfmodel.planning.scaling.inverse import STEADY, answers
from osfmodel.planning.scaling.replicas import replica_workload
from osfmodel.planning.scaling.scale import ScaleOptions, room_of, scale
from osfmodel.planning.scaling.settings import settings
from osfmodel.planning.tuning.choosing import strategy_row
from osfmodel.show.scale import page as scale_picture
from osfmodel.show.table import amount
from osfmodel.solve.solution import MemoryLimit
from osfmodel.solve.verdicts import peak_of
from tests.commands import invoke

WORDS, CLUSTER = "llama3-70b+num_hidden_layers=4:h100,seq4096,batch2,bf16,ac=full", "nccl:h100x8,400Gbps"
"""Four wide blocks: too many parameters for DDP on a GPU."""


@pytest.fixture(scope="module")
def cluster():
    return osf.load_cluster(CLUSTER)


@pytest.fixture(scope="module")
def curve(cluster):
    options = ScaleOptions(training=TrainingLength(1e9 / 4096, 2.0))
    return scale(osf.load_workload(WORDS), cluster, [8, 64], options)


def test_rates_utilisation_and_cost_follow_from_the_step(curve):
    for point in curve.points:
        samples = 2 * point.workers
        assert point.samples_per_s == pytest.approx(samples / point.time)
        assert point.tokens_per_s == pytest.approx(4096 * samples / point.time)
        assert point.rate_per_gpu == pytest.approx(4096 * 2 / point.time)
        assert point.mfu == pytest.approx(osf.load_workload(WORDS).ideal_time / point.time)
        assert point.hours == pytest.approx(1e9 / point.tokens_per_s / 3600)
        assert point.cost == pytest.approx(point.hours * 2.0 * point.workers)
        assert 0 < point.scaling_factor <= 1


def test_the_best_is_the_fastest_that_fits_or_a_simpler_one_nearly_as_fast(curve):
    for point in curve.points:
        fitting = [row for row in point.rows if row.fits == "yes"]
        assert point.best in fitting
        assert point.best.time <= min(row.time for row in fitting) * 1.01
        assert point.best.peak.bytes <= curve.limit.bytes
    ddp = next(row for row in curve.points[0].rows if row.name == "ddp")
    assert ddp.fits == "no"  # 16 bytes for each of 8 billion parameters


def test_a_tight_step_has_its_chance_and_a_warning(cluster):
    """Of the best: with the bytes that its step holds a GPU has none for what PyTorch reserves besides."""
    words, names = osf.load_workload(WORDS), ("fsdp2",)
    (held,) = scale(words, cluster, [16], ScaleOptions(names)).points
    curve = scale(words, cluster, [16], ScaleOptions(names, MemoryLimit(round(1.05 * held.best.peak.bytes))))
    (point,) = curve.points
    assert point.fits == "tight"
    assert f"Memory is tight on 16 GPUs ({point.best.chance:.0%}): in brackets is the chance" in curve.turns
    assert "A step may then take longer than shown" in curve.turns


def test_a_step_is_that_of_predict(curve, cluster):
    point = curve.points[-1]
    (found,) = osf.compare(osf.load_workload(WORDS), cluster, 64, [point.best.name]).predictions
    assert found.iteration_time == point.time
    assert found.band == point.band


def test_nothing_fits_into_a_small_gpu(cluster):
    options = ScaleOptions(("ddp", "zero-1", "fsdp2"), MemoryLimit(2**30))
    curve = scale(osf.load_workload(WORDS), cluster, [8], options)
    (point,) = curve.points
    assert point.fits == "no"
    assert point.best.peak.bytes == min(row.peak.bytes for row in point.rows)
    (found,) = osf.compare(osf.load_workload(WORDS), cluster, 8, [point.best.name]).predictions
    assert point.time == found.iteration_time
    assert point.band.low < point.time < point.band.high
    assert curve.turns == "Nothing fits on 8 GPUs."
    assert f"{point.best.name} needs" in point.lacking(2**30)
    assert "the largest part is" in point.lacking(2**30)
    goals = Goals(time=1e3, tokens_per_s=1.0)
    answered = answers(curve, options, goals)
    assert all(one.values[end] is None for one in answered for end in one.values)


def test_an_anchor_was_measured_even_where_nothing_seems_to_fit(cluster):
    options = ScaleOptions(limit=MemoryLimit(2**30), anchor=Anchor(8, 2.5))
    (point,) = scale(osf.load_workload(WORDS), cluster, [8], options).points
    assert point.time == pytest.approx(2.5, rel=1e-4)
    assert point.fits == "no"


def test_an_anchor_is_met_and_all_else_follows(cluster):
    workload = osf.load_workload(WORDS)
    for anchor in (Anchor(8, 2.5), Anchor(8, 8 * 2 * 4096 / 2.5, "tokens/s"), Anchor(8, 2 / 2.5, "samples/s/gpu")):
        curve = scale(workload, cluster, [8, 64], ScaleOptions(anchor=anchor))
        assert curve.points[0].time == pytest.approx(2.5, rel=1e-4)
        assert curve.workload.compute_time == pytest.approx(workload.compute_time * curve.anchored)
        assert curve.workload.doubt == 0
        assert curve.points[1].time > 2.4


def test_an_anchor_below_communication_or_the_data_sheet_is_refused(cluster):
    with pytest.raises(osf.UsageError, match="the data sheet allows none below"):
        scale(osf.load_workload(WORDS), cluster, [8], ScaleOptions(anchor=Anchor(8, 1e-3)))
    profiled = osf.load_workload("resnet50-v100")
    with pytest.raises(osf.UsageError, match="communication alone takes"):
        scale(profiled, osf.load_cluster("v100-10gbe"), [8], ScaleOptions(anchor=Anchor(8, 1e-3)))


def test_an_anchor_in_the_wrong_unit_is_doubted(cluster):
    curve = scale(osf.load_workload(WORDS), cluster, [8], ScaleOptions(anchor=Anchor(8, 7000, "tokens/s")))
    assert any("check its unit" in warning for warning in curve.warnings)
    right = scale(osf.load_workload(WORDS), cluster, [8], ScaleOptions(anchor=Anchor(8, 7000, "tokens/s/gpu")))
    assert not right.warnings


def test_a_counted_workload_has_a_band_on_one_node(cluster):
    """The doubt about its times was learned from runs there."""
    workload = osf.load_workload(WORDS)
    curve = scale(workload, cluster, [8], ScaleOptions(plans=("fsdp2",)))
    (point,) = curve.points
    assert not any("nothing comparable" in note for note in curve.notes)
    assert point.band.kind == COUNTED
    assert point.band.above > 0.9 * workload.doubt * workload.compute_time / point.time
    assert -1 < point.band.below < 0
    (profiled,) = scale(replace(workload, fixed_share=None), cluster, [8], ScaleOptions(plans=("fsdp2",))).points
    assert profiled.band.kind == f"{NODE}{NEAREST}"
    assert profiled.band.half_width > point.band.half_width


@pytest.mark.parametrize(
    ("plan", "workers", "groups"),
    [
        *(
            (plan, 16, Parallelism(**{kind: 2}))
            for plan in ("ddp", "zero-1")
            for kind in ("tensor", "pipeline", "context")
        ),
        *((plan, workers, Parallelism()) for plan in ("zero-1", "zero-2") for workers in (8, 16)),
        *(("ddp", 2, Parallelism(**{kind: 2})) for kind in ("tensor", "pipeline", "context")),
        ("zero-1", 32, Parallelism(tensor=2, pipeline=2)),
    ],
)
def test_every_named_strategy_has_an_error_band(cluster, plan, workers, groups):
    """As wide as counted times and the messages inside replicas are doubtful."""
    words = "llama3.2-1b:h100,seq2048,batch1,bf16"
    workload = osf.load_workload(words) if groups == Parallelism() else replica_workload(words, cluster, groups)
    options = ScaleOptions(plans=(plan,), groups=groups)
    curve = scale(workload, cluster, [workers], options)
    (point,) = curve.points
    assert point.band.kind == (REPLICAS if workers > 8 and groups.tensor * groups.pipeline > 1 else COUNTED)
    bound, found = point.best.prediction.bound.question, point.best.prediction
    fast, slow = extremes(bound.workload, found.plan, found.timeline, bound.pricing)
    if point.band.kind == COUNTED:
        assert (point.band.low, point.band.high) == (fast, slow)
    assert point.band.below < 0 < point.band.above
    assert not any("error band:" in note for note in curve.notes)
    doubtful = scale(replace(workload, doubt=2 * workload.doubt), cluster, [workers], options)
    assert doubtful.points[0].band.half_width > 1.1 * point.band.half_width


def test_every_answer_is_met_by_what_it_says():
    """Fed back into scale, an answer meets the goal with a strategy that fits."""
    words, options = "llama3-8b+num_hidden_layers=8:h100,seq8192,batch1,bf16,ac=full", ScaleOptions(("fsdp2", "hsdp"))
    workload, slow = osf.load_workload(words), osf.load_cluster("nccl:h100x8,100Gbps")
    curve = scale(workload, slow, [256], options)
    found = {one.asks: one.values["predicted"] for one in answers(curve, options, Goals(scaling=0.85))}
    changes = {
        "bandwidth": osf.WhatIf(bandwidth=found["bandwidth"]),
        "batch": osf.WhatIf(batch_size=int(found["batch"])),
        "accumulate": osf.WhatIf(accumulate=int(found["accumulate"] or 1)),
    }
    assert found["bandwidth"] > 1
    for asks, what_if in changes.items():
        if found[asks] is not None:
            more = replace(options, what_if=what_if)
            (point,) = scale(workload, what_if.of_cluster(slow), [256], more).points
            assert point.best.fits == "yes", asks
            assert point.scaling_factor >= 0.85, asks


def test_an_answer_without_an_error_band_says_so():
    workload, fast = (
        osf.load_workload("llama3.2-1b+num_hidden_layers=1:h100,seq4096,batch2,bf16,ac=full"),
        osf.load_cluster(CLUSTER),
    )
    options = ScaleOptions(plans=("blocks",), limit=MemoryLimit(2**38))
    curve = scale(workload, fast, [256], options)
    assert curve.points[0].band is None
    found = answers(curve, options, Goals(tokens_per_s=1e6))
    assert all(one.values["fast"] is None and one.values["slow"] is None for one in found)
    assert found[0].words == "For 1,000,000 tokens/s: 256 GPUs (no error band)."


def test_a_profile_has_no_tokens_and_no_room():
    workload = osf.load_workload("resnet50-v100")
    assert room_of(workload) is None
    counted = osf.load_workload("llama3.2-1b:h100,seq2048")  # nvidia-smi: 81,559 MiB
    rooms = [room_of(counted, groups).bytes for groups in (Parallelism(), Parallelism(tensor=2, context=4))]
    assert rooms == [(81_559 - 512 - 400) << 20, (81_559 - 512 - 3 * 400) << 20]
    curve = scale(workload, osf.load_cluster("v100-10gbe"), [4, 16], ScaleOptions(plans=("ddp",)))
    assert [point.tokens_per_s for point in curve.points] == [None, None]
    assert curve.points[0].samples_per_s == pytest.approx(32 * 4 / curve.points[0].time)
    assert any("memory is not compared" in note for note in curve.notes)
    bare = replace(workload, batch_size=None)
    with pytest.raises(osf.UsageError, match="does not say its samples"):
        scale(bare, osf.load_cluster("v100-10gbe"), [4], ScaleOptions(anchor=Anchor(4, 5.0, "samples/s")))


def test_goals_are_met_by_their_answers_and_by_nothing_less():
    """The number of GPUs by hand; bandwidth and accumulation by predicting again, there and one step below."""
    workload, cluster = osf.load_workload(WORDS), osf.load_cluster("nccl:h100x8,100Gbps")
    options = ScaleOptions(plans=("fsdp2",))
    curve = scale(workload, cluster, [8, 16, 64, 256], options)
    factors = {point.workers: point.scaling_factor for point in curve.points}
    wanted = (factors[64] + factors[256]) / 2
    found = {one.asks: one.values for one in answers(curve, options, Goals(scaling=wanted))}
    assert found["workers"]["predicted"] == max(count for count, factor in factors.items() if factor >= wanted)
    factor = found["bandwidth"]["predicted"]
    assert factor > 1
    for change, meets in ((factor, True), (factor / 1.05, False)):
        faster = osf.WhatIf(bandwidth=change).of_cluster(cluster)
        assert (scale(workload, faster, [256], options).points[0].scaling_factor >= wanted) is meets
    assert found["accumulate"]["predicted"] is None  # FSDP2 gathers and reduces in each micro-batch
    fast, slow = found["workers"]["fast"], found["workers"]["slow"]
    assert (slow or 0) <= found["workers"]["predicted"] <= fast


def test_the_band_of_a_scaling_factor_leaves_the_doubt_of_computation_out():
    """If computation takes longer than counted, perfect scaling does too."""
    workload = osf.load_workload("llama3-8b+num_hidden_layers=4:h100,seq4096,batch2,bf16,ac=full")
    cluster = osf.load_cluster("nccl:h100x8,100Gbps")
    assert workload.doubt > 0
    options = ScaleOptions(plans=("fsdp2",))
    counts = [16, 64]
    found, sure = (
        answers(scale(one, cluster, counts, options), options, Goals(scaling=0.9))
        for one in (workload, replace(workload, doubt=0))
    )
    assert found == sure
    rates = [
        answers(scale(one, cluster, counts, options), options, Goals(tokens_per_s=1e6))[1].values["slow"]
        for one in (workload, replace(workload, doubt=0))
    ]
    assert rates[0] > rates[1]


def test_accumulation_that_meets_a_goal_is_the_least():
    workload, cluster = osf.load_workload("resnet50-v100"), osf.load_cluster("v100-10gbe")
    options = ScaleOptions(plans=("ddp",))
    curve = scale(workload, cluster, [16, 64], options)
    found = {one.asks: one.values for one in answers(curve, options, Goals(scaling=0.95))}
    count = found["accumulate"]["predicted"]
    assert count > 1
    for number, meets in ((count, True), (count - 1, False)):
        more = replace(options, what_if=osf.WhatIf(accumulate=number))
        assert (scale(workload, cluster, [64], more).points[0].scaling_factor >= 0.95) is meets


def test_beyond_a_few_micro_batches_each_adds_as_much_as_the_last():
    """The answer is not predicted itself, but follows from fewer: so it is predicted here."""
    workload, cluster = (
        osf.load_workload("llama3-8b+num_hidden_layers=8:h100,seq2048,batch1,bf16,ac=full"),
        osf.load_cluster(CLUSTER),
    )
    slow = osf.WhatIf(bandwidth=0.25).of_cluster(cluster)
    options = ScaleOptions(plans=("zero-1", "fsdp2"))
    curve = scale(workload, slow, [256], options)
    found = {one.asks: one.values for one in answers(curve, options, Goals(scaling=0.905))}
    count = found["accumulate"]["predicted"]
    assert count > STEADY
    for number, meets in ((count, True), (count - 1, False)):
        more = replace(options, what_if=osf.WhatIf(accumulate=number))
        assert (scale(workload, slow, [256], more).points[0].scaling_factor >= 0.905) is meets


def test_the_batch_that_meets_a_goal_is_the_least_that_fits():
    words, options = "llama3-8b+num_hidden_layers=8:h100,seq2048,batch1,bf16,ac=full", ScaleOptions(("fsdp2",))
    workload, slow = osf.load_workload(words), osf.load_cluster("nccl:h100x8,100Gbps")
    curve = scale(workload, slow, [256], options)
    (found,) = (one for one in answers(curve, options, Goals(scaling=0.9)) if one.asks == "batch")
    least = found.values["predicted"]
    assert least > 1
    for batch, meets in ((least, True), (least - 1, False)):
        counted = osf.load_workload(words.replace("batch1", f"batch{batch}"))
        assert (scale(counted, slow, [256], options).points[0].scaling_factor >= 0.9) is meets
    (none,) = (one for one in answers(curve, options, Goals(scaling=0.999)) if one.asks == "batch")
    assert none.values["predicted"] is None
    assert "samples of a micro-batch: none that fits" in none.words
    profiled = scale(osf.load_workload("resnet50-v100"), osf.load_cluster("v100-10gbe"), [16], options)
    assert "batch" not in [one.asks for one in answers(profiled, options, Goals(scaling=0.9))]


def test_a_rate_asks_for_few_workers_and_a_budget_for_many(curve):
    options = ScaleOptions(("fsdp2",), training=TrainingLength(1e9 / 4096, 2.0))
    small, large = curve.points
    rate, price = (small.tokens_per_s + large.tokens_per_s) / 2, (small.cost + large.cost) / 2
    found = [one.values["predicted"] for one in answers(curve, options, Goals(tokens_per_s=rate, budget=price))]
    assert found[0] == 64
    assert found[4] == (8 if small.cost < large.cost else 64)
    bare = scale(osf.load_workload(WORDS), osf.load_cluster(CLUSTER), [8], ScaleOptions(("fsdp2",)))
    with pytest.raises(osf.UsageError, match="--budget: give --price"):
        answers(bare, ScaleOptions(), Goals(budget=5))


def test_a_time_of_hours_is_of_the_training_where_its_length_is_known(curve):
    options = ScaleOptions(("fsdp2",), training=TrainingLength(1e9 / 4096, 2.0))
    small, large = curve.points
    found = answers(curve, options, Goals(hours=(small.hours + large.hours) / 2))
    assert (found[0].asks, found[0].values["predicted"]) == ("workers", 64)
    assert answers(curve, options, Goals(hours=small.hours * 1.001))[0].values["predicted"] == 8
    words = [
        "scale",
        WORDS,
        "--cluster",
        CLUSTER,
        "--workers",
        "8",
        "--plan",
        "fsdp2",
        "--target-time",
        "10d",
        "--json",
    ]
    goals = [json.loads(invoke([*words, *length]).stdout)["answers"][0]["goal"] for length in ([], ["--tokens", "1e9"])]
    assert goals == ["a step of 864,000 s", "a training of 240 hours"]


def test_settings_are_those_of_tune(curve, cluster):
    made = settings(curve, "fsdp2")
    limits = osf.Limits(memory=curve.limit)
    assert made.config == osf.tune(osf.load_workload(WORDS), cluster, 64, "fsdp2", limits).config
    assert made.config["param_dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("taken", "target", "said"),
    [
        ("fsdp2", "fsdp2", ""),
        ("hsdp", "torchtitan", ""),
        ("fsdp2", "ddp", "these settings of ddp are not of fsdp2, which the table takes: --plan ddp shows their step"),
        ("fsdp2", "accelerate", "--plan ddp shows their step, --for fsdp2 has those of fsdp2"),
        ("ddp", "deepspeed", "not of ddp, which the table takes: --plan deepspeed shows"),
        ("ddp", "fsdp2", "not of ddp, which the table takes: --plan fsdp2 shows"),
    ],
)
def test_settings_of_another_strategy_than_that_of_the_table_say_so(taken, target, said):
    small, cluster = osf.load_workload("llama3.2-1b:h100,seq4096,batch4,bf16"), osf.load_cluster("nccl:h100x8,100Gbps")
    warned = settings(scale(small, cluster, [64], ScaleOptions((taken,))), target).warnings
    assert [said in one for one in warned if "the table takes" in one] == [True] * bool(said)


def run(*args: str):
    return invoke(["scale", *args])


def test_the_command_prints_a_table_bars_and_strategies():
    done = run(WORDS, "--cluster", CLUSTER, "--workers", "8..32", "--tokens", "1T", "--price", "2.5")
    assert done.exit_code == 0, done.output
    for said in ("GPUs", "MFU", "tokens/s", "cost", "Take ", "█", "Note: memory is what a step holds"):
        assert said in done.output


def test_more_gpus_that_do_less_are_told():
    """ViT-L of two nodes on 25 Gbit/s does less than one node alone."""
    asked = ["scale", "vit-l16:rtx4090,batch32,bf16", "--cluster", "nccl:rtx4090x4,25Gbps/node,tcp", "--workers"]
    points = json.loads(invoke([*asked, "1,4,8", "--json"]).stdout)["points"]
    rates = {point["workers"]: point["samples_per_s"] for point in points}
    said = f"More GPUs are predicted to be slower: 8 do {rates[8] / rates[4]:.0%} of what 4 GPUs do in the same time."
    assert said in " ".join(invoke([*asked, "1,4,8"]).stdout.split())
    assert "More GPUs" not in invoke([*asked, "1,4"]).stdout


def test_a_note_says_whether_all_fits():
    asked = ["scale", "llama3-8b:h100,seq4096,bf16", "--cluster", "nccl:h100x8,400Gbps", "--plan", "fsdp2", "--workers"]
    sure, tight = (" ".join(invoke([*asked, count]).stdout.split()) for count in ("64", "2,64"))
    assert "what PyTorch reserves fits in 78.76 GiB of a GPU, with a chance of 95 % or more" in sure
    assert "and that must fit in 78.76 GiB" in tight


def test_the_document_has_the_fields_of_the_contract():
    done = run(WORDS, "--cluster", CLUSTER, "--workers", "8,16", "--json", "--price", "2")
    points = json.loads(done.stdout)["points"]
    assert [point["workers"] for point in points] == [8, 16]
    expected = {
        "workers", "strategy", "step_time_s", "error_band", "samples_per_s", "tokens_per_s", "tokens_per_s_per_gpu",
        "mfu", "scaling_factor", "peak_memory_bytes", "reserved_memory_bytes", "fits",
        "fits_chance", "cost_per_hour", "training_hours", "training_cost",
    }  # fmt: skip
    assert set(points[0]) == expected
    assert points[1]["cost_per_hour"] == 32


def test_every_form_says_that_a_point_does_not_fit_and_what_it_takes(tmp_path):
    """DDP keeps all of the optimizer's state on each GPU; FSDP2 fits on 64 GPUs and not on 2."""
    words = "llama3-70b+num_hidden_layers=8:h100,seq8192,batch2,bf16,ac=selective"
    options = (words, "--cluster", CLUSTER, "--workers", "2,64", "--plan", "fsdp2", "--memory", "78GB")
    short, enough = json.loads(run(*options, "--json").stdout)["points"]
    assert (short["fits"], enough["fits"]) == ("no", "yes")
    assert all(short[key] is not None for key in ("strategy", "step_time_s", "error_band", "mfu", "scaling_factor"))
    assert short["peak_memory_bytes"] > 78e9 > enough["reserved_memory_bytes"] > enough["peak_memory_bytes"]
    assert short["fits_chance"] < 0.05
    assert enough["fits_chance"] >= 0.95
    assert run(*options, "-o", str(tmp_path / "curve.csv")).exit_code == 0
    with open(tmp_path / "curve.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["fits"] for row in rows] == ["no", "yes"]
    assert [float(row["step_time_s"]) for row in rows] == [short["step_time_s"], enough["step_time_s"]]
    assert run(*options, "-o", str(tmp_path / "page.html")).exit_code == 0
    page = (tmp_path / "page.html").read_text()
    assert page.count("<td>no</td>") == page.count("<td>yes</td>") == 1
    assert "2 GPUs, fsdp2 (does not fit): " in page
    shown = run(*options).output
    assert "Nothing fits on 2 GPUs. Take fsdp2 on 64 GPUs." in shown
    assert "On 2 GPUs fsdp2 needs" in shown
    ddp = json.loads(run(words, "--cluster", CLUSTER, "--workers", "64", "--plan", "ddp", "--json").stdout)["points"]
    assert (ddp[0]["strategy"], ddp[0]["fits"]) == ("ddp", "no")
    assert ddp[0]["step_time_s"] > 0
    free = run("resnet50-v100", "--cluster", "v100-10gbe", "--workers", "8", "--json")
    assert json.loads(free.stdout)["points"][0]["fits"] is None


@pytest.mark.parametrize(
    ("words", "options", "fits"),
    [
        ("llama3-8b:h100,seq32768,batch1,bf16,ac=full", f"--cluster {CLUSTER} --workers 64 --plan fsdp2", "yes"),
        (
            "llama3-8b:h100,seq4096,bf16",
            f"--cluster {CLUSTER} --workers 64 --plan zero-1 --tp 16",
            "yes",
        ),
        ("llama3-8b:h100,seq4096,bf16", f"--cluster {CLUSTER} --workers 128 --plan ddp --tp 32 --accumulate 8", "yes"),
        ("llama3.2-1b:h100,seq2048", f"--cluster {CLUSTER} --workers 16 --plan zero-2 --tp 2 --pp 4", "yes"),
        ("llama3-70b:h100,seq2048", f"--cluster {CLUSTER} --workers 16 --plan ddp", "no"),
        ("mpt-7b:a100-40gb,seq4096,batch8", "--cluster nccl:a100x8,200Gbps --workers 8 --plan fsdp2", "no"),
        ("llama3.2-1b:a100,seq2048", "--cluster azure-a100-hdr --workers 64 --plan hsdp", "yes"),
        ("llama3.2-1b:a100,seq2048", "--cluster azure-a100-hdr --workers 64 --plan zero-1 --tp 8", "yes"),
    ],
)
def test_what_people_train_has_its_time_memory_and_band(words, options, fits, monkeypatch):
    """Each was refused, or had no figures, where nothing forbids it. Without remedies, which test_rescues.py has."""
    monkeypatch.setattr("osfmodel.cli.scale.Rescuer.rescues", lambda self: [])
    done = run(words, *options.split(), "--json")
    assert done.exit_code == 0, done.output
    (point,) = json.loads(done.stdout)["points"]
    assert point["fits"] == fits
    assert point["step_time_s"] > 0
    assert point["peak_memory_bytes"] > 0
    assert point["error_band"]["low_s"] < point["step_time_s"] < point["error_band"]["high_s"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--anchor", "8=0s"), "above 0"),
        (("--anchor", "8"), "write N=TIME, N=RATE or N=FILE"),
        (("--anchor", "8=missing.log"), "no file is called so"),
        (("--anchor", "8=5"), "has no unit"),
        (("--anchor", "8=5parsecs"), "unknown time unit"),
        (("--target-scaling", "1.5"), "between 0 and 1"),
        (("--target-time", "5"), "has no unit"),
        (("--budget", "5"), "--budget: give --price"),
        (("--for", "torchtitanic"), "torchtitan"),
        (("-o", "x.pdf"), "x.pdf"),
        (("--tokens", "many"), "--tokens 'many'"),
        (("--tokens", "1T", "--samples", "5"), "give one of them"),
        (("--price", "-1"), "price"),
        (("--plan", "fsdp3"), "unknown plan 'fsdp3'"),
        (("--plan", "plan.json"), "osf scale compares named plans only"),
        (("--memory", "80"), "has no unit"),
        (("--optimizer", "sgd"), "--memory SIZE"),
    ],
)
def test_bad_options_get_one_line(options, said):
    done = run(WORDS, "--cluster", CLUSTER, "--workers", "8", *options)
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_page_has_every_figure_its_sources_and_its_command(tmp_path):
    """Without a script or a request; the figures are those of the document."""
    options = (WORDS, "--cluster", CLUSTER, "--workers", "8,64")
    done = run(*options, "--target-scaling", "0.9", "-o", str(tmp_path / "page.html"))
    assert done.exit_code == 0, done.output
    text = (tmp_path / "page.html").read_text()
    points = json.loads(run(*options, "--json").stdout)["points"]
    for point in points:
        assert f"<td>{point['workers']}</td><td>{point['strategy']}</td>" in text
        assert f"<td>{point['scaling_factor']:.3f}</td>" in text
    assert "osf scale llama3-70b+num_hidden_layers=4:h100" in text
    assert "Assumptions and sources" in text
    assert "<script" not in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org", "")


@pytest.mark.parametrize("high", [8, 64])
def test_error_bands_lie_between_the_numbers_of_their_axis(tmp_path, high):
    """On the page, where the axis ended with the longest of them."""
    options = (WORDS, "--cluster", CLUSTER, "--workers", f"4,{high}")
    assert run(*options, "-o", str(tmp_path / "page.html")).exit_code == 0
    text = (tmp_path / "page.html").read_text()
    lines = [dict(re.findall(r'([a-z0-9]+)="([^"]*)"', line)) for line in re.findall(r"<line [^>]*>", text)]
    grid = [float(line["y1"]) for line in lines if line.get("class") == "grid"]
    bands = [(float(line["y2"]), float(line["y1"])) for line in lines if "bound" in line["class"] and "%" in line["x1"]]
    assert len(bands) == 2
    for top, bottom in bands:
        assert min(grid) <= top < bottom <= max(grid)


def test_error_bands_lie_inside_the_picture(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    drawn = []
    monkeypatch.setattr(scale_picture, "save", lambda figure, path: drawn.append(figure))
    curve = osf.scale(osf.load_workload(WORDS), osf.load_cluster(CLUSTER), [4, 8, 64])
    scale_picture.plot_scale(curve, str(tmp_path / "curve.png"))
    bottom, top = drawn[0].axes[0].get_ylim()
    assert all(bottom < one.low < one.high < top for one in scale_picture.rates(curve.points))


@pytest.mark.parametrize("ending", [".png", ".svg"])
def test_a_picture_is_written(tmp_path, ending):
    pytest.importorskip("matplotlib")
    done = run(WORDS, "--cluster", CLUSTER, "--workers", "8,64", "-o", str(tmp_path / f"curve{ending}"))
    assert done.exit_code == 0, done.output
    assert (tmp_path / f"curve{ending}").stat().st_size > 5000


MACHINES = ("--cluster", "nccl:h100x8,400Gbps", "--cluster", "nccl:a100x8,200Gbps")


def test_the_cheapest_of_several_machines_is_found_by_hand():
    words = "llama3-8b+num_hidden_layers=2:h100,seq4096,batch1,bf16,ac=full"
    args = (words, *MACHINES, "--plan", "fsdp2", "--price", "2.5", "--price", "1.3")
    done = run(*args, "--workers", "8,16,32", "--target-tokens-per-s", "240k", "--json")
    assert done.exit_code == 0, done.output
    made = json.loads(done.stdout)
    assert [one["workload"] for one in made["machines"]] == [words, words.replace("h100", "a100")]
    meeting = [
        (price * point["workers"], one["cluster"], point["workers"])
        for one, price in zip(made["machines"], (2.5, 1.3), strict=True)
        for point in one["points"]
        if point["tokens_per_s"] >= 240e3
    ]
    (found,) = made["cheapest"]
    price, cluster, workers = min(meeting)
    assert found["predicted"] == {"cluster": cluster, "workers": workers, "price": pytest.approx(price)}
    assert found["price_per"] == "hour"
    asked = ("--workers", "16,32", "--target-tokens-per-s", "240k", "--tokens", "1T", "--json")
    trained = json.loads(run(*args, *asked).stdout)
    costs = [
        point["training_cost"]
        for one in trained["machines"]
        for point in one["points"]
        if point["tokens_per_s"] >= 240e3
    ]
    (found,) = trained["cheapest"]
    assert found["predicted"]["price"] == pytest.approx(min(costs))
    every = [
        (point["training_cost"], point["training_hours"], f"{point['workers']} GPUs of {one['cluster']}")
        for one in trained["machines"]
        for point in one["points"]
    ]
    (cost, hours, where), (dear, short, there) = min(every), min(every, key=lambda one: one[1])
    said = f"{where}, {amount(cost)} in {amount(hours)} hours; fastest: {there}, {amount(dear)} in {amount(short)}."
    assert f"For the whole training, cheapest: {said}" in " ".join(run(*args, *asked[:-1]).stdout.split())
    assert "whole training" not in run(*args, "--workers", "8").stdout
    assert found["price_per"] == "training"
    rows = run(*args, "--workers", "8,16", "--format", "csv").stdout.splitlines()
    assert len(rows) == 1 + 4


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--target-scaling", "0.9"), "needs --price, once or for each of them"),
        (("--price", "1", "--price", "2", "--price", "3"), "3 prices for 2 clusters"),
        (("--for", "torchtitan"), "are of one machine: give --cluster once"),
        (("-o", "page.html"), "are of one machine: give --cluster once"),
    ],
)
def test_several_machines_refuse_in_one_line(args, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run("llama3-8b:h100,batch1", *MACHINES, "--workers", "8,16", "--plan", "fsdp2", *args)
    assert done.exit_code != 0
    assert said in done.output
    assert not list(tmp_path.iterdir())


def test_several_prices_need_several_machines():
    done = run(WORDS, "--cluster", CLUSTER, "--workers", "8", "--price", "1", "--price", "2")
    assert done.exit_code != 0
    assert "one for each --cluster" in done.output


def test_a_workload_and_a_cluster_with_different_gpus_are_refused():
    done = run(WORDS, "--cluster", "nccl:a100x8,200Gbps", "--workers", "8")
    assert done.exit_code != 0
    assert f"write {WORDS.replace('h100', 'a100')}" in done.output


def test_settings_that_do_not_fit_are_told():
    done = run(WORDS, "--cluster", CLUSTER, "--workers", "8", "--for", "megatron")
    assert done.exit_code == 0, done.output
    assert "the settings of megatron do not fit: PyTorch reserves about" in done.output
    fits = run(WORDS, "--cluster", CLUSTER, "--workers", "8", "--for", "fsdp2")
    assert "do not fit" not in fits.output


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ("llama3-8b:h100", "-o", "page.pdf"),
            "this is written as text, .json, .yaml or .csv; or as .html or .png or .svg",
        ),
        (("config.json",), "is a model's configuration: add a colon and a GPU"),
        (("notes.json",), "no schema_version); to convert another tool's output: osf import"),
    ],
)
def test_files_are_refused_with_what_would_do(args, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "notes.json").write_text('{"a": 1}')
    done = run(*args, "--cluster", CLUSTER, "--workers", "8", "--plan", "fsdp2")
    assert done.exit_code != 0
    assert said in done.output
    assert done.output.count("osf import") <= 1
    assert len(done.output.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "said"), [("1.5", "must be between 0 and 1"), ("much", "write a number such as 0.9 or 90%")]
)
def test_a_scaling_factor_is_a_number_or_percent(text, said):
    done = run(WORDS, "--cluster", CLUSTER, "--workers", "8", "--plan", "fsdp2", "--target-scaling", text)
    assert done.exit_code != 0
    assert said in done.output


def test_a_scaling_factor_in_percent_is_the_number():
    both = [
        run(WORDS, "--cluster", CLUSTER, "--workers", "8", "--plan", "fsdp2", "--target-scaling", one).output
        for one in ("0.9", "90%")
    ]
    assert both[0] == both[1]
    assert "scaling factor of 0.9" in both[0]


def test_a_bandwidth_is_told_as_a_rate_where_it_is_known():
    answer = Answer("a goal", "bandwidth", 64, {"fast": 0, "predicted": 2.12, "slow": None}, present=12.5e9)
    rate = "210 Gbps per GPU (2.1 times the present)"
    ends = "any would do at the fast end of the error band, none would do at the slow end"
    assert answer.words == f"For a goal on 64 GPUs, bandwidth of the network: {rate}; {ends}."
    unknown = replace(answer, present=None)
    assert unknown.words == f"For a goal on 64 GPUs, bandwidth of the network: 2.1 times the present; {ends}."


@pytest.mark.parametrize("plan", ["zero-1", "zero-2", "fsdp2", "fsdp2:keep", "hsdp"])
@pytest.mark.parametrize("words", ["llama3.2-1b:h100,seq4096,batch2,bf16", "gpt2:a100,seq1024,batch8,bf16,ac=full"])
def test_the_peak_of_many_micro_batches_is_that_of_a_few(plan, words):
    cluster = osf.load_cluster("nccl:h100x8,25Gbps")
    workload = osf.WhatIf(accumulate=8).of_workload(osf.load_workload(words), 1)
    (found,) = osf.compare(workload, cluster, 64, [plan]).predictions
    whole = peak_of(found.bound.question.workload, found.plan, found.timeline, 64)
    assert found.plan.sharding.micro_batches == 8
    assert strategy_row(found, 64, None, sized=True).peak.bytes == whole.bytes


def test_a_picture_says_the_groups_and_what_ifs_of_its_curve(tmp_path):
    path = tmp_path / "curve.svg"
    args = ("--cluster", CLUSTER, "--workers", "8,16", "--plan", "fsdp2", "--tp", "2", "--accumulate", "4")
    assert run(WORDS, *args, "-o", str(path)).exit_code == 0
    assert "tp 2, 4 micro-batches accumulated" in path.read_text()
