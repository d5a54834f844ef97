"""A tuning and the prediction of its plan agree to the last digit: from a file, and in the library."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest

import osfmodel as osf
from osfmodel.entities.plan import SPLIT
from osfmodel.planning.tuning import tune
from osfmodel.solve.solution import MemoryLimit
from osfmodel.targets import CONFIG_TARGETS
from tests.cli.test_cli import run, run_json
from tests.draws import many
from tests.read_back import pairs, workload

SEED = 20261129
WORKLOAD, CLUSTER = workload(Random(2)), osf.load_cluster("hierarchical:4,5us,200GB/s,50us,25Gbps")
EFFECTS = osf.Effects(hook_time=2e-5, tensor_time=1e-5, copy_in=3e-12, copy_out=3e-12, fusion_copy=2e-12)


@many(len(CONFIG_TARGETS) + 1, 36)
def test_plan_files_of_all_targets_are_predicted_as_they_were_tuned(tmp_path, many):
    """One for each target and for any of them."""
    found = list(pairs(SEED, many, tmp_path))
    assert len(found) == many
    assert [str(pair) for pair in found if pair.differences] == []


@pytest.mark.parametrize(
    ("target", "objective", "limits"),
    [
        ("horovod", osf.Objective(), osf.Limits()),
        ("runtime", osf.Objective(strategy=SPLIT), osf.Limits()),
        ("runtime", osf.Objective(2, True), osf.Limits()),
        pytest.param("runtime", osf.Objective(2, True, SPLIT), osf.Limits(), marks=pytest.mark.long),
        ("byteps", osf.Objective(), osf.Limits()),
        ("fsdp2", osf.Objective(), osf.Limits(max_bucket_bytes=32 << 20)),
        ("fsdp2", osf.Objective(), osf.Limits(memory=MemoryLimit(80 << 20, "adam"))),
        ("hsdp", osf.Objective(), osf.Limits()),
        ("distributed-optimizer", osf.Objective(), osf.Limits()),
    ],
)
def test_the_library_predicts_plans_as_they_were_tuned(target, objective, limits, tmp_path):
    cluster = replace(CLUSTER, effects=EFFECTS)
    tuning = tune(WORKLOAD, cluster, (8,) if target == "runtime" else (8, 16), target, limits, objective)
    for outcome in tuning.outcomes:
        osf.save(outcome.plan, tmp_path / "plan.json")
        for plan in (outcome.plan, osf.load_plan(tmp_path / "plan.json")):
            found = osf.predict(WORKLOAD, cluster, plan, outcome.workers)
            assert found.iteration_time == outcome.tuned_time
            assert found.timeline.exposed_communication == outcome.exposed_time
            assert (found.lower_bound, found.band) == (outcome.lower_bound, outcome.band)


@pytest.fixture
def subject(tmp_path):
    osf.save(WORKLOAD, tmp_path / "workload.json")
    return [tmp_path / "workload.json", "--cluster", "v100-10gbe", "--workers", "16"]


@pytest.fixture
def tuned(subject, tmp_path):
    """A function (name, options) -> the file of a tuning."""

    def made(name, *options):
        assert run("tune", *subject, *options, "-o", tmp_path / name).exit_code == 0
        return tmp_path / name

    return made


def test_options_of_a_tuning_are_taken_over_unless_the_command_line_gives_others(subject, tuned):
    file = tuned("plan.json", "--accumulate", "4", "--effect", "none", "--effect", "hook-time=20us")
    read = run("predict", *subject, "--plan", file)
    assert f"--accumulate 4, as {file} was tuned" in read.stderr
    assert f"--effect none --effect hook-time=20us, as {file} was tuned" in read.stderr
    both = ["--effect", "none", "--effect", "hook-time=20us"]
    other = run("predict", *subject, "--plan", file, "--accumulate", "2", *both)
    assert f"{file} was tuned with --accumulate 4, and is predicted with what is given here" in other.stderr
    assert "2 micro-batches accumulated" in other.stdout
    assert "--effect" not in other.stderr


def test_files_that_were_tuned_with_contradicting_options_are_refused(subject, tuned):
    one, other = tuned("one.json", "--accumulate", "4"), tuned("other.json")
    refused = run("predict", *subject, "--plan", one, "--plan", other)
    said = f"osf: {other} was tuned with another --accumulate than the file before: give --accumulate, or one file\n"
    assert (refused.exit_code, refused.stderr) == (2, said)
    assert run("predict", *subject, "--plan", one, "--plan", other, "--accumulate", "2").exit_code == 0


def test_rules_of_the_command_line_replace_those_of_a_file_with_a_word(subject, tuned):
    file = tuned("plan.json", "--for", "runtime", "--channels", "2")
    changed = run("predict", *subject, "--plan", file, "--channels", "3")
    assert f"{file} is predicted under the rules given here, not under its own" in changed.stderr
    sharded = tuned("sharded.json", "--for", "fsdp2")
    refused = run("predict", *subject, "--plan", sharded, "--channels", "2")
    assert refused.exit_code == 2
    assert "leave out --channels, --forward-overlap and --split" in refused.stderr


def test_files_of_earlier_versions_are_read_as_before(subject, tuned):
    """Neither executor, search nor options: as a plan that any framework with these rules may run."""
    file = tuned("plan.json", "--for", "horovod")
    document = json.loads(file.read_text())
    del document["options"], document["plan"]["executor"]
    file.write_text(json.dumps(document))
    cluster = osf.load_cluster("v100-10gbe")
    plain = replace(tune(WORKLOAD, cluster, 16, "horovod").plan, executor="")
    expected = osf.predict(WORKLOAD, cluster, plain, 16).iteration_time
    assert run_json("predict", *subject, "--plan", file)["predictions"][0]["iteration_time_s"] == expected


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("executor", "gramophone", "unknown executor in {file}: 'gramophone'"),
        ("searched", {"max_bucket_bytes": "4MiB"}, "{file}: Expected 'int | null', got 'str' at '.searched.max_bucket"),
        ("searched", {"rules": {"channels": 0}}, "{file}: the plan has 0 channels"),
    ],
)
def test_impossible_executors_and_searches_are_refused(field, value, said, subject, tuned):
    file = tuned("plan.json")
    document = json.loads(file.read_text())
    document["plan"][field] = value
    file.write_text(json.dumps(document))
    refused = run("predict", *subject, "--plan", file)
    assert refused.exit_code in (1, 2)
    assert refused.stderr.startswith(f"osf: {said.format(file=file)}")
