"""The bar: on a terminal only, after a second only, gone at the end."""

from __future__ import annotations

import io
import sys

import pytest

from osfmodel.show import terminal as progress


class Terminal(io.StringIO):
    """Standard error that says it is a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when told to."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_nothing_is_heard_or_drawn_on_a_pipe(monkeypatch):
    monkeypatch.setattr(sys, "stderr", pipe := io.StringIO())
    with progress.progress_bar("reading") as hear:
        assert hear is None
    assert pipe.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", None)
    with progress.progress_bar("reading") as hear:
        assert hear is None


@pytest.mark.parametrize(("seconds", "drawn"), [(0.5, False), (1.5, True)])
def test_a_bar_is_drawn_after_a_second(monkeypatch, clock, seconds, drawn):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with progress.progress_bar("reading [/x]") as hear:
        hear(0, 4_000_000)
        clock[0] += seconds
        hear(1_000_000, 4_000_000)
    assert ("reading [/x]" in terminal.getvalue()) is drawn


def test_the_bar_is_gone_when_reading_fails(monkeypatch, clock):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())

    def fail():
        with progress.progress_bar("reading") as hear:
            clock[0] += 2
            hear(1, 4)
            raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        fail()
    assert "\x1b[?25h" in terminal.getvalue()[-40:], "the cursor is shown again"
    assert sys.stderr is terminal


def test_a_bar_counts_what_it_is_told(monkeypatch, clock):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with progress.progress_bar("searching", "layouts") as hear:
        clock[0] += 2
        hear(700, 1_000)
    assert "700 of 1,000 layouts" in terminal.getvalue()
