"""DDP, ZeRO, FSDP2 or HSDP: the choice at each worker count, by time and by memory."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest

from osfmodel import DataError, Layer, UsageError, Workload, load_cluster, load_workload, make_plan, predict, tune
from osfmodel.entities.display import show_bytes, show_predicted_time, show_share
from osfmodel.entities.files import profiles
from osfmodel.entities.files.documents import document_of
from osfmodel.planning.cautions import SLOWER
from osfmodel.planning.tuning import choosing
from osfmodel.planning.tuning.choosing import STRATEGY_PLANS, counts_up_to, tune_any
from osfmodel.planning.what_if import WhatIf
from osfmodel.show.tuned import StrategiesTuned
from osfmodel.solve.solution import MemoryLimit
from osfmodel.solve.verdicts import largest_part, peak_of, shortfall
from tests.commands import invoke

GIB = 2**30
BLOCKS = [Layer(f"layers.{i}.{part}.weight", 3e-3, 6e-3, 50_000_000) for i in range(8) for part in "ab"]
MODEL = Workload("like-bert", (Layer("emb.weight", 2e-4, 2e-4, 125_000_000), *BLOCKS), 8, update_time=1e-3)
NODES = load_cluster("nccl:v100x8,20Gbps")


@cache
def chosen(limit=None, counts=(32,), workload=MODEL, cluster=NODES, **more):
    room = None if limit is None else MemoryLimit(limit, "adamw")
    return tune_any(workload, cluster, counts, room, **more)


settled = cache(tune)


@pytest.fixture(autouse=True)
def settled_once(monkeypatch):
    """Tests that ask for the same lines share them."""
    monkeypatch.setattr(choosing, "tune", settled)


def test_every_strategy_is_predicted_as_predict_does():
    rows = chosen(16 * GIB).last.rows
    assert [row.name for row in rows] == list(STRATEGY_PLANS)
    for row in rows:
        assert row.time == predict(MODEL, NODES, row.name, 32).iteration_time


def test_ddp_stays_where_it_fits_and_nothing_is_faster_beyond_doubt():
    made = chosen(16 * GIB)
    last = made.last
    assert last.chosen is last.base
    assert last.base.name == "ddp"
    assert last.fastest.name == "hsdp"
    assert last.chance.low < 0 < last.chance.high
    assert made.verdict.startswith("Leave it at DDP unless you can measure: hsdp is predicted to take 1.7% less time")
    assert made.tuning.target == "ddp"


def test_what_does_not_fit_is_not_taken_and_the_verdict_says_why():
    made = chosen(3 * GIB)
    fits = {row.name: row.fits for row in made.last.rows}
    assert fits["ddp"] == "no"
    assert fits["zero-1"] == "no"  # whose buffer alone takes 1.9 GiB by default
    assert all(fits[name] == "yes" for name in ("fsdp2", "fsdp2:keep", "hsdp"))
    assert made.last.base.name == "fsdp2"
    assert made.last.chosen.name == "hsdp"
    assert "the largest part is optimizer state, 1.723 GiB: zero-1, fsdp2 or hsdp shard it" in made.verdict
    assert made.last.chosen.time == min(row.time for row in made.last.rows if row.fits == "yes")


def test_where_nothing_fits_the_smallest_is_explained_and_nothing_is_printed():
    made = chosen(50 * 2**20)
    assert made.last.chosen is None
    assert made.verdict.startswith("Nothing fits. fsdp2 needs 553.6 MiB of 50.00 MiB; the largest part is unsharded")
    assert made.written("") == ""
    assert made.turns == "nothing with 32 workers"


def test_without_a_limit_everything_is_taken_to_fit():
    made = chosen()
    assert {row.fits for row in made.last.rows} == {None}
    assert any("memory is not compared" in note for note in made.notes)


def test_each_worker_count_has_its_choice():
    made = chosen(3 * GIB, (2, 8, 32))
    assert [choice.workers for choice in made.choices] == [2, 8, 32]
    assert [choice.chosen.name for choice in made.choices] == ["fsdp2", "fsdp2", "hsdp"]
    assert made.turns == "fsdp2 with 2 to 8 workers, hsdp with 32 workers"


def test_hsdp_on_one_node_is_not_listed_beside_fsdp2():
    assert "hsdp" not in [row.name for row in chosen(counts=(8,)).last.rows]


@pytest.mark.parametrize(
    ("cluster", "workers", "counts"),
    [("nccl:v100x8,25Gbps", 12, (2, 4, 8, 12)), ("b200-node", 6, (2, 4, 6)), ("nccl:v100x8,25Gbps", 1, (1,))],
)
def test_counts_are_powers_of_two_or_those_that_were_measured(cluster, workers, counts):
    assert counts_up_to(load_cluster(cluster), workers) == counts


def test_one_worker_is_not_compared_with_itself():
    workload = load_workload("resnet50-memory")
    for workers, said in ((2, True), (1, False)):
        finished = predict(workload, NODES, "ddp", workers).finished
        slow = replace(finished, seconds=3 * workload.compute_time)
        assert (SLOWER.format(workers=workers) in "".join(slow.caveats())) == said


@pytest.mark.parametrize("name", ["zero-1", "zero-2"])
def test_lines_of_zero_are_deepspeeds(name, monkeypatch):
    """The other strategies left out, as where they do not fit."""
    monkeypatch.setattr(choosing, "STRATEGY_PLANS", {name: 0})
    made = chosen.__wrapped__(16 * GIB)
    assert json.loads(made.written(".json"))["zero_optimization"]["stage"] == int(name[-1])
    assert made.tuning.target == {"zero-1": "deepspeed", "zero-2": "zero-2"}[name]


def test_lines_of_kept_groups_keep_them(monkeypatch):
    monkeypatch.setattr(choosing, "STRATEGY_PLANS", {"fsdp2:keep": 0})
    assert "reshard_after_forward=False" in chosen.__wrapped__(16 * GIB).written("")


def test_memory_of_a_profile_with_activations_counts_them():
    workload = load_workload("resnet50-memory")
    made = tune_any(workload, NODES, (8,))
    peaks = {row.name: row.peak.bytes for row in made.last.rows}
    assert peaks["zero-1"] > peaks["ddp"] > peaks["fsdp2"] > 2 * GIB  # DeepSpeed's buffer is allocated whole
    assert not any("without activations" in note for note in made.notes)
    assert any("without activations" in note for note in chosen(16 * GIB).notes)


def test_the_largest_part_and_its_remedy():
    plan = make_plan("fsdp2:keep", MODEL, choosing.pricing_of(NODES, 32, MODEL))
    timeline = predict(MODEL, NODES, plan, 32).timeline
    level = peak_of(MODEL, plan, timeline, 32, "adamw")
    assert largest_part(level) == "unsharded groups"
    assert "reshard_after_forward=True frees kept groups" in shortfall(level, plan, GIB)
    assert level.bytes == sum(level.held.values())


def test_what_cannot_be_answered_is_refused():
    with pytest.raises(DataError, match=r"give --optimizer adamw \(known: sgd, momentum, adam, adamw\)"):
        tune_any(MODEL, NODES, (32,), MemoryLimit(GIB))
    with pytest.raises(UsageError, match="--compression does not work with --memory"):
        chosen(GIB, what_if=WhatIf(compression="fp16"))
    with pytest.raises(UsageError, match="a memory limit of 0 bytes"):
        MemoryLimit(0)


@pytest.fixture
def osf_(tmp_path):
    """The command ``osf tune`` for a file of MODEL."""
    path = tmp_path / "model.json"
    profiles.save(MODEL, path)
    return lambda *words: invoke(["tune", str(path), "--cluster", NODES.name, *words])


def test_one_command_compares_and_prints_lines(osf_, tmp_path, monkeypatch):
    once = cache(tune_any)
    monkeypatch.setattr(choosing, "tune_any", lambda job, where, counts, *more: once(job, where, tuple(counts), *more))
    asked = ["--workers", "16,32", "--for", "any", "--memory", "3GiB", "--optimizer", "adamw"]
    text = osf_(*asked).stdout
    assert "strategy    iteration  against fsdp2" in text
    assert "Take hsdp with 16 to 32 workers. In brackets: does not fit." in text
    assert "mesh = init_device_mesh(" in text
    document = json.loads(osf_(*asked, "--json").stdout)
    assert (document["workers"], document["recommended"], document["base"]) == (32, "hsdp", "fsdp2")
    assert [one["workers"] for one in document["sweep"]] == [16, 32]
    assert document["strategies"][0]["fits"] == "no"
    assert "fully_shard(" in document["rendered"]
    path = tmp_path / "hsdp.py"
    assert osf_(*asked, "-o", str(path)).exit_code == 0
    assert path.read_text() == document["rendered"]
    rows = osf_(*asked, "--format", "csv").stdout.splitlines()
    assert len(rows) == 1 + 2 * len(STRATEGY_PLANS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-bucket", "4MiB"], "--max-bucket does not work with --for any, which compares defaults"),
        (["--channels", "2"], "--channels does not work with --for any"),
        (["--lines", "slurm"], "--lines does not work with --for any"),
        (["--memory", "4GiB", "--sparse"], "--sparse works only with osf.execute"),
        (["--memory", "4GiB"], "give --optimizer adamw"),
        (["--live", "folder"], "--for any does not work with --live"),
    ],
)
def test_options_that_compare_nothing_are_refused(osf_, words, message):
    workers = [] if "--live" in words else ["--workers", "8"]
    result = osf_(*workers, "--for", "any", *words)
    assert result.exit_code in (1, 2)
    assert message in result.stderr


def test_a_strategy_is_asked_for_by_the_name_that_the_table_has(osf_):
    found, other = (osf_("--workers", "8", "--for", name, "--json") for name in ("zero-1", "deepspeed"))
    assert found.exit_code == 0
    assert json.loads(found.stdout) == json.loads(other.stdout)
    assert tune(MODEL, NODES, 8, "zero-1").target == "deepspeed"


def test_a_doubtless_gain_is_taken(monkeypatch):
    """All draws alike: the fastest is taken, however small its gain."""
    found = choosing.Chance(0.01, 0.02, 1.0)
    monkeypatch.setattr(choosing, "chance", lambda *words: found)
    assert chosen.__wrapped__(16 * GIB).last.chosen.name == "hsdp"
    monkeypatch.setattr(choosing, "chance", lambda *words: replace_low(found))
    assert chosen.__wrapped__(16 * GIB).last.chosen.name == "ddp"


def replace_low(found):
    return found._replace(low=-0.01)


def test_worker_counts_without_prices_are_left_out():
    """HSDP needs prices inside nodes, which tables of both counts give."""
    cluster = load_cluster("b200-node")
    made = tune_any(MODEL, cluster, (3, 4))
    assert [choice.workers for choice in made.choices] == [4]


def test_kept_groups_within_memory_are_the_lines_of_the_strategy():
    """FSDP2 on a slow network, with room for some of its groups."""
    slow = load_cluster("v100-10gbe")
    each = chosen(16 * GIB, (16,), cluster=slow).last
    peaks = {row.name: row.peak.bytes for row in each.rows}
    limit = (peaks["fsdp2"] + peaks["fsdp2:keep"]) // 2
    made = chosen(limit, (16,), cluster=slow)
    assert made.last.chosen.name == "fsdp2"
    assert "kept = {" in made.written("")
    assert "reshard_after_forward=number not in kept" in made.written("")
    timeline = predict(MODEL, slow, made.tuning.plan, 16).timeline
    assert peak_of(MODEL, made.tuning.plan, timeline, 16, "adamw").bytes <= limit
    assert any(" groups are kept until backward" in note for note in made.tuning.notes)
    peak = show_bytes(made.tuned.peak.bytes)
    assert f"Its tuned lines take {show_predicted_time(timeline.iteration_time)} and {peak} of" in made.verdict
    assert made.plan == made.tuning.plan
    document = StrategiesTuned(made).document()
    assert document["plan"] == document_of(made.plan)
    assert document["tuned"]["peak_memory_bytes"] == made.tuned.peak.bytes <= limit
    assert document["strategies"][0]["fits"] == "no"


def test_lines_are_the_defaults_where_tuning_gains_nothing(monkeypatch):
    """Verdict, lines and plan are of the strategy as it was compared."""
    monkeypatch.setattr(choosing, "WORTHWHILE", 0.99)
    made = chosen.__wrapped__(1 * GIB)
    assert made.tuned is None
    assert made.plan is made.last.chosen.prediction.plan
    assert "tuned lines" not in made.verdict
    assert "reshard_after_forward=True" in made.written("")


@pytest.mark.parametrize("target", ["fsdp2", pytest.param("hsdp", marks=pytest.mark.long)])
def test_memory_of_sharded_targets_on_the_command_line(osf_, target):
    asked = ["--workers", "32", "--for", target, "--memory", "1GiB", "--optimizer", "adamw"]
    document = json.loads(osf_(*asked, "--json").stdout)
    assert any("of 1.000 GiB are taken" in note for note in document["notes"])
    assert any("without activations" in note for note in document["notes"])
    low = osf_(*asked[:-3], "200MiB", *asked[-2:])
    assert low.exit_code == 1
    assert "does not fit: a group per block needs" in low.stderr


def test_osf_memory_says_what_does_not_fit():
    words = [
        "memory",
        "resnet50-memory",
        "--cluster",
        "v100-10gbe",
        "--workers",
        "16",
        "--plan",
        "ddp",
        "--plan",
        "fsdp2",
    ]
    text = invoke([*words, "--memory", "2.66GiB"]).stdout
    said = " ".join(text.split())
    assert "Does not fit: ddp needs 2.879 GiB of 2.660 GiB; the largest part is activations and scratch" in said
    assert "Does not fit: fsdp2 needs 2.646 GiB, for which PyTorch reserves" in said
    document = json.loads(invoke([*words, "--memory", "2.66GiB", "--json"]).stdout)
    assert [plan["fits"] for plan in document["plans"]] == ["no", "no"]
    chances = [show_share(plan["fits_chance"]) for plan in document["plans"]]
    reserved = [show_bytes(plan["reserved_memory_bytes"]) for plan in document["plans"]]
    assert " ".join(["chance to fit", *chances]) in said
    assert " ".join(["PyTorch may reserve", *reserved]) in said
    assert text.count("osf scale resnet50-memory --cluster v100-10gbe --workers 16 --memory 2.66GiB\n") == 1
    roomy = json.loads(invoke([*words, "--memory", "3.1GiB", "--json"]).stdout)["plans"]
    assert [plan["fits"] for plan in roomy] == ["tight", "yes"]
    assert [plan["lacking"] is None for plan in roomy] == [False, True]
    assert all(plan["reserved_memory_bytes"] >= plan["peak_bytes"] for plan in roomy)
    assert "Tight, with a chance of" in invoke([*words, "--memory", "3.1GiB"]).stdout
    assert "Fits into 3.500 GiB." in invoke([*words, "--memory", "3.5GiB"]).stdout


def test_tune_holds_a_model_in_words_against_the_memory_of_its_gpu():
    """7.4 billion parameters with AdamW take 16 bytes each: no replicated plan fits into an H100."""
    words = "llama3-405b+num_hidden_layers=1:h100,seq4096,batch1,bf16"
    asked = ["tune", words, "--cluster", "nccl:h100x8,400Gbps", "--workers", "16"]
    document = json.loads(invoke([*asked, "--for", "any", "--json"]).stdout)
    fits = {one["plan"]: one["fits"] for one in document["strategies"]}
    assert (fits["ddp"], fits["fsdp2"], document["recommended"]) == ("no", "yes", "fsdp2")
    assert document["limit_bytes"] < 80e9 + 6e9
    roomy = json.loads(invoke([*asked, "--for", "any", "--memory", "400GB", "--json"]).stdout)
    assert roomy["strategies"][0]["fits"] == "yes"
    alone = invoke([*asked, "--for", "ddp"])
    assert "do not fit: PyTorch reserves about" in alone.stderr
    assert "fsdp2, hsdp fit" in " ".join(alone.stderr.split())
    unasked = invoke([*asked, "--json"])
    assert json.loads(unasked.stdout)["target"] == "fsdp2"
    assert "these are settings of fsdp2; for those of ddp: --for ddp" in " ".join(unasked.stderr.split())
    bounded = invoke([*asked, "--max-buckets", "300", "--json"])
    assert json.loads(bounded.stdout)["target"] == "ddp"


@pytest.mark.parametrize(
    "options",
    [
        ["--workers", "16", "--plan", "fsdp2"],
        ["--workers", "16", "--plan", "fsdp2", "--tp", "2", "--pp", "2", "--accumulate", "4"],
        ["--workers", "16", "--plan", "zero-1", "--cp", "2"],
    ],
)
def test_osf_memory_of_words_has_the_peak_of_scale_and_its_owners(options):
    asked = ["llama3-8b:h100,seq4096,batch1,bf16", "--cluster", "nccl:h100x8,400Gbps", *options, "--json"]
    (plan,) = json.loads(invoke(["memory", *asked]).stdout)["plans"]
    (point,) = json.loads(invoke(["scale", *asked]).stdout)["points"]
    assert plan["peak_bytes"] == point["peak_memory_bytes"] == sum(plan["peak_owners"].values())
    for key in ("reserved_memory_bytes", "fits", "fits_chance"):
        assert plan[key] == point[key]


def test_words_without_a_stack_have_the_mean_chance_of_eager_and_compiled_blocks():
    """But for a stack that a model was trained with, and where the eager step surely fits."""
    asked = ["--cluster", "nccl:a100x4,100Gbps", "--workers", "8", "--plan", "fsdp2", "--json"]

    def plan_and_notes(words, memory="57GiB"):
        found = json.loads(invoke(["memory", words, *asked, "--memory", memory]).stdout)
        return *found["plans"], [note for note in found["notes"] if "the words name no stack" in note]

    def chance(words, memory="57GiB"):
        return plan_and_notes(words, memory)[0]["fits_chance"]

    words = "llama3.2-1b:a100,seq4096,batch4,bf16"
    each = [chance(f"{words},stack={stack}") for stack in ("eager", "compile")]
    assert each[1] - each[0] > 0.1
    assert chance(words) == pytest.approx(sum(each) / 2)
    eager, compiled = (
        show_bytes(plan_and_notes(f"{words},stack={stack}")[0]["peak_bytes"]) for stack in ("eager", "compile")
    )
    (said,) = plan_and_notes(words)[1]
    assert f"with fsdp2 eager blocks hold {eager}, compiled ones {compiled}, and the chance is the mean of both" in said
    for sure in (words, "400GiB"), (f"{words},stack=eager", "57GiB"):
        assert plan_and_notes(*sure)[1] == []
    assert chance(words, "400GiB") == chance(f"{words},eager", "400GiB")
    trained = "mpt-1b:a100,seq2048,batch8,bf16"
    assert chance(trained, "30GiB") == chance(f"{trained},stack=composer", "30GiB")


@pytest.mark.parametrize(
    ("more", "remedy"),
    [
        ("batch2", "a smaller batch, or activation checkpointing"),
        ("batch2,ac=full", "a smaller batch."),
        ("batch1", "activation checkpointing."),
        ("batch1,ac=full", "tensor or context parallelism, or activations offloaded to the host"),
    ],
)
def test_a_remedy_is_none_that_was_taken_already(more, remedy):
    asked = [f"llama3-8b:h100,seq65536,bf16,{more}", "--cluster", "nccl:h100x8", "--workers", "8", "--plan", "fsdp2"]
    shown = " ".join(invoke(["memory", *asked, "--memory", "20GiB"]).stdout.split())
    assert f"GiB: {remedy}" in shown


def test_blocks_of_another_number_are_taken_as_a_share_with_a_word():
    said = {
        part: invoke(["memory", f"llama3-8b:h100,ac={part}"]).stdout for part in ("full:8/30", "full:8/32", "full:1/2")
    }
    assert "llama3-8b has 32 blocks: ac=full:8/30 is taken as a share, 9 of them" in " ".join(said["full:8/30"].split())
    assert not any("as a share" in said[part] for part in ("full:8/32", "full:1/2"))


def test_osf_memory_of_words_alone_is_held_against_their_gpu():
    words = ["memory", "llama3-8b:h100,batch1,bf16"]
    shown = invoke(words).stdout
    assert "Does not fit: a single worker needs" in shown
    refused = invoke([*words, "--tp", "2"])
    assert "a single worker has no groups: give --cluster and --workers" in refused.output + refused.stderr
