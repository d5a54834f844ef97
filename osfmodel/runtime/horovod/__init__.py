"""Turns under Horovod: each in a process of its own on every rank, since Horovod reads its settings at its start.

The ranks have met over torch, as for any run, and stay in touch that way. For each turn rank 0 starts Horovod's
rendezvous server, and every rank a process of ``runtime.horovod.process`` with its settings in the environment.
So ``torchrun`` starts it as it starts everything else; no ``horovodrun``, ssh or MPI is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from typing import Any, NamedTuple

from osfmodel.engine.horovod_loop import Loop
from osfmodel.engine.horovod_settings import environment
from osfmodel.entities import errors
from osfmodel.entities.errors import JobError, OsfError, UsageError
from osfmodel.runtime.job import Place, Watchdog

STARTING = 30.0
"""Seconds that a process of Horovod's may take to start, beyond the patience for everything else."""
KEPT = 4000
"""Characters of a failed process's output that are searched for the reason."""


def require_horovod(command: str) -> None:
    """Raise UsageError if Horovod with PyTorch is not installed."""
    if find_spec("horovod") is None:
        raise UsageError(
            f"{command} --executor horovod needs Horovod built for this PyTorch: docs/how-to/check-horovod.md says how"
        )


@dataclass(frozen=True, slots=True)
class HorovodTurns:
    """Runs tasks under Horovod, each in a fresh process on every rank.

    limit: seconds per gloo collective
    """

    place: Place
    limit: float
    watch: Watchdog

    def run(self, loop: Loop, task: Mapping[str, Any], extra: Mapping[str, str | None] | None = None) -> Any:
        """The result of ``task`` on this rank under these settings.

        Raises JobError on every rank where one failed, or the OsfError that one raised, and UsageError where the ranks
        are not spread evenly. ``extra``: further variables of Horovod's environment, None for one to be left out.
        """
        require_even(self.each((self.place.local_rank, self.place.per_host)))
        with self._server() as port:
            said = {**environment(loop), **self._meeting(port), **(extra or {})}
            settings = {name: value for name, value in said.items() if value is not None}
            result, failure = self._process(settings, task)
        failed = [(rank, other) for rank, other in enumerate(self.each(failure)) if other]
        if failed:
            raise error_of(failed, self.watch.doing)
        return result

    def each(self, value: Any) -> list[Any]:
        """The value of every rank, on every rank."""
        import torch.distributed as dist

        found: list[Any] = [None] * self.place.world
        dist.all_gather_object(found, value)
        return found

    @contextmanager
    def _server(self) -> Iterator[int]:
        """Horovod's rendezvous server, on rank 0; its port on every rank."""
        import torch.distributed as dist

        server, told = None, [0]
        if self.place.rank == 0:
            from horovod.runner.http.http_server import RendezvousServer

            server = RendezvousServer()
            told = [server.start()]
            server.init([])
        dist.broadcast_object_list(told, 0)
        try:
            yield told[0]
        finally:
            if server is not None:
                server.stop()

    def _meeting(self, port: int) -> dict[str, str]:
        """The variables that horovodrun would set."""
        place = self.place
        host, hosts = place.rank // place.per_host, -(-place.world // place.per_host)
        words: dict[str, Any] = {
            "RANK": place.rank,
            "SIZE": place.world,
            "LOCAL_RANK": place.local_rank if place.per_host > 1 else 0,
            "LOCAL_SIZE": place.per_host,
            "CROSS_RANK": host,
            "CROSS_SIZE": hosts,
            "HOSTNAME": f"host-{host}",
            "GLOO_RENDEZVOUS_ADDR": place.address.rpartition(":")[0].strip("[]"),
            "GLOO_RENDEZVOUS_PORT": port,
            "GLOO_TIMEOUT_SECONDS": max(1, round(self.limit)),
            "CONTROLLER": "gloo",
            "CPU_OPERATIONS": "gloo",
        }
        interface = os.environ.get("HOROVOD_GLOO_IFACE") or os.environ.get("GLOO_SOCKET_IFNAME")
        if interface:
            words["GLOO_IFACE"] = interface
        return {f"HOROVOD_{name}": str(value) for name, value in words.items()}

    def _process(self, settings: Mapping[str, str], task: Mapping[str, Any]) -> tuple[Any, Failure | None]:
        """The result of the task in a process, or the reason for its failure."""
        others = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
        command = [sys.executable, "-m", "osfmodel.runtime.horovod.process"]
        with tempfile.TemporaryFile("w+") as heard:
            process = subprocess.Popen(
                command, env={**others, **settings}, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=heard,
            )  # fmt: skip
            assert process.stdin is not None
            assert process.stdout is not None
            said: dict[str, Any] = {}
            try:
                process.stdin.write(json.dumps(task) + "\n")
                process.stdin.flush()
                with self.watch.allowing(self.watch.patience + STARTING):
                    first = process.stdout.readline()
                for line in chain([first] if first else [], process.stdout):
                    said = json.loads(line)
                    self.watch.beat(self.watch.doing)
                status = process.wait()
            except BrokenPipeError:
                status = process.wait()
            finally:
                process.kill()
            if "result" in said:
                return said["result"], None
            heard.seek(0)
            return None, Failure(said.get("error") or _reason(heard.read(), status), said.get("kind"))


class Failure(NamedTuple):
    """The reason why a process failed; ``kind`` is the class of ``entities.errors`` that it raised, if any."""

    said: str
    kind: str | None = None


def error_of(failed: Sequence[tuple[int, Failure]], doing: str) -> OsfError:
    """The error to raise on all ranks for the failures of these.

    If one raised an error of ours, it is that one: the others' Horovod only failed because that rank was gone.
    """
    rank, (said, kind) = next((entry for entry in failed if entry[1].kind), failed[0])
    found = getattr(errors, kind or "", JobError)
    where = f"on rank {rank} while {doing}"
    return found(f"{said} ({where})") if kind else JobError(f"Horovod failed {where}: {said}")


def require_even(places: Sequence[tuple[int, int]]) -> None:
    """Raise UsageError unless all hosts have the same number of ranks; ``places``: (local rank, ranks on its host).

    With one rank on a host its local rank does not matter: a launcher that does not tell of hosts gives the rank.
    """
    world, (_, usual) = len(places), places[0]
    for rank, (local, per_host) in enumerate(places):
        said = f"rank {rank} has LOCAL_RANK {local} and LOCAL_WORLD_SIZE {per_host}"
        if per_host != usual or per_host < 1 or world % per_host:
            raise UsageError(
                f"{said}, WORLD_SIZE {world}: Horovod needs the same number of ranks on every host; use one "
                "--nproc-per-node everywhere"
            )
        if per_host > 1 and local != rank % per_host:
            raise UsageError(
                f"{said}: Horovod needs ranks to be counted host by host, so that would be {rank % per_host}"
            )


def _reason(written: str, status: int) -> str:
    """The line of a process's output that best explains its end."""
    lines = [line.strip() for line in written[-KEPT:].splitlines() if line.strip()]
    telling = [line for line in lines if "what():" in line or "Error" in line]
    return (telling or lines or [f"the process ended with status {status}"])[-1][:300]
