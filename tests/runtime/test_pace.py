"""The timetable of a replay on a CPU: what is put off by what, on a clock that only waiting and work move."""

from __future__ import annotations

import pytest

from osfmodel.runtime.training import pace as pace_module


@pytest.fixture
def clock(monkeypatch):
    """A list with the time; sleeping moves it, and so does a look at it, by a little, where something spins."""
    now = [100.0]

    def sleep(seconds):
        now[0] += seconds

    def look():
        now[0] += 1e-9
        return now[0]

    monkeypatch.setattr(pace_module, "SPIN", 0)
    monkeypatch.setattr(pace_module.time, "sleep", sleep)
    monkeypatch.setattr(pace_module.time, "perf_counter", look)
    return now


def test_what_hosts_do_fits_in_between(clock):
    pace = pace_module.SleepingPace()
    pace.start()
    pace.compute(1.0)
    pace.reach()
    clock[0] += 0.5  # a hook
    pace.compute(1.0)
    assert clock[0] == pytest.approx(102)


def test_what_hooks_compute_counts_where_it_is_to(clock):
    """Half a second in hooks puts the rest off; that the turn came late does not."""
    pace = pace_module.SleepingPace()
    pace.counts = True
    pace.start()
    pace.compute(1.0)
    clock[0] += 0.25  # autograd, before the first hook
    pace.hooked()
    clock[0] += 0.5
    pace.go_on()
    pace.compute(1.0)
    assert clock[0] == pytest.approx(102.5)
    pace.hooked()
    clock[0] += 0.5
    pace.arrive()  # an update in the hook
    pace.compute(0.25)
    clock[0] += 0.125  # what follows there
    pace.go_on()
    pace.compute(1.0)
    assert clock[0] == pytest.approx(102.5 + 0.5 + 0.25 + 0.125 + 1)
