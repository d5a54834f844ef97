"""Marks and what lies between them; the GPU's clock is played."""

from __future__ import annotations

import os

import pytest

from osfmodel.entities.errors import UsageError
from osfmodel.runtime.profiler.recording import Mark, clock_of, seconds, settle

if os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

pytestmark = pytest.mark.live


class Event:
    """An event that a device passes 1000 ms after the one before."""

    passed = 0

    def __init__(self, enable_timing=False):
        assert enable_timing

    def record(self):
        Event.passed += 1000
        self.at = Event.passed

    def elapsed_time(self, end):
        return end.at - self.at


def test_a_gpu_is_timed_by_its_own_events_and_never_waited_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    device = torch.device("cuda", 0)
    mark = clock_of(device)
    start, end = mark(), mark()
    assert seconds(start, end) == 1
    assert 0 <= end.host - start.host < 1
    assert waited == []
    settle(device)
    assert waited == [device]


def test_a_cpu_is_timed_by_the_host():
    assert seconds(Mark(2.0), Mark(5.0)) == 3
    mark = clock_of(torch.device("cpu"))
    assert seconds(mark(), mark()) >= 0


def test_other_devices_are_refused():
    with pytest.raises(UsageError, match="clocks of cpu and cuda"):
        clock_of(torch.device("meta"))
