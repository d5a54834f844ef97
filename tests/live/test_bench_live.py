"""``osf bench`` on real ranks over gloo: what it writes, and how it ends when something goes wrong."""

from __future__ import annotations

import os
import socket
import sys

import pytest

import osfmodel as osf
from osfmodel.cost.clusters import pricing_of
from tests.live import cluster
from tests.live.launching import BRIEF, BRIEFLY

if not os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    pytest.importorskip("torch", reason="torch is not installed: pip install torch")

pytestmark = pytest.mark.live
BENCH = [sys.executable, "-c", BRIEF, "bench", "--backend", "gloo"]
QUICK = ["--max-size", "16KiB", "--repeat", "3", "--timeout", "30s", "--network", "none to speak of"]
AT_FOURTH = """
import os, signal, sys, threading, time
BRIEFLY
from osfmodel.cli import main
from osfmodel.runtime import bench

measured, real = [], bench._sample

def sample(*arguments):
    measured.append(1)
    if len(measured) == 4:
        {what}
    return real(*arguments)

bench._sample = sample
sys.argv = ["osf", "bench", "--backend", "gloo", "--repeat", "3", "--timeout", "20s", *sys.argv[1:]]
main()
""".replace("BRIEFLY", BRIEFLY)


def told(ended):
    """Lines on stderr: ours, and none of torch's."""
    lines = [line for line in ended.stderr.splitlines() if line]
    assert all(line.startswith(f"osf: rank {ended.rank}: ") for line in lines), ended.stderr
    return lines


def assert_kept(ended, path):
    """Rank 0 said in its one line that what was measured is in a file, and it is, beside no other."""
    (line,) = told(ended)
    assert line.endswith(f"; what was measured until then is in {path}")
    assert sorted(found.name for found in path.parent.iterdir()) == [path.name]
    partial = osf.load_cluster(path)
    assert [len(table.sizes) for table in partial.tables] == [3]
    assert "stopped before the end" in partial.source.conditions


def test_two_ranks_make_a_cluster_that_prices(tmp_path):
    path, stale = tmp_path / "two.json", tmp_path / "two.partial.json"
    stale.write_text("of an earlier run that broke off")
    ended = cluster.local(2).run([*BENCH, *QUICK, "-o", str(path)], timeout=120)
    assert [e.status for e in ended] == [0, 0], ended
    assert not any(e.stdout for e in ended)
    assert not stale.exists()
    found = osf.load_cluster(path)
    assert (found.name, found.gpus_per_node, found.nodes) == ("two", 2, 1)
    tables = {table.collective: table for table in found.tables}
    assert tables["all_reduce"].sizes == tuple(1 << power for power in range(10, 15))
    assert set(tables) >= {"all_reduce", "all_gather"}
    assert all(table.workers == 2 and min(table.times) > 0 for table in found.tables)
    assert found.in_flight in (1, 2)
    startups = tables["all_reduce"].startups
    # A machine so busy that it serves nearly every queue one by one says nothing about start-ups.
    assert len(startups) == (5 if found.in_flight > 1 else 0)
    assert all(0 <= startup <= time for startup, time in zip(startups, tables["all_reduce"].times, strict=True))
    assert all(len(table.trains) == len(table.sizes) and min(table.trains) > 0 for table in found.tables)
    for word in ("2 ranks, 2 on each host", "gloo (torch", "none to speak of", "channels at 1.000 KiB", "matrices"):
        assert word in found.source.conditions
    assert pricing_of(found, 2).cost()(100_000) > 0


def test_a_quick_bench_measures_all_reduces_alone_and_keeps_the_slowest(tmp_path):
    words = ["--quick", "--max-size", "4KiB", "-o", str(tmp_path / "quick.json")]
    ended = cluster.local(2).run([*BENCH, *words], timeout=60)
    assert [e.status for e in ended] == [0, 0], ended
    found = osf.load_cluster(tmp_path / "quick.json")
    (table,) = found.tables
    assert (table.sizes, table.startups, table.trains) == ((1024, 2048, 4096), (), ())
    assert all(slowest >= time for slowest, time in zip(table.slowest, table.times, strict=True))
    assert found.effects == osf.Cluster("plain", "tabulated").effects


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
    script = AT_FOURTH.format(what="if os.environ['RANK'] == '1': os._exit(9)")
    command = [sys.executable, "-c", script, "-o", str(tmp_path / "mine.json")]
    first, second = cluster.local(2).run(command, timeout=60)
    assert (first.status, second.status) == (1, 9)
    assert "rank 0: lost another worker while measuring the cluster" in told(first)[0]
    assert_kept(first, tmp_path / "mine.partial.json")


@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM"])
def test_an_interruption_keeps_what_was_measured(tmp_path, signal):
    script = AT_FOURTH.format(what=f"if os.environ['RANK'] == '0': os.kill(os.getpid(), signal.{signal})")
    first, second = cluster.local(2).run([sys.executable, "-c", script, "-o", str(tmp_path / "c.json")], timeout=60)
    assert first.status == 130
    assert f"stopped by {signal} while measuring the cluster" in told(first)[0]
    assert_kept(first, tmp_path / "c.partial.json")
    assert second.status in (1, -9)


