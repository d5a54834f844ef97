"""Sparse buckets in real training: gloo, two or three processes, CPU, beside an oracle that has all ranks in one."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.live.launching import found

if os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

pytestmark = [pytest.mark.live, pytest.mark.slow]
SCENARIOS = "tests.live.sparsely"
TWO = ("feedback", "without_feedback", "whole", "conserved", "sizes", "loops", "refused", "nonfinite")
THREE = ("feedback", "conserved", "nonfinite")
NO_NUMBER = "JobError: the gradient of 'first.weight' on rank 1 is no finite number"


@pytest.fixture(scope="module")
def two() -> list[Any]:
    """All that two ranks do, in one go."""
    return found(SCENARIOS, TWO)


@pytest.fixture(scope="module")
def three() -> list[Any]:
    """What three ranks do."""
    return found(SCENARIOS, THREE, world=3)


@pytest.mark.parametrize("world", ["two", "three"])
def test_sparse_buckets_train_as_error_feedback_does(world, request):
    """In float64, with SGD and AdamW, one and two channels, all or half of the buckets sparse."""
    for rank in request.getfixturevalue(world):
        assert len(rank["feedback"]) == 2 * 4
        assert all(0 <= distance <= 1e-9 for distance in rank["feedback"].values()), rank["feedback"]


def test_the_oracle_of_error_feedback_can_fail(two):
    """Where what is not sent is forgotten."""
    for rank in two:
        assert rank["without_feedback"] > 1e-3


@pytest.mark.parametrize("world", ["two", "three"])
def test_what_was_sent_and_what_was_not_is_all_there_was(world, request):
    for rank in request.getfixturevalue(world):
        assert rank["conserved"]["apart"] <= 1e-13
        assert rank["conserved"]["sent"] > 1e-3


def test_a_density_of_one_is_dense_training(two):
    for rank in two:
        assert set(rank["whole"]) == {"sgd", "adamw"}
        assert all(0 <= distance <= 1e-12 for distance in rank["whole"].values())


def test_tensors_of_any_size_and_type_are_sent(two):
    """All of them, as a dense bucket does, and one entry of each rank where the density is next to nothing."""
    for rank in two:
        assert set(rank["sizes"]) == {"torch.float32", "torch.float64", "torch.bfloat16", "torch.float16"}
        for one in rank["sizes"].values():
            assert one["whole"][0] == one["whole"][1]
            assert one["few"] == [1, 1, 2]


def test_gradients_add_up_before_they_are_sent(two):
    for rank in two:
        assert rank["loops"] == {"no_sync": 0.0, "aloud": 0.0}


@pytest.mark.parametrize("world", ["two", "three"])
def test_what_is_no_number_ends_training_on_every_rank(world, request):
    """By the same name everywhere, though it is one rank's, and whatever else is in flight."""
    for rank in request.getfixturevalue(world):
        assert len(rank["nonfinite"]) == 2 * 3
        for told, again in rank["nonfinite"].values():
            assert told.startswith(NO_NUMBER)
            assert again.startswith("JobError: an error ended this executor")


def test_what_does_not_go_with_sparse_buckets_is_refused(two):
    for rank in two:
        assert rank["refused"]["unused"].startswith("UsageError: rank 0: the plan has sparse buckets, which send of")
