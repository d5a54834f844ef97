"""Sweeps on Dask: the same records as in one process, whatever workers and schedulers do meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import osfmodel as osf

pytest.importorskip("distributed")
GRID = {
    "workloads": ["resnet50-v100", "vgg16-pipedream"],
    "clusters": ["v100-10gbe", "ring:50us,10Gbps"],
    "workers": list(range(2, 35)),
    "plans": ["ddp", "wfbp"],
}
START = 60.0


@pytest.fixture(scope="module")
def serial():
    return list(osf.sweep(GRID))


def begun(folder, *arguments):
    """A process of Dask's command line."""
    command = [sys.executable, "-W", "ignore", "-m", *arguments]
    with (folder / "dask.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)


@pytest.fixture
def cluster(tmp_path):
    """Begin a scheduler and workers; called again, a new scheduler with new workers."""
    begun_here = []

    def begin(name, count):
        place = tmp_path / f"{name}.json"
        common = ("--scheduler-file", place, "--no-dashboard")
        scheduler = begun(tmp_path, "distributed.cli.dask_scheduler", *common, "--port", "0")
        workers = [
            begun(tmp_path, "distributed.cli.dask_worker", *common, "--nthreads", "1", "--no-nanny")
            for _ in range(count)
        ]
        begun_here.extend([scheduler, *workers])
        deadline = time.monotonic() + START
        while not place.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return json.loads(place.read_text())["address"], scheduler, workers

    yield begin
    for one in begun_here:
        one.kill()
        one.wait()


@pytest.mark.long
def test_what_dies_costs_nothing_but_time(cluster, serial, tmp_path):
    """A worker; then the scheduler, which leaves a table from which the next one goes on."""
    address, scheduler, workers = cluster("first", 2)
    killed = []

    def kill_one(there, before, whole):
        if there and not killed:
            os.kill(workers[0].pid, signal.SIGKILL)
            killed.append(there)

    found = osf.sweep(GRID, tmp_path / "table.csv", dask=address, progress=kill_one)
    assert killed
    assert list(found) == serial

    def kill(there, before, whole):
        if there:
            scheduler.kill()

    path = tmp_path / "other.csv"
    with pytest.raises(osf.JobError, match="the same command goes on from there"):
        osf.sweep(GRID, path, dask=address, progress=kill)
    kept = len(list(osf.load_sweep(path)))
    assert 0 < kept < len(serial)
    told = []
    other, _, _ = cluster("second", 1)
    found = osf.sweep(GRID, path, dask=other, progress=lambda there, before, whole: told.append(before))
    assert told[0] == kept
    assert list(found) == serial
