"""The executor in real training: gloo, two or three processes, CPU. Training must be the training of plain DDP."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.live import launching
from tests.live.launching import Ended

if os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

pytestmark = pytest.mark.live
HEALTHY = (
    "each", "ways", "unused", "untouched", "growth", "measure", "dtypes", "checkpoint", "deferral", "order", "refusals",
    "misuse", "traps", "between", "changed",
)  # fmt: skip
FAMILIES = ("wfbp", "ddp", "merged", "mingled", "cut")
RULES = ("plain", "k2", "k4", "overlap", "split", "all")


SCENARIOS = "tests.live.executing"


def launched(names: tuple[str, ...], world: int) -> list[Ended]:
    """Every rank of ``python -m tests.live.executing``, ended."""
    return launching.launched(SCENARIOS, names, world)


def found(names: tuple[str, ...], world: int = 2) -> list[Any]:
    """Results of each rank; all must end well."""
    return launching.found(SCENARIOS, names, world)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """Run everything that succeeds in one job, since starting costs more than training."""
    return found(HEALTHY)


def test_every_plan_under_every_rule_trains_as_ddp(healthy):
    """Bitwise on two ranks, whose sums have but one order."""
    for rank in healthy:
        assert rank["each"] == {f"{family} {rule}": 0.0 for family in FAMILIES for rule in RULES}


@pytest.mark.long
def test_fifty_steps_are_those_of_ddp():
    """SGD with momentum and AdamW, foreach and fused; plain, accumulated and AMP; each with every family of plans."""
    for rank in found(("fifty",)):
        assert len(rank["fifty"]) == 32
        assert set(rank["fifty"].values()) == {0.0}


def test_the_distance_can_fail(healthy):
    """An oracle shown failing: ranks that do not communicate differ, and a thousandth is seen."""
    for rank in healthy:
        assert rank["measure"]["alone"] == -1.0
        assert rank["measure"]["other"] == pytest.approx(1e-3, rel=1e-2)


def test_loops_of_all_kinds_train_as_with_ddp(healthy):
    """Micro-batches without no_sync, gradients zeroed in place or clipped, steps left out or given closures."""
    for rank in healthy:
        assert len(rank["ways"]) == 2 * 3 + 3 * 3 * 2
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


def test_memory_that_gradients_share_and_hooks_of_the_user_are_no_trap(healthy):
    for rank in healthy:
        assert len(rank["traps"]) == 12
        assert set(rank["traps"].values()) == {0.0}


def test_updates_that_are_put_off_are_made_before_anyone_looks(healthy):
    for rank in healthy:
        assert len(rank["between"]) == 4
        assert set(rank["between"].values()) == {True}


def test_other_parameters_than_before_and_a_second_averaging_are_named(healthy):
    words = {
        "unfrozen": "UsageError: the model has other trainable parameters than at execute()",
        "assigned": "UsageError: the model has other trainable parameters than at execute()",
        "twice": "UsageError: rank 0: an executor trains these parameters already",
        "wrapped": "UsageError: rank 0: DistributedDataParallel wraps this model already",
        "no plan": "UsageError: rank 0: execute() needs a Plan, not 'plan.json'",
    }
    for rank in healthy:
        assert set(rank["changed"]) == set(words)
        assert {what: said[: len(words[what])] for what, said in rank["changed"].items()} == words


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
        "other plans": "PlanError: rank 1 has a plan different from rank 0's",
        "other rules": "PlanError: rank 1 has a plan different from rank 0's",
        "models": "PlanError: rank 1 has a model different from rank 0's",
        "unused": "PlanError: rank 1 has a setting of unused different from rank 0's",
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
    """Plans with the barrier accept all that DDP accepts; with forward overlap an error names it and a way out."""
    for rank in healthy:
        told = rank["misuse"]
        for what in ("twice", "looked_at", "early", "kept", "stepped_twice", "zeroed", "zeroed_in_place"):
            assert told[f"{what} plain"] == "nothing was raised"
        for rule in ("plain", "overlap", "all"):
            assert told[f"stale {rule}"].startswith(
                "RuntimeError: one of the variables needed for gradient computation"
            )
            assert told[f"lacking {rule}"].startswith("UsageError: 9 parameters got no gradient in backward, the")
        for rule in ("overlap", "all"):
            for what in ("twice", "kept"):
                assert told[f"{what} {rule}"].startswith(
                    "UsageError: the gradient of 'head.bias' from the previous step"
                )
            for what in ("looked_at", "early", "zeroed", "zeroed_in_place"):
                assert told[f"{what} {rule}"].startswith("UsageError: gradients are still under way")
            assert told[f"stepped_twice {rule}"].startswith("UsageError: step() was called twice")


def test_unused_parameters_are_those_of_ddp(healthy):
    """Zeros where only other ranks have a gradient; what no rank used has none and is not decayed either."""
    for rank in healthy:
        assert len(rank["unused"]) == 3 * (4 + 4 + 2)
        assert set(rank["unused"].values()) == {0.0}
        without = rank["untouched"]["ddp"]
        assert all(row.count(False) == 1 for row in without)
        assert rank["untouched"] == dict.fromkeys(("ddp", "plain", "overlap", "all"), without)


def test_hundreds_of_steps_leave_nothing_behind(healthy):
    """From step 50 to 250: an object in each step would be 200, the larger message in each step 6 MB."""
    for rank in healthy:
        for rule in ("plain", "all"):
            assert rank["growth"][rule]["objects"] <= 10
            assert rank["growth"][rule]["bytes"] <= 4 << 20


@pytest.mark.long
def test_three_ranks_train_as_with_ddp():
    """Sums in another order, and buckets that no three parts make up: up to rounding, the same on all ranks."""
    for rank in found(("few",), world=3):
        for dtype, most in {"float32": 1e-5, "float64": 1e-9}.items():
            assert len(rank["few"][dtype]) == 8
            assert all(0 <= distance <= most for distance in rank["few"][dtype].values()), rank["few"][dtype]


OWN = {
    "raise": "ValueError: no gradient today",
    "hang": "JobError: lost another worker while waiting for the collective of bucket",
    "lack": "UsageError: 9 parameters got no gradient in backward, the first is 'stem.0.weight'",
    "zero": "UsageError: gradients are still under way while forward overlaps communication",
    "twice": "UsageError: the gradient of 'head.bias' from the previous step was not cleared",
    "stepped": "UsageError: step() was called twice",
}
"""Messages to rank 1 about its own fault."""


def test_what_goes_wrong_on_one_rank_ends_on_every_rank():
    """The one sees its own error, the others a JobError, which they would wait longer for than this test waits.

    But for one that hangs: the limit is short there. In the end an exception ends the process of rank 1 as Python does.
    """
    ended = launched(("faults", "uncaught"), 3)
    assert [rank.code for rank in ended] == [0, 1, 0], ended[0].stderr[-2000:]
    assert ended[1].stderr.count("ValueError: no gradient today") == 1
    for place, rank in enumerate(ended):
        lines = [json.loads(line) for line in rank.stdout.splitlines()]
        assert len(lines) == (1 if place == 1 else 2)
        assert len(lines[0]["faults"]) == 3 * 9
        for case, told in lines[0]["faults"].items():
            fault, _, *after = case.split()
            if after == ["closed"]:
                assert told == "nothing was raised"
            elif after:
                assert told.startswith("JobError: an error ended this executor")
            else:
                assert told.startswith(
                    OWN[fault] if place == 1 else "JobError: lost another worker while waiting for the collective"
                )
        if place != 1:
            assert_lost(lines[1]["uncaught"])


def test_a_rank_that_is_lost_is_noticed():
    kept, lost = launched(("exit",), 2)
    assert (kept.code, lost.code) == (0, 7)
    assert_lost(json.loads(kept.stdout)["exit"])


def assert_lost(told: list[str]) -> None:
    """First that another rank was lost, then that this executor is of no use any more."""
    assert told[0].startswith("JobError: lost another worker while waiting for the collective of bucket")
    assert told[1].startswith("JobError: an error ended this executor")
