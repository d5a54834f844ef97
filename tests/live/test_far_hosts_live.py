"""The switch with delay and loss: packets take as long as it says, some are dropped, and nothing is left behind."""

from __future__ import annotations

import os
import sys

import pytest

from tests.live import cluster, far_hosts

if not os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    pytest.importorskip("torch", reason="torch, which trains between these hosts, is not installed: pip install torch")

pytestmark = pytest.mark.live
PROBE = """
import os, socket, time
address, count, end = os.environ["MASTER_ADDR"], 30, b"end"
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    probe.settimeout(0.2)
    if os.environ["RANK"] == "0":
        probe.bind((address, 5999))
        for _ in range(2 * count):
            try:
                heard, sender = probe.recvfrom(64)
            except TimeoutError:
                continue
            if heard == end:
                break
            probe.sendto(heard, sender)
    else:
        time.sleep(0.5)
        times = []
        for number in range(count):
            began = time.perf_counter()
            probe.sendto(bytes([number]), (address, 5999))
            try:
                probe.recv(64)
                times.append(time.perf_counter() - began)
            except TimeoutError:
                pass
        for _ in range(10): # some may be lost
            probe.sendto(end, (address, 5999))
        print(len(times), min(times, default=0))
"""


@pytest.fixture(scope="module")
def allowed():
    reason = far_hosts.unavailable()
    if reason:
        pytest.skip(reason)


@pytest.mark.parametrize(("delay", "loss"), [(0.0, 0.0), (0.02, 0.0), (0.0, 0.3)])
def test_packets_take_the_delay_both_ways_and_some_are_lost(allowed, delay, loss):
    with far_hosts.far(2, "100mbit", delay, loss) as hosts:
        _, ended = hosts.run([sys.executable, "-c", PROBE], timeout=90)
        answered, shortest = ended.stdout.split()
    assert float(shortest) >= 2 * delay
    assert (int(answered) == 30) == (loss == 0)
    assert int(answered) > 5
    assert [name for name in cluster.namespaces() if name.startswith(f"osf-{os.getpid()}-")] == []
