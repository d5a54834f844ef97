"""The executor in real training: gloo, two or three processes, CPU. Training must be the training of plain DDP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.live.launching import Ended, free_port

if os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

pytestmark = [pytest.mark.live, pytest.mark.slow]
LIMIT = 300
"""Seconds after which a rank is killed: a few seconds of work on a machine that may be busy."""
HEALTHY = ("sgd", "adamw", "ways", "measure", "dtypes", "checkpoint", "deferral", "order", "refusals", "misuse")
FAMILIES = ("wfbp", "ddp", "merged", "mingled", "cut")
RULES = ("plain", "k3", "overlap", "split", "all")


def launched(names: tuple[str, ...], world: int) -> list[Ended]:
    """Every rank of ``python -m tests.live.executing``, ended."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(world)}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-m", "tests.live.executing", *names]
    started = [
        subprocess.Popen(
            command, cwd=ROOT, env={**environment, "RANK": str(rank)}, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(world)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=LIMIT) for process in started]
    finally:
        for process in started:
            process.kill()
    return [Ended(process.returncode, *texts) for process, texts in zip(started, said, strict=True)]


def found(names: tuple[str, ...], world: int = 2) -> list[Any]:
    """What each rank found, where all end well."""
    ended = launched(names, world)
    assert [rank.code for rank in ended] == [0] * world, ended[0].stderr[-2000:] + ended[-1].stderr[-2000:]
    return [json.loads(rank.stdout) for rank in ended]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """All that ends well, in one go, since to start costs more than to train."""
    return found(HEALTHY)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_training_is_that_of_ddp(healthy, optimizer):
    """Every family of plans under all rules, 20 steps: bitwise on two ranks, whose sums have but one order."""
    for rank in healthy:
        assert rank[optimizer] == {f"{family} {rule}": 0.0 for family in FAMILIES for rule in RULES}


def test_the_distance_can_fail(healthy):
    """An oracle shown failing: ranks that do not communicate differ, and a thousandth is seen."""
    for rank in healthy:
        assert rank["measure"]["alone"] == -1.0
        assert rank["measure"]["other"] == pytest.approx(1e-3, rel=1e-2)


def test_loops_of_all_kinds_train_as_with_ddp(healthy):
    """Micro-batches with and without no_sync, gradients zeroed in place, clipped, scaled for AMP, steps left out."""
    for rank in healthy:
        assert len(rank["ways"]) == 6 * 3 + 4 * 3
        assert set(rank["ways"].values()) == {0.0}


def test_dtypes_travel_apart(healthy):
    for rank in healthy:
        assert rank["dtypes"] == dict.fromkeys(RULES, 0.0)


def test_checkpoints_are_those_of_ddp(healthy):
    """state_dict waits for what is under way; resumed from it training goes on as if it had not stopped."""
    for rank in healthy:
        assert rank["checkpoint"] == {"parameters": 0.0, "state": True, "groups": True}


def test_updates_wait_for_the_module_that_needs_them(healthy):
    """After step nothing has changed; forward of the stem updates the stem; synchronize, or evaluating, the rest."""
    for rank in healthy:
        assert rank["deferral"] == 2 * [[False, False], [True, False], [True, True]]


def test_ranks_send_in_the_order_of_the_plan_whatever_is_ready_first(healthy):
    one, other = (rank["order"] for rank in healthy)
    for rule in RULES:
        assert one[rule]["came"] != other[rule]["came"]
        assert one[rule]["sent"] == other[rule]["sent"]
        assert len(one[rule]["sent"]) == (16 if rule in ("split", "all") else 8)


def test_what_does_not_go_together_is_refused_on_every_rank(healthy):
    one, other = (rank["refusals"] for rank in healthy)
    assert one == other
    for what, words in {
        "other plans": "PlanError: rank 1 has another plan than rank 0",
        "other rules": "PlanError: rank 1 has another plan than rank 0",
        "models": "PlanError: rank 1 has another model than rank 0",
        "wrong on one": "PlanError: rank 1: the plan sends 0 bytes of 'head.bias', whose gradient has 20",
        "short": "PlanError: rank 0: the plan sends 0 bytes of 'head.bias', whose gradient has 20",
        "inside": "PlanError: rank 0: bucket 0 cuts 'head.bias' at byte 6, inside an element of float32",
        "credit": "PlanError: rank 0: the plan sends by priority",
        "clock": "PlanError: rank 0: the plan has release times",
        "optimizer": "UsageError: rank 0: forward overlap needs SGD, Adam, AdamW of torch.optim, not Adagrad",
        "partly": "UsageError: rank 0: forward overlap needs one optimizer with all trainable parameters",
        "wrapped": "UsageError: rank 0: the model is already wrapped by DistributedDataParallel: give the bare model",
    }.items():
        assert one[what].startswith(words)


def test_loops_that_go_wrong_are_told(healthy):
    """What DDP takes, a plan with the barrier takes too; with forward overlap it has a name and a way out."""
    for rank in healthy:
        told = rank["misuse"]
        for what in ("twice", "looked_at", "early", "kept", "stepped_twice", "zeroed_in_place"):
            assert told[f"{what} plain"] == "nothing was raised"
        for rule in ("plain", "overlap", "all"):
            assert told[f"closure {rule}"].startswith("UsageError: step(closure)")
            assert told[f"unused {rule}"].startswith("UsageError: 9 parameters got no gradient in backward, 'stem.0.w")
        for rule in ("overlap", "all"):
            for what in ("twice", "kept"):
                assert told[f"{what} {rule}"].startswith("UsageError: the gradient of 'head.bias' of the step before")
            for what in ("looked_at", "early", "zeroed_in_place"):
                assert told[f"{what} {rule}"].startswith("UsageError: gradients are still under way")
            assert told[f"stepped_twice {rule}"].startswith("UsageError: step() was called twice")
            assert told[f"uncalled {rule}"].startswith("UsageError: 'head.weight' was used in forward before")


def test_three_ranks_train_as_with_ddp():
    """Sums in another order, and buckets that no three parts make up: up to rounding, the same on all ranks."""
    for rank in found(("few",), world=3):
        for dtype, most in {"float32": 1e-5, "float64": 1e-9}.items():
            assert len(rank["few"][dtype]) == 6
            assert all(0 <= distance <= most for distance in rank["few"][dtype].values())


def test_an_exception_in_backward_ends_on_every_rank():
    """The rank that fails sees its own error, the other a JobError; neither trains on with what is left."""
    other, failed = (rank["raise"] for rank in found(("raise",)))
    for rule in ("plain", "all"):
        assert failed[rule] == "ValueError: no gradient today"
        assert other[rule].startswith("JobError: lost another worker in the")
        for rank in (other, failed):
            assert rank[f"{rule} again"].startswith("JobError: the backward before did not end")


def test_a_rank_that_is_lost_is_noticed():
    kept, lost = launched(("exit",), 2)
    assert (kept.code, lost.code) == (0, 7)
    told = json.loads(kept.stdout)["exit"]
    assert told["plain"].startswith("JobError: lost another worker in the collective of bucket")
    assert told["plain again"].startswith("JobError: the backward before did not end")
