"""Replays that differ from their profile, and predictions at another batch size."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import osfmodel as osf
from osfmodel.cli import main
from osfmodel.entities.batches import Variation, accumulating, at_batch, variation_of
from osfmodel.entities.errors import DataError, UsageError


@pytest.fixture(scope="module")
def workload():
    return osf.load_workload("resnet50-memory")


def test_a_variation_has_another_batch_and_another_pace(workload):
    assert Variation(3.0, 8).of(workload) == at_batch(workload, 8).scaled(3.0)
    assert Variation(3.0).of(workload) == workload.scaled(3.0)
    assert Variation().of(workload) is workload


@pytest.mark.parametrize("variation", [Variation(), Variation(0.5), Variation(16.0, 8)])
def test_measurements_say_how_a_replay_differed(variation):
    assert variation_of(variation.conditions) == variation


def test_the_batch_of_a_real_model_changes_nothing():
    """Measurements of others say their batch size in words; times are of the profile as it is."""
    assert variation_of({"batch_size": "64 per GPU"}) == Variation()


@pytest.mark.parametrize("stated", [{"scale": "fast"}, {"scale": "1", "batch_size": "many"}])
def test_bad_numbers_in_conditions_are_named(stated):
    with pytest.raises(DataError, match="is not a number"):
        variation_of(stated)


def test_predictions_at_another_batch_size_take_times_in_proportion(workload):
    words = ["predict", "resnet50-memory", "--cluster", "v100-10gbe", "--workers", "16", "--json"]
    ended = CliRunner().invoke(main, [*words, "--batch-size", "64"])
    assert "no profile at batch 64: times are scaled in proportion from batch 32" in ended.stderr
    found = json.loads(ended.stdout)["compute_time_s"]
    assert found == pytest.approx(2 * workload.compute_time - workload.update_time)
    same = CliRunner().invoke(main, [*words, "--batch-size", "32"])
    assert same.stderr == ""
    assert json.loads(same.stdout)["compute_time_s"] == pytest.approx(workload.compute_time)


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_micro_batches_are_counted(count):
    with pytest.raises(UsageError, match="--accumulate"):
        accumulating(osf.load_workload("resnet50-v100"), count)
