"""Hosts to run ranks on: this machine as it is, or several network namespaces on a bridge with shaped egress.

The namespaces share nothing with the machine's own network: the bridge has one of its own, and the only links are veth
pairs between it and the hosts. So names and addresses cannot clash, and what deletes the namespaces deletes everything.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.live.warm import Process

PORT = 29500
ROOT = Path(__file__).resolve().parents[2]
POLL = 0.05
"""Seconds between two looks at the ranks."""
GRACE = 3.0
"""Seconds that ranks have to say what happened and go after one of them failed, before they are killed."""
TCP = {"tcp_congestion_control": "reno", "tcp_wmem": "4096 262144 524288"}
"""BBR, where it is the default, probes and drains the path by itself, so that times differ from second to second; and
with large send buffers what waits before the shaper delays everything behind it by tens of milliseconds."""
NAMED = re.compile(r"osf-(\d+)-[0-9a-f]+-\w+")
FILES = Path("/etc/netns")
"""Folder in which ``ip netns exec`` finds a host's own versions of files of ``/etc``."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How one rank ended: its exit status (negative: the signal), and what it wrote."""

    rank: int
    status: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class Hosts:
    """Hosts of ranks: a command before each rank's own, and the variables for torch.

    ``per_host`` is how many ranks a host has (consecutive ones); ``namespaces`` are those of the hosts, by host.
    """

    prefixes: tuple[tuple[str, ...], ...]
    interface: str
    address: str
    per_host: int = 1
    namespaces: tuple[str, ...] = ()

    def environment(self, rank: int, port: int) -> dict[str, str]:
        """The variables that torchrun would set."""
        local = {"LOCAL_RANK": rank % self.per_host, "LOCAL_WORLD_SIZE": self.per_host}
        place = {"MASTER_ADDR": self.address, "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": self.interface}
        job = {"RANK": rank, "WORLD_SIZE": len(self.prefixes), "GROUP_RANK": rank // self.per_host}
        return {"OMP_NUM_THREADS": "1", **{name: str(value) for name, value in {**local, **place, **job}.items()}}

    def run(
        self,
        command: Sequence[str],
        timeout: float = 60,
        extra: Mapping[int, Mapping[str, str]] | None = None,
        port: int | None = None,
        fresh: bool = False,
    ) -> list[Ended]:
        """``command`` on every rank, to its end; ``extra`` environment by rank.

        With ``fresh`` each rank imports PyTorch itself, else Python on this machine's own network need not.

        Once a rank fails the others have ``GRACE`` seconds, and all together ``timeout``: then they are killed, with
        all that they started. Whatever happens none is left.
        """
        port = port or (PORT if self.namespaces else free_port())
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            running = []
            for rank, prefix in enumerate(self.prefixes):
                environment = {**os.environ, **self.environment(rank, port), **(extra or {}).get(rank, {})}
                out, err = (stack.enter_context(open(Path(folder) / f"{rank}.{kind}", "w+")) for kind in ("out", "err"))
                process: Process | subprocess.Popen[bytes]
                if not (prefix or fresh) and command[0] == sys.executable:
                    process = Process(command[1:], Path.cwd(), environment, (out, err))
                else:
                    process = subprocess.Popen(
                        [*prefix, *command], env=environment, stdout=out, stderr=err, stdin=subprocess.DEVNULL,
                        start_new_session=True,
                    )  # fmt: skip
                stack.callback(_kill, process)
                running.append((process, out, err))
            _wait([process for process, _, _ in running], timeout)
            for process, _, _ in running:
                _kill(process)
            return [Ended(rank, p.returncode, _text(out), _text(err)) for rank, (p, out, err) in enumerate(running)]


def _wait(processes: Sequence[Process | subprocess.Popen[bytes]], timeout: float) -> None:
    """Until all have ended, one failed and the grace is over, or the time is."""
    deadline = time.monotonic() + timeout
    failed = False
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        if not failed and any(process.poll() for process in processes):
            failed, deadline = True, min(deadline, time.monotonic() + GRACE)
        time.sleep(POLL)


def _kill(process: Process | subprocess.Popen[bytes]) -> None:
    """The process and all that it started (they are in its session's group)."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _text(file: object) -> str:
    file.seek(0)  # type: ignore[attr-defined]
    return file.read()  # type: ignore[attr-defined,no-any-return]


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def local(ranks: int) -> Hosts:
    """All ranks on this machine, over its loopback."""
    return Hosts(((),) * ranks, "lo", "127.0.0.1", ranks)


def unavailable() -> str | None:
    """Why hosts cannot be emulated here; None where they can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "emulated hosts need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"emulated hosts need {' and '.join(missing)}: install iproute2"
    try:
        with emulated(2):
            return None
    except subprocess.CalledProcessError as error:
        return f"emulated hosts cannot be made here: {' '.join(error.cmd)}: {error.stderr.strip()}"


@contextlib.contextmanager
def emulated(
    count: int, rate: str = "1gbit", ranks_per_host: int = 1, real_time: bool = True, receiving: bool = False
) -> Iterator[Hosts]:
    """``count`` hosts on one switch, each sending at most ``rate`` (as tc says it), and receiving if so asked.

    ``real_time`` is for ranks that sleep for most of their time: one that computes would keep the core from the threads
    that communicate for a tenth of a second at a time.

    Names carry the process id and a random part. At the end, however it comes, the processes in the namespaces are
    killed and the namespaces deleted, and so are those that a killed process left behind. Raises CalledProcessError
    where the machine does not allow it.
    """
    _sweep()
    stem = f"osf-{os.getpid()}-{secrets.token_hex(3)}"
    switch, hosts = f"{stem}-switch", tuple(f"{stem}-host{number}" for number in range(count))
    try:
        for namespace in (switch, *hosts):
            _ip("netns", "add", namespace)
            _ip("-n", namespace, "link", "set", "lo", "up")
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for number, host in enumerate(hosts):
            _attach(switch, host, number, rate, receiving)
        policy = _real_time() if real_time else ()
        prefixes = [(*policy, "ip", "netns", "exec", host) for host in hosts for _ in range(ranks_per_host)]
        yield Hosts(tuple(prefixes), "eth0", _address(0), ranks_per_host, hosts)
    finally:
        _remove((*hosts, switch))


def _real_time() -> tuple[str, ...]:
    """The command that lets a thread run as soon as it wakes; empty if that is not permitted.

    A host of a real cluster has cores of its own. Here all share a few, and under the default policy a thread that
    wakes up waits for a tick of the clock (4 ms) where another is running: small collectives took eight times as long.
    """
    command = ("chrt", "--rr", "1")
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        _command(*command, "true")
        return command
    return ()


def _attach(switch: str, host: str, number: int, rate: str, receiving: bool) -> None:
    port = f"port{number}"
    _ip("link", "add", "eth0", "netns", host, "type", "veth", "peer", "name", port, "netns", switch)
    _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
    _ip("-n", host, "address", "add", f"{_address(number)}/16", "dev", "eth0")
    _ip("-n", host, "link", "set", "eth0", "up")
    # Horovod meets at what the name of the machine resolves to, which is the same for all hosts.
    (FILES / host).mkdir(parents=True, exist_ok=True)
    (FILES / host / "hosts").write_text(f"127.0.0.1 localhost\n{_address(number)} {socket.gethostname()}\n")
    for name, value in TCP.items():
        _ip("netns", "exec", host, "sh", "-c", f"echo {value} > /proc/sys/net/ipv4/{name}")
    shape = ["root", "tbf", "rate", rate, "burst", "128kb", "latency", "100ms"]
    _command("tc", "-n", host, "qdisc", "add", "dev", "eth0", *shape)
    if receiving:
        _command("tc", "-n", switch, "qdisc", "add", "dev", port, *shape)


def _address(number: int) -> str:
    return f"10.77.{number // 250}.{number % 250 + 1}"


def namespaces() -> list[str]:
    """Namespaces of emulated clusters that exist now, of any process."""
    listed = _ip("netns", "list").split()
    return [word for word in listed if NAMED.fullmatch(word)]


def _sweep() -> None:
    """Remove what processes left behind that are no more."""
    stale = [name for name in namespaces() if not Path(f"/proc/{NAMED.fullmatch(name)[1]}").exists()]
    _remove(stale)


def _remove(names: Sequence[str]) -> None:
    """Kill what runs in these namespaces and delete them; what is gone already is no error."""
    for name in names:
        with contextlib.suppress(subprocess.CalledProcessError):
            for pid in _ip("netns", "pids", name).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("netns", "delete", name)
        shutil.rmtree(FILES / name, ignore_errors=True)


def _ip(*words: str) -> str:
    return _command("ip", *words)


def _command(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
