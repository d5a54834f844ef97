"""Emulated hosts joined by a switch in this process, which delays packets and loses some, where the kernel cannot.

Each host is a network namespace whose only link is a TUN device; the switch holds the other end of all of them. It
forwards by the address of the receiver, ``delay`` seconds after a packet came, and drops ``loss`` of them at random.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import secrets
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.live import cluster
from tests.live.cluster import Hosts

TUN = "/dev/net/tun"
SET_INTERFACE, IS_TUN, NO_HEADER = 0x400454CA, 0x0001, 0x1000
MTU = 9000
"""Bytes of a packet: larger than usual, so that a switch in Python keeps up."""
LARGEST = 65_536


def unavailable() -> str | None:
    """Why such hosts cannot be emulated here; None where they can."""
    return cluster.unavailable() or (None if os.path.exists(TUN) else f"hosts with delay or loss need {TUN}")


@contextlib.contextmanager
def far(count: int, rate: str, delay: float = 0.0, loss: float = 0.0) -> Iterator[Hosts]:
    """``count`` hosts that send at most ``rate`` (as tc says it), ``delay`` seconds apart, with packets lost.

    At the end the switch is stopped and the namespaces are deleted. Raises CalledProcessError as ``emulated`` does.
    """
    cluster._sweep()
    stem = f"osf-{os.getpid()}-{secrets.token_hex(3)}"
    hosts = tuple(f"{stem}-host{number}" for number in range(count))
    links = [f"osf{secrets.token_hex(3)}n{number}" for number in range(count)]
    policy = cluster._real_time()
    process = None
    try:
        for host in hosts:
            cluster._ip("netns", "add", host)
            cluster._ip("-n", host, "link", "set", "lo", "up")
        command = [sys.executable, str(Path(__file__).resolve()), str(delay), str(loss), *links]
        process = subprocess.Popen([*policy, *command], stdout=subprocess.PIPE, env=_importing(), text=True)
        if not process.stdout or process.stdout.readline() != "ready\n":
            raise subprocess.CalledProcessError(process.wait(), command, stderr="the switch did not start")
        for number, (host, link) in enumerate(zip(hosts, links, strict=True)):
            _attach(host, link, number, rate)
        prefixes = [(*policy, "ip", "netns", "exec", host) for host in hosts]
        yield Hosts(tuple(prefixes), "eth0", cluster._address(0), 1, hosts)
    finally:
        if process is not None:
            process.kill()
            process.communicate()
        cluster._remove(hosts)


def _importing() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(cluster.ROOT)}


def _attach(host: str, link: str, number: int, rate: str) -> None:
    cluster._ip("link", "set", link, "netns", host, "name", "eth0")
    cluster._ip("-n", host, "address", "add", f"{cluster._address(number)}/16", "dev", "eth0")
    cluster._ip("-n", host, "link", "set", "eth0", "mtu", str(MTU), "up")
    for name, value in cluster.TCP.items():
        cluster._ip("netns", "exec", host, "sh", "-c", f"echo {value} > /proc/sys/net/ipv4/{name}")
    shape = ["root", "tbf", "rate", rate, "burst", "128kb", "latency", "100ms"]
    cluster._command("tc", "-n", host, "qdisc", "add", "dev", "eth0", *shape)


def opened(name: str) -> int:
    """The descriptor of a new TUN device."""
    found = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(found, SET_INTERFACE, struct.pack("16sH", name.encode(), IS_TUN | NO_HEADER))
    return found


def forward(ports: list[int], delay: float, loss: float) -> None:
    """Forward packets until killed; host ``k`` has the ``k``-th port."""
    poll = select.epoll()
    for port in ports:
        poll.register(port, select.EPOLLIN)
    by_address = {_packed(number): port for number, port in enumerate(ports)}
    due: list[tuple[float, int, int, bytes]] = []
    chance, count = random.Random(1), 0
    while True:
        wait = max(0.0, due[0][0] - time.monotonic()) if due else -1
        for port, _ in poll.poll(wait):
            with contextlib.suppress(BlockingIOError):
                packet = os.read(port, LARGEST)
                target = by_address.get(packet[16:20])
                if target is not None and not (loss and chance.random() < loss):
                    count += 1
                    heapq.heappush(due, (time.monotonic() + delay, count, target, packet))
        now = time.monotonic()
        while due and due[0][0] <= now:
            _, _, target, packet = heapq.heappop(due)
            with contextlib.suppress(OSError):  # a full or closed device drops it, as a switch does
                os.write(target, packet)


def _packed(number: int) -> bytes:
    return bytes(int(part) for part in cluster._address(number).split("."))


def main() -> None:
    """The switch: DELAY LOSS LINK..."""
    delay, loss, *links = sys.argv[1:]
    ports = [opened(link) for link in links]
    print("ready", flush=True)
    forward(ports, float(delay), float(loss))


if __name__ == "__main__":
    main()
