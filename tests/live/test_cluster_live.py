"""The harness itself: hosts that see each other and nothing else, bounded time, nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.live import cluster

if not os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    pytest.importorskip("torch", reason="torch, which trains between these hosts, is not installed: pip install torch")

pytestmark = pytest.mark.live
SHOW = "import os; print(*(os.environ[k] for k in ('RANK', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'WORLD_SIZE')))"


@pytest.fixture(scope="module")
def allowed():
    reason = cluster.unavailable()
    if reason:
        pytest.skip(reason)


def mine():
    return [name for name in cluster.namespaces() if name.startswith(f"osf-{os.getpid()}-")]


def test_ranks_have_the_environment_of_torchrun():
    ended = cluster.local(2).run([sys.executable, "-c", SHOW], timeout=30)
    assert [(e.rank, e.status, e.stdout.split()) for e in ended] == [
        (0, 0, ["0", "0", "2", "2"]),
        (1, 0, ["1", "1", "2", "2"]),
    ]


def test_one_that_fails_ends_all_with_what_they_started(monkeypatch):
    monkeypatch.setattr(cluster, "GRACE", 0.2)
    code = "import os, subprocess, sys, time\nif os.environ['RANK'] == '1': sys.exit(3)\n"
    code += "child = subprocess.Popen(['sleep', '100']); print(child.pid, flush=True); time.sleep(100)"
    code = code.replace("sys.exit(3)", "time.sleep(1); sys.exit(3)")
    first, second = cluster.local(2).run([sys.executable, "-c", code], timeout=60)
    assert (first.status, second.status) == (-9, 3)
    child = int(first.stdout)
    deadline = time.monotonic() + 5
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(child)


def alive(pid):
    """Running; one that nobody has waited for yet is not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_time_is_bounded():
    (ended,) = cluster.local(1).run([sys.executable, "-c", "import time; time.sleep(100)"], timeout=0.3)
    assert ended.status == -9


def test_hosts_are_apart_shaped_and_gone_afterwards(allowed):
    with cluster.emulated(2, "50mbit", ranks_per_host=2) as hosts:
        assert len(mine()) == 3
        ended = hosts.run(["sh", "-c", f'ip -br address; {sys.executable} -c "{SHOW}"'], timeout=30)
        assert [e.stdout.splitlines()[-1].split() for e in ended] == [
            [str(rank), str(rank % 2), "2", "4"] for rank in range(4)
        ]
        assert ["10.77.0.1/16" in ended[rank].stdout for rank in range(4)] == [True, True, False, False]
        shaped = subprocess.run(
            ["tc", "-n", hosts.namespaces[1], "qdisc", "show", "dev", "eth0"], capture_output=True, text=True
        )
        assert "tbf" in shaped.stdout
        assert "50Mbit" in shaped.stdout
    assert mine() == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_after_an_error(allowed, error):
    def fail(hosts):
        found["process"] = subprocess.Popen(["ip", "netns", "exec", hosts.namespaces[0], "sleep", "100"])
        while not subprocess.run(
            ["ip", "netns", "pids", hosts.namespaces[0]], capture_output=True, text=True
        ).stdout.strip():
            time.sleep(0.02)
        raise error("in between")

    found = {}
    with pytest.raises(error, match="in between"), cluster.emulated(2) as hosts:
        fail(hosts)
    assert found["process"].wait(10) == -9
    assert mine() == []


def test_what_a_killed_process_left_is_removed_by_the_next(allowed):
    code = "import os\nfrom tests.live import cluster\nwith cluster.emulated(1): os._exit(1)"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=cluster.ROOT)
    process.wait(30)
    assert [name for name in cluster.namespaces() if name.startswith(f"osf-{process.pid}-")]
    with cluster.emulated(1):
        assert [name for name in cluster.namespaces() if name.startswith(f"osf-{process.pid}-")] == []


@pytest.mark.parametrize(
    ("patch", "reason"),
    [(("os.geteuid", lambda: 1000), "need root"), (("shutil.which", lambda tool: None), "install iproute2")],
)
def test_it_says_why_not(monkeypatch, patch, reason):
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(*patch)
    assert reason in cluster.unavailable()
