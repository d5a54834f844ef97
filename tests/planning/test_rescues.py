"""Changes that make a step fit that does not: every command that is printed is run, and fits."""

import json
import re
import shlex

import pytest

from tests.commands import invoke

H100, A100 = "nccl:h100x8,400Gbps", "nccl:a100x8,200Gbps"
WIDE, WIDER = "llama3-70b+num_hidden_layers=8", "llama3-405b+num_hidden_layers=20"
"""Few wide blocks: as many parameters as llama3-8b and llama3-70b."""


def points(*words):
    done = invoke(["scale", *words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "asked",
    [
        [f"{WIDE}:h100,seq8192,bf16", "--cluster", H100, "--workers", "16", "--plan", "ddp"],
        [f"{WIDER}:h100,seq8192,ac=full,bf16", "--cluster=" + H100, "--workers", "8,16", "--accumulate", "2",
         "--plan", "fsdp2"],
        [f"{WIDE}:h100,seq8192,bf16", "--cluster", H100, "--workers", "16", "--tp", "1", "--tp", "2",
         "--global-batch", "32", "--accumulate", "2", "--memory", "50GB"],
        ["mpt-7b:a100-40gb,seq4096,batch8", "--cluster", A100, "--workers", "8", "--plan", "fsdp2", "--price", "2"],
        [f"{WIDE}:h100,seq8192,batch2,bf16", "--cluster", H100, "--workers", "8", "--memory", "60GB"],
        [f"{WIDE}:h100,seq8192,ac=full", "--cluster", H100, "--workers", "2", "--plan", "zero-3", "--for", "zero-3"],
        ["olmoe-1b-7b:h100,seq4096,bf16", "--cluster", H100, "--workers", "16", "--plan", "ddp"],
        ["resnet50-memory", "--cluster", "v100-10gbe", "--workers", "16", "--plan", "ddp", "--memory", "2.7GiB"],
        pytest.param(
            [f"{WIDE}:h100,seq8192,batch4,bf16", "--cluster", H100, "--workers", "64"], marks=pytest.mark.long
        ),
        pytest.param(
            [f"{WIDER}:h100,seq8192,bf16", "--cluster", H100, "--workers", "16", "--pp", "2", "--accumulate", "8"],
            marks=pytest.mark.long,
        ),
    ],
)  # fmt: skip
def test_each_remedy_fits_when_it_is_run_and_keeps_the_samples_of_a_gpu(asked):
    found = points(*asked)
    assert {point["fits"] for point in found["points"]} & {"no", "tight"}
    assert found["remedies"], asked
    for place, one in enumerate(found["remedies"]):
        program, command, *rest = shlex.split(one["command"])
        assert (program, command) == ("osf", "scale")
        (point,) = points(*rest)["points"]
        assert point["fits"] == "yes", one
        assert point["strategy"] == one["strategy"]
        assert point["step_time_s"] == pytest.approx(one["step_time_s"], rel=1e-9)
        before = found["remedies"][place - 1]
        assert place == 0 or before["workers"] < one["workers"] or before["rate_lost"] <= one["rate_lost"]
        if "--global-batch" not in asked:
            samples = [
                each["samples_per_s"] * each["step_time_s"] / each["workers"] for each in (point, *found["points"])
            ]
            assert samples == pytest.approx([samples[0]] * len(samples))


@pytest.mark.parametrize(("target", "kept"), [("torchtitan", True), ("fsdp2", False)])
def test_remedies_with_groups_keep_a_framework_whose_settings_say_them(target, kept):
    asked = ["llama3-8b:h100,seq8192,bf16", "--cluster", H100, "--workers", "8"]
    commands = [one["command"] for one in points(*asked, "--plan", "fsdp2", f"--for={target}")["remedies"]]
    with_groups = [f"--for={target}" in one for one in commands if "--tp" in one]
    assert with_groups == [kept] * len(with_groups) != []
    assert all(f"--for={target}" in one for one in commands if "--tp" not in one)


def test_checkpointing_is_no_remedy_where_all_is_repeated_already():
    asked = [f"{WIDER}:h100,seq8192,bf16,ac=full", "--cluster", H100, "--workers", "8", "--plan", "fsdp2"]
    shown = invoke(["scale", *asked]).stdout
    assert "checkpointing" not in shown
    assert not any("ac=" in one["change"] for one in points(*asked)["remedies"])
    tuned = invoke(["tune", *asked[:-2], "--for", "any"])
    assert "Nothing fits" in tuned.stdout
    assert "activation checkpointing" not in tuned.stdout
    remedies = shlex.join(["osf", "scale", *asked[:-2]])
    assert " ".join(tuned.stderr.split()).endswith(f"what fits, and what that costs: {remedies}")
    alone = invoke(["tune", *asked[:-2]]).stderr
    assert " ".join(alone.split()).endswith(f"osf scale looks for changes that do: {remedies}")


@pytest.mark.parametrize(
    ("asked", "words", "kept"),
    [
        (["memory", "llama3-8b:h100,batch1"], "llama3-8b:a100,batch1", ["--optimizer", "sgd", "--accumulate", "2"]),
        (["memory", "llama3-8b:a100"], "llama3-8b:a100", ["--batch-size", "2", "--memory", "20GiB"]),
        (
            ["tune", "llama3-8b:h100,batch1", "--for", "any"],
            "llama3-8b:a100,batch1",
            ["--bandwidth", "x2", "--compute", "x2", "--accumulate", "4", "--memory", "5GiB", "--optimizer", "sgd"],
        ),
    ],
)
def test_the_command_for_what_fits_asks_the_same_question(asked, words, kept):
    where = ["--cluster", "nccl:a100x8,200Gbps", "--workers", "8"]
    done = invoke([*asked, *where, *kept])
    (said,) = re.findall(r"What fits, and what that costs: (osf .*)", f"{done.stdout}\n{done.stderr}", re.IGNORECASE)
    command = shlex.split(said)
    assert command[:7] == ["osf", "scale", words, *where]
    assert sorted(command[7:]) in (sorted(kept), sorted([*kept, "--memory", "78.76GiB"]))
    assert invoke(command[1:]).exit_code == 0


def test_experts_are_shared_where_a_model_has_some():
    asked = ["--cluster", H100, "--workers", "16", "--plan", "ddp"]
    with_experts, without = (
        [one["change"] for one in points(f"{name}:h100,seq4096,batch2,bf16", *asked)["remedies"]]
        for name in ("olmoe-1b-7b", WIDE)
    )
    assert any("--ep" in change for change in with_experts)
    assert without
    assert not any("--ep" in change for change in without)


def test_what_fits_has_no_remedies_and_people_see_the_commands_of_what_does_not():
    words = f"{WIDE}:h100,seq8192,batch2,bf16,ac=full"
    asked = [words, "--cluster", H100, "--workers"]
    assert points(*asked, "16")["remedies"] == []
    shown = invoke(["scale", *asked, "16", "--plan", "ddp"]).stdout
    assert "To be sure that it fits on 16 GPUs, what costs least first:" in shown
    assert f"osf scale {words} --cluster" in shown


@pytest.mark.parametrize(
    ("words", "asked", "changes"),
    [
        (f"{WIDER}:h100,seq8192,ac=full", [], ["offload=optimizer"]),
        (f"{WIDE}:h100,seq8192,offload=optimizer", ["--memory", "44GB"], ["offload=optimizer+activations"]),
        (f"{WIDE}:h100,seq8192", ["--memory", "45GB"], ["offload=activations"]),
    ],
)
def test_the_host_is_a_remedy_that_adds_to_what_it_has(words, asked, changes):
    found = points(words, "--cluster", H100, "--workers", "8", "--plan", "fsdp2", *asked)["remedies"]
    said = [one for one in found if one["change"] in changes]
    assert [one["change"] for one in said] == changes
    for one in said:
        (point,) = points(*shlex.split(one["command"])[2:])["points"]
        assert point["fits"] == "yes"


def test_settings_of_a_step_that_is_tight_are_given():
    """More live bytes than a GPU has, by less than their doubt: the table takes FSDP2, and so do the settings."""
    asked = ["llama2-13b:a100,seq4096,batch2,bf16", "--cluster", "nccl:a100x8,200Gbps", "--workers", "32"]
    done = invoke(["scale", *asked, "--for", "torchtitan", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    (point,) = found["points"]
    assert (point["strategy"], point["fits"]) == ("fsdp2", "tight")
    assert point["peak_memory_bytes"] > found["limit_bytes"]
    assert 'fsdp_reshard_after_forward = "default"' in json.dumps(found).replace('\\"', '"')


def test_settings_that_cannot_fit_are_refused_with_a_command_whose_settings_do():
    words = f"{WIDE}:h100,seq8192,batch2"
    asked = [words, "--cluster", H100, "--workers", "8", "--for=torchtitan"]
    refused = invoke(["scale", *asked])
    assert refused.exit_code != 0
    _, _, command = refused.stderr.partition("; this fits: osf ")
    done = invoke(shlex.split(command))
    assert done.exit_code == 0, done.output
    assert "[activation_checkpoint]" in done.stdout
    assert "do not fit" not in done.stderr
    other = invoke(["scale", *asked[:-1], "--for", "hsdp"])  # remedies are of FSDP2
    assert "; this fits:" not in other.stderr
