"""From bench to verdict between four emulated hosts: ``osf bench``, ``run`` and ``check`` on one another's files."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import pytest

import osfmodel as osf
from osfmodel.entities.files.measurements import load_measurements
from tests.live import cluster

if not os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    pytest.importorskip("torch", reason="torch is not installed: pip install torch")

pytestmark = [pytest.mark.live, pytest.mark.long]
OSF = [sys.executable, "-m", "osfmodel"]


def test_what_four_hosts_measure_is_predicted_and_compared(tmp_path):
    """Every file is found from where the next one lies, every run is predicted, and the default stands beside it."""
    names = "workload.json", "wires.json", "runs.json"
    workload, wires, runs = (str(tmp_path / name) for name in names)
    layers = tuple(osf.Layer(f"layer{i}", 2e-4, 5e-4, 40_000 * (i + 1)) for i in range(6))
    osf.save(osf.Workload("six", layers), workload)
    with cluster.emulated(4, "1gbit") as hosts:
        bench = ["bench", "--for", workload, "--repeat", "3", "--collective", "all_reduce", "--compute", "none"]
        run = ["run", workload, "--cluster", wires, "--plan", "ddp", "--plan", "optimal", "--plan", "wfbp"]
        for words in ([*bench, "-o", wires], [*run, "--iterations", "3", "--repeat", "2", "-o", runs]):
            ended = hosts.run([*OSF, *words], timeout=120)
            assert [one.status for one in ended] == [0] * 4, ended
        alone = replace(hosts, prefixes=hosts.prefixes[:1]).run([*OSF, "check", runs], timeout=120)
    assert [one.status for one in alone] == [0], alone
    shown = alone[0].stdout
    assert "workload.json on wires.json, 4 workers; speed-up over ddp" in shown
    assert [line.split()[0] for line in shown.splitlines()[2:5]] == ["ddp", "optimal", "wfbp"]
    measured = load_measurements(runs)
    assert [one.workers for one in measured] == [4] * 6
    assert {one.condition("buckets_as_planned") for one in measured} == {"yes"}
