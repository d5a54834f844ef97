"""Ctrl-C at any moment of a command: one line, no traceback."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT

PREDICT = ["predict", "resnet50-v100", "--cluster", "v100-10gbe", "--workers", "8", "--plan", "ddp"]
START = f"""
import itertools, os, signal, sys
import osfmodel.cli
count = itertools.count(1)

def heard(event, arguments):
    if event == "import":
        place = next(count)
        {{heard}}

sys.addaudithook(heard)
sys.argv = ["osf", *{PREDICT!r}]
osfmodel.cli.run()
"""


def started(heard: str) -> subprocess.Popen[str]:
    """The command, with a line of code that runs at each of its imports, of which ``place`` is the number."""
    command, pipe = [sys.executable, "-c", START.format(heard=heard)], subprocess.PIPE
    was = signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs of a shell without a terminal inherit that it
    try:  # is ignored
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT)
    finally:
        signal.signal(signal.SIGINT, was)


def assert_interrupted(process: subprocess.Popen[str], may_end: bool) -> None:
    """One line at most, which begins anew where something was written; at the very end the signal itself may end it."""
    errors = process.communicate(timeout=60)[1].lstrip("\n")
    assert (process.returncode, errors) in [(130, "osf: interrupted\n"), *[(0, ""), (-signal.SIGINT, "")] * may_end]


@pytest.mark.parametrize("place", [1, 2, 30, 100, 200, 300])
def test_ctrl_c_during_an_import(place):
    assert_interrupted(started(f"place == {place} and os.kill(os.getpid(), signal.SIGINT)"), may_end=False)


@pytest.mark.parametrize(
    "milliseconds", [n if n % 80 == 0 else pytest.param(n, marks=pytest.mark.long) for n in range(0, 400, 20)]
)
def test_ctrl_c_at_any_moment(milliseconds):
    process = started("place == 1 and os.write(1, b'started\\n')")
    assert process.stdout.readline() == "started\n"
    time.sleep(milliseconds / 1000)
    process.send_signal(signal.SIGINT)
    assert_interrupted(process, may_end=True)


def test_a_background_job_of_a_shell_goes_on():
    """Such a job begins with Ctrl-C ignored."""
    ignored = (
        "import signal, sys, runpy; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.argv = ['osf', '--version'];"
    )
    hook = "import os; sys.addaudithook(lambda event, _: event == 'import' and os.kill(os.getpid(), signal.SIGINT));"
    code = f"{ignored} {hook} runpy.run_module('osfmodel', run_name='__main__')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (result.returncode, result.stdout.startswith("osf "), result.stderr) == (0, True, "")
