"""Error feedback is what lets sparse buckets learn: real images of digits, gloo, two processes, CPU."""

from __future__ import annotations

import os
from typing import Any

import pytest

from osfmodel.entities.compression import SPARSE
from tests.live.launching import found

if os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")
pytest.importorskip(
    "sklearn", reason="scikit-learn, whose images are learnt, is not installed: pip install scikit-learn"
)

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def losses() -> Any:
    """Losses of trainings on one percent of the entries, and on all."""
    one, other = found("tests.live.learning", ["digits"])
    assert one["digits"] == other["digits"]
    return one["digits"]


@pytest.mark.long
def test_with_error_feedback_sparse_training_learns_as_dense_does(losses):
    assert losses["feedback"] <= 1.1 * losses["dense"]


@pytest.mark.long
def test_mirror_weights_learn_as_a_residual_does(losses):
    """They differ by rounding, which training then carries on."""
    assert abs(losses["mirror"] / losses["feedback"] - 1) <= 0.05


@pytest.mark.long
def test_the_same_entries_without_feedback_do_not(losses):
    assert losses["forgetful"] >= 1.25 * losses["dense"]


def test_the_page_is_what_the_runs_say():
    from benchmarks.sparse_training import PAGE, page

    assert PAGE.read_text(encoding="utf-8") == "\n".join(page()) + "\n"


def test_the_advice_against_sparse_plans_is_what_the_runs_say():
    from benchmarks.sparse_training import OPTIMIZERS, jobs, kept, verdicts

    runs = kept()
    assert not jobs(runs)
    told = {name: verdicts(runs, "10 %", name) for name in OPTIMIZERS}
    each = {name: f"{sum(found)} of {len(found)} with" for name, found in told.items()}
    assert f"{each['plain']} plain SGD" in SPARSE
    assert f"{each['momentum']} momentum and {each['adamw']} AdamW" in SPARSE
    few = verdicts(runs, "1 %")
    assert f"at 1 % in {sum(few)} of {len(few)}" in SPARSE


def test_a_row_is_judged_by_its_dense_run_seed_by_seed():
    from benchmarks.sparse_training import Trained, Way, against

    def run(density, seed, loss):
        return Trained("digits", "plain", density, False, seed, loss, 2 * loss, 0.5, 8.0, (2, 1))

    runs = [run(None, 0, 1.0), run(None, 1, 2.0), run(0.01, 0, 1.008), run(0.01, 1, 2.04), run(0.1, 1, 1.0)]
    found = against(runs, "digits", Way("plain", 0.01), "train")
    assert found.excess == pytest.approx([0.008, 0.02])
    assert found.cells == "+1.4% (+0.8% to +2.0%) | no, 1 of 2"
    assert against(runs, "digits", Way("plain", 0.1), "validation").reached
