"""The description of the machine in a profile."""

from __future__ import annotations

import os

import pytest

from osfmodel import Layer, Source, Workload
from osfmodel.runtime.profiler.conditions import machine, other_threads

if os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")


def measured(conditions):
    return Workload("mine", (Layer("a", 1, 1, 4),), source=Source("measured by osf profile", conditions))


def test_a_profile_of_other_threads_is_told_with_both_numbers_and_what_to_do(monkeypatch):
    written = machine(torch.device("cpu"))
    count = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: count + 3)
    note = other_threads(measured(f"{written}; medians of 12 steps"), "cpu")
    assert f"'mine' was measured with {count} CPU threads, and a rank has {count + 3}" in note
    assert f"set OMP_NUM_THREADS={count} for the ranks, or profile with OMP_NUM_THREADS={count + 3}" in note
    assert other_threads(measured(written), "cuda:0") == ""


@pytest.mark.parametrize("conditions", ["", "H200, driver 1, torch 2.13.0", "CPU with 2 threads"])
def test_nothing_is_told_of_the_same_or_of_what_does_not_say(conditions):
    assert other_threads(measured(conditions), "cpu") == ""
    assert other_threads(measured(machine(torch.device("cpu"))), "cpu") == ""