WAITING = """
        if os.environ["RANK"] == "0":
            threading.Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        else:
            time.sleep(100)
"""


def test_so_does_one_while_a_collective_waits(tmp_path):
    """The main thread hears nothing then."""
    command = [sys.executable, "-c", AT_FOURTH.format(what=WAITING.strip()), "-o", str(tmp_path / "c.json")]
    first, _ = cluster.local(2).run(command, timeout=60)
    assert first.status == 130
    assert "stopped by SIGTERM while measuring the cluster" in told(first)[0]
    assert_kept(first, tmp_path / "c.partial.json")


def test_a_result_that_cannot_be_kept_is_told(tmp_path):
    """Its folder was there at first."""
    (tmp_path / "gone").mkdir()
    script = AT_FOURTH.format(what=f"if os.environ['RANK'] == '1': os.rmdir({str(tmp_path / 'gone')!r}); os._exit(9)")
    words = ["-o", str(tmp_path / "gone" / "c.json")]
    first, _ = cluster.local(2).run([sys.executable, "-c", script, *words], timeout=60)
    assert first.status == 1
    (line,) = told(first)
    assert "lost another worker while measuring the cluster" in line
    assert "; what was measured could not be kept: " in line


def test_a_result_whose_folder_is_gone_at_the_end_is_printed(tmp_path):
    (tmp_path / "gone").mkdir()
    script = AT_FOURTH.format(what=f"if os.environ['RANK'] == '0': os.rmdir({str(tmp_path / 'gone')!r})")
    quick = ["--max-size", "4KiB", "--in-flight", "1", "--compute", "none"]
    words = [*quick, "-o", str(tmp_path / "gone" / "c.json")]
    first, second = cluster.local(2).run([sys.executable, "-c", script, *words], timeout=60)
    assert (first.status, second.status) == (1, 0)
    assert "c.json cannot be written: " in first.stderr
    assert "it is on standard output instead" in first.stderr
    (tmp_path / "printed.json").write_text(first.stdout)
    assert osf.load_cluster(tmp_path / "printed.json").name == "c"


@pytest.mark.parametrize("command", [["bench"], ["run", "googlenet-k80", "--plan", "ddp"]])
def test_a_host_that_nobody_reaches(tmp_path, command):
    """192.0.2.1 is for documentation: nobody has it. Neither torch's logs nor its end are to be seen."""
    nowhere = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "29555"}
    words = [*command, "--backend", "gloo", "--timeout", "2s", "-o", str(tmp_path / "out.json")]
    command = [sys.executable, "-m", "osfmodel", *words]
    (ended,) = cluster.local(1).run(command, extra={0: nowhere}, timeout=60, fresh=True)
    assert ended.status == 1
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith("osf: rank 1: not all 2 workers met at 192.0.2.1:29555 within ")
    assert not list(tmp_path.iterdir())


def test_a_port_in_use_and_a_wrong_world_size_are_told(monkeypatch):
    monkeypatch.setattr(cluster, "GRACE", 20.0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        first, second = cluster.local(2).run([*BENCH, "--timeout", "2s"], port=taken.getsockname()[1], timeout=60)
    assert (first.status, second.status) == (1, 1)
    assert "is in use: choose another (torchrun --master-port" in told(first)[0]
    assert len(told(second)) == 1
    three = {rank: {"WORLD_SIZE": "3"} for rank in range(2)}
    for ended in cluster.local(2).run([*BENCH, "--timeout", "2s"], extra=three, timeout=60, fresh=True):
        assert ended.status == 1
        (line,) = told(ended)
        assert "not all 3 workers met at 127.0.0.1:" in line


def test_hosts_apart_on_a_shaped_network(tmp_path):
    """Two hosts at 400 Mbit/s: 1 MiB cannot take less than its bytes at that rate (tbf lets a burst of 128 kB pass)."""
    reason = cluster.unavailable()
    if reason:
        pytest.skip(reason)
    path = tmp_path / "slow.json"
    sizes = ["--min-size", "512KiB", "--max-size", "1MiB", "--repeat", "1", "--in-flight", "1,2"]
    options = [*sizes, "--collective", "reduce_scatter", "--compute", "none", "-o", str(path)]
    with cluster.emulated(2, "400mbit") as hosts:
        ended = hosts.run([*BENCH, *options], timeout=120)
    assert [e.status for e in ended] == [0, 0], ended
    found = osf.load_cluster(path)
    assert (found.gpus_per_node, found.nodes) == (1, 2)
    assert pricing_of(found, 2).cost()(1 << 20) > ((1 << 20) - 2 * 131072) * 8 / 400e6
    assert "interface eth0" in found.source.conditions
