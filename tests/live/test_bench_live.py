"""``osf bench`` on real ranks over gloo: what it writes, and how it ends when something goes wrong."""

from __future__ import annotations

import os
import socket
import sys

import pytest

import osfmodel as osf
from osfmodel.pricing import pricing_of
from tests.live import cluster

if not os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    pytest.importorskip("torch", reason="torch is not installed: pip install torch")

pytestmark = pytest.mark.live
BENCH = [sys.executable, "-m", "osfmodel", "bench", "--backend", "gloo"]
QUICK = ["--max", "16KiB", "--repeat", "3", "--timeout", "30s", "--network", "none to speak of"]
AT_FOURTH = """
import os, signal, sys
from osfmodel.cli import main
from osfmodel.runtime import bench

measured, real = [], bench._sample

def sample(*arguments):
    measured.append(1)
    if len(measured) == 4 and os.environ["RANK"] == {rank!r}:
        {what}
    return real(*arguments)

bench._sample = sample
sys.argv = ["osf", "bench", "--backend", "gloo", "--repeat", "3", "--timeout", "20s", *sys.argv[1:]]
main()
"""


def told(ended):
    """What a person sees: lines of ours, and none of torch's."""
    lines = [line for line in ended.stderr.splitlines() if line]
    assert all(line.startswith("osf: ") for line in lines), ended.stderr
    return lines


def test_two_ranks_make_a_cluster_that_prices(tmp_path):
    path = tmp_path / "two.json"
    ended = cluster.local(2).run([*BENCH, *QUICK, "-o", str(path)], timeout=120)
    assert [e.status for e in ended] == [0, 0], ended
    assert not any(e.stdout for e in ended)
    found = osf.load_cluster(path)
    assert (found.name, found.gpus_per_node, found.nodes) == ("two", 2, 1)
    tables = {table.collective: table for table in found.tables}
    assert tables["all_reduce"].sizes == tuple(1 << power for power in range(10, 15))
    assert set(tables) >= {"all_reduce", "all_gather"}
    assert all(table.workers == 2 and min(table.times) > 0 for table in found.tables)
    assert found.in_flight in (1, 2, 4)
    startups = tables["all_reduce"].startups
    assert len(startups) == 5
    assert all(0 <= startup <= time for startup, time in zip(startups, tables["all_reduce"].times, strict=True))
    for word in ("2 ranks, 2 on each host", "gloo (torch", "none to speak of", "at once at 1.000 KiB", "matrices"):
        assert word in found.source.conditions
    assert pricing_of(found, 2).cost()(100_000) > 0


def test_sizes_of_a_workload_and_another_worker_count(tmp_path):
    """Three ranks, merged into what two had; without -o it is written there."""
    workload = osf.Workload("small", (osf.Layer("a", 1e-3, 1e-3, 3000), osf.Layer("b", 1e-3, 1e-3, 9000)))
    osf.save(workload, tmp_path / "small.json")
    known = osf.Cluster("known", "tabulated", 2, 1, tables=(osf.Table(2, (1, 2), (1.0, 2.0)),), in_flight=2)
    osf.save(known, tmp_path / "known.json")
    options = ["--for", str(tmp_path / "small.json"), "--merge", str(tmp_path / "known.json"), "--in-flight", "1"]
    ended = cluster.local(3).run([*BENCH, *options, "--repeat", "3", "--compute", "sleep"], timeout=120)
    assert [e.status for e in ended] == [0, 0, 0], ended
    found = osf.load_cluster(tmp_path / "known.json")
    sizes = {(table.collective, table.workers): table.sizes for table in found.tables}
    assert sizes["all_reduce", 2] == (1, 2)
    assert sizes["all_reduce", 3] == (3000, 4096, 9000, 12000)
    assert all(size % 12 == 0 for size in sizes["all_gather", 3])
    assert (found.name, found.gpus_per_node, found.contention) == ("known", 3, ())
    assert "sleeps of 1 ms" in found.source.conditions


def test_a_rank_that_dies_ends_all_and_what_was_measured_is_kept(tmp_path):
    path = tmp_path / "mine.json"
    script = AT_FOURTH.format(rank="1", what="os._exit(9)")
    first, second = cluster.local(2).run([sys.executable, "-c", script, "-o", str(path)], timeout=60)
    assert (first.status, second.status) == (1, 9)
    kept, error = told(first)
    assert "mine.partial.json" in kept
    assert "rank 0: another rank is gone" in error
    assert not path.exists()
    partial = osf.load_cluster(tmp_path / "mine.partial.json")
    assert [len(table.sizes) for table in partial.tables] == [3]
    assert "stopped before the end" in partial.source.conditions


@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM"])
def test_an_interruption_keeps_what_was_measured(tmp_path, signal):
    script = AT_FOURTH.format(rank="0", what=f"os.kill(os.getpid(), signal.{signal})")
    first, second = cluster.local(2).run([sys.executable, "-c", script, "-o", str(tmp_path / "c.json")], timeout=60)
    assert first.status == 130
    assert told(first)[-1] == "osf: interrupted"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.partial.json"]
    assert second.status in (1, -9)


def test_a_port_in_use_and_a_wrong_world_size_are_told(monkeypatch):
    monkeypatch.setattr(cluster, "GRACE", 20.0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        first, second = cluster.local(2).run([*BENCH, "--timeout", "2s"], port=taken.getsockname()[1], timeout=60)
    assert (first.status, second.status) == (1, 1)
    assert "is in use: give torchrun another --master-port" in told(first)[0]
    assert len(told(second)) == 1
    three = {rank: {"WORLD_SIZE": "3"} for rank in range(2)}
    for ended in cluster.local(2).run([*BENCH, "--timeout", "2s"], extra=three, timeout=60):
        assert ended.status == 1
        (line,) = told(ended)
        assert "not all of the 3 ranks answered within 2 s" in line


def test_hosts_apart_on_a_shaped_network(tmp_path):
    """Two hosts at 100 Mbit/s: 1 MiB cannot take less than its bytes at that rate (tbf lets a burst of 128 kB pass)."""
    reason = cluster.unavailable()
    if reason:
        pytest.skip(reason)
    path = tmp_path / "slow.json"
    options = [
        "--min",
        "512KiB",
        "--max",
        "1MiB",
        "--repeat",
        "3",
        "--in-flight",
        "1,2",
        "--compute",
        "none",
        "-o",
        str(path),
    ]
    with cluster.emulated(2, "100mbit") as hosts:
        ended = hosts.run([*BENCH, *options], timeout=120)
    assert [e.status for e in ended] == [0, 0], ended
    found = osf.load_cluster(path)
    assert (found.gpus_per_node, found.nodes) == (1, 2)
    assert pricing_of(found, 2).cost()(1 << 20) > ((1 << 20) - 2 * 131072) * 8 / 100e6
    assert "interface eth0" in found.source.conditions
