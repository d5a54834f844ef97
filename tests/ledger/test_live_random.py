"""Random emulated settings: what a seed draws, and what is said of a measured one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from osfmodel import Measurement, load_workload
from osfmodel.entities.files.measurements import save_measurements
from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import live_random
from live_random import Files, Said, Setting


def test_a_seed_draws_the_same_settings_of_rates_that_no_bundled_cluster_has():
    settings = list(live_random.drawn(20261201, 12))
    assert settings == list(live_random.drawn(20261201, 12)) != list(live_random.drawn(1, 12))
    assert settings[:6] == list(live_random.drawn(20261201, 6))
    assert len(set(settings)) == 12
    bundled = {path.stem.rpartition("x")[2] for path in (ROOT / "profiles/clusters").glob("emulated-*.json")}
    for setting in settings:
        assert setting.workers in (3, 4, 6)
        assert setting.link not in bundled
        assert f"{setting.rate / 1000:g}gbit" not in bundled
        workload = load_workload(setting.workload)
        assert len(workload.gradients) > 100
        sent = 2 * (setting.workers - 1) / setting.workers * workload.gradient_bytes * 8 / (setting.rate * 1e6)
        assert 0.48 < sent / (workload.compute_time * setting.scale) < 2.1


def of(folder, gains, share="0.50"):
    """The outcome of a setting with these times of the tuned plan beside a default of 1 s, promised 0.9 s."""
    setting = Setting(3, 700, "densenet201-reconstructed", 2.0)
    files = Files.of(Path(folder), setting)
    said = {"default_iteration_time_s": 1.02, "tuned_iteration_time_s": 0.918, "plan": {"buckets": [1, 2]}}
    files.tuned.write_text(json.dumps(said))
    runs = [
        Measurement("w", "c", plan, 3, (time,), conditions=(("repeat", str(number)), ("cpu_share", share)))
        for plan, times in (("ddp", [1.0, 1.0]), (files.tuned.name, gains), ("single", [5.0, 9.0]))
        for number, time in enumerate(times)
    ]
    save_measurements("runs", runs, files.runs)
    return setting, live_random.outcome_of(setting, files.tuned, files.runs)


@pytest.mark.parametrize(
    ("times", "slower", "near"), [([0.92, 0.92], False, True), ([1.02, 1.02], True, False), ([1.0, 1.04], False, False)]
)
def test_an_outcome_is_slower_only_beyond_its_spread(tmp_path, monkeypatch, times, slower, near):
    """By medians over repeats; other plans do not matter."""
    setting, one = of(tmp_path, times)
    assert one.promised == pytest.approx(0.1)
    assert one.gained == pytest.approx(1 - sum(times) / 2)
    assert one.error == pytest.approx(0.02)
    assert (one.slower, one.near, one.buckets, one.busy) == (slower, near, 2, 0.5)
    monkeypatch.setattr(live_random, "said_of", lambda *_: Said(True, "10 % faster", 0.05, 0.09))
    lines = list(live_random.show(tmp_path, [setting, live_random.SMOKE]))
    assert f"| {setting.name} | +2.0% | 2 | +10.0% (+5.0% to +9.0%) |" in lines[2]
    assert lines[2].endswith("| 50% | take it |")
    assert lines[3].endswith("none" if not slower else f"{setting.name} (-2.0%)")
    assert lines[4].endswith(f"{int(near)} of 1")
    inside = f"in the interval {int(0.05 <= one.gained <= 0.09)} of 1, promised less measured"
    assert lines[5] == f"all: {inside} {100 * (0.1 - one.gained):+.1f} points"
    assert lines[7] == f"not measured: {live_random.SMOKE.name}"


def test_a_plan_of_another_version_is_shown_beside_the_present_one(tmp_path):
    setting, _ = of(tmp_path, [0.92, 0.92])
    assert not list(live_random.beside(tmp_path, [setting]))
    files = Files.of(tmp_path, setting)
    files.before.write_text(files.tuned.read_text().replace("0.918", "0.51"))
    runs = [
        Measurement("w", "c", plan, 3, (time,), conditions=(("cpu_share", "0.50"),))
        for plan, time in (("ddp", 1.0), (files.before.name, 1.01), (files.tuned.name, 0.92))
    ]
    save_measurements("runs", runs, files.before_runs)
    _, before, now = live_random.beside(tmp_path, [setting])
    assert before == f"| {setting.name} | before | 2 | +50.0% | -1.0% | 0.0% |"
    assert now == f"| {setting.name} | now | 2 | +10.0% | +8.0% | 0.0% |"


def test_settings_are_listed_without_measuring(tmp_path, capsys):
    live_random.main([str(tmp_path), "--seed", "3", "--count", "2", "--list"])
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.long
def test_what_is_kept_is_complete_and_told_with_the_present_verdict():
    """Of all settings that the seed draws; one verdict is made anew."""
    settings = [*live_random.NAMED, *live_random.drawn(live_random.SEED, live_random.COUNT)]
    fresh = [Files.of(live_random.KEPT, setting) for setting in live_random.drawn(20261214, 16)]
    assert all(files.cluster.exists() and files.tuned.exists() and files.runs.exists() for files in fresh)
    kept = [Files.of(live_random.KEPT, setting) for setting in settings]
    assert all(files.cluster.exists() and files.tuned.exists() and files.runs.exists() for files in kept)
    assert [files.before_runs.exists() for files in kept] == [setting in live_random.NAMED for setting in settings]
    said = live_random.said_of(settings[0], kept[0])
    assert said.recommended == (not said.verdict.startswith(("Leave the default alone", "Keep the default")))
