"""Processor time of ranks as a share of the cores."""

from __future__ import annotations

import os
import time

import pytest

from osfmodel.runtime.job import measuring
from osfmodel.runtime.job.measuring import Meter, Use, share


def test_ranks_of_a_machine_share_its_cores_and_the_busiest_machine_counts():
    """Two ranks of one machine use 3 s of 2 cores in 2 s; that of another uses 1 s of 4 cores."""
    ranks = [Use("one", 2, 1.0, 2.0), Use("one", 2, 2.0, 2.0), Use("other", 4, 1.0, 2.0)]
    assert share(ranks) == pytest.approx(0.75)
    assert share(ranks[2:]) == pytest.approx(0.125)


def test_sleep_is_no_use_and_work_of_any_thread_is():
    meter = Meter()
    time.sleep(0.02)
    asleep = meter.use()
    assert asleep.clock > 0.02 > asleep.processor
    while time.process_time() < meter.processor + asleep.processor + 0.02:
        pass
    assert meter.use().processor >= asleep.processor + 0.02


@pytest.mark.parametrize(("quota", "least"), [("50000 100000", 0.5), ("max 100000", 1.0), ("", 1.0)])
def test_a_container_may_use_less_than_its_cores(monkeypatch, tmp_path, quota, least):
    monkeypatch.setattr(measuring, "QUOTA", tmp_path / "cpu.max")
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
    assert measuring.cores() == least


def test_a_machine_without_a_boot_id_goes_by_its_name(monkeypatch, tmp_path):
    monkeypatch.setattr(measuring, "BOOT", tmp_path / "none")
    assert measuring.machine() == os.uname().nodename
    (tmp_path / "none").write_text("a-b-c\n")
    assert measuring.machine() == "a-b-c"
