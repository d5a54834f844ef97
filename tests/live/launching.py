"""Start several ranks of ``osf`` as a launcher would, and never leave one behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import osfmodel as osf
from tests.conftest import ROOT
from tests.live.warm import READ_WHILE_IMPORTED, Process

LIMIT = 90
"""Seconds after which a rank that has not ended is killed, and the test fails."""

TRAINING_LIMIT = 600
"""Seconds after which a rank that trains is killed: a few seconds of work on a machine that may be busy."""

ENDING = "import os\ndist.barrier()\nos._exit(0)  # models hold the group until the exit, at which gloo may abort\n"
"""The last lines of a script of ranks that has ``torch.distributed`` as ``dist``."""


class Ended(NamedTuple):
    """A rank that has ended: its exit code, and what it wrote."""

    code: int
    stdout: str
    stderr: str


def launched(module: str, names: Sequence[str], world: int) -> list[Ended]:
    """Every rank of ``python -m MODULE NAME...``, ended."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(world)}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    started = [Process(["-m", module, *names], ROOT, {**environment, "RANK": str(rank)}) for rank in range(world)]
    try:
        said = [process.communicate(timeout=TRAINING_LIMIT) for process in started]
    finally:
        for process in started:
            process.kill()
    return [Ended(process.returncode, *texts) for process, texts in zip(started, said, strict=True)]


def found(module: str, names: Sequence[str], world: int = 2) -> list[Any]:
    """Results of each rank of ``python -m MODULE NAME...``, {name: result}; all must end well."""
    ended = launched(module, names, world)
    assert [rank.code for rank in ended] == [0] * world, ended[0].stderr[-2000:] + ended[-1].stderr[-2000:]
    return [dict(pair for line in rank.stdout.splitlines() for pair in json.loads(line).items()) for rank in ended]


def told(script: str, ranks: int, folder: Path, *words: str) -> Any:
    """The JSON that a script writes to the file named by its first argument, on ``ranks`` ranks of torchrun."""
    program, answer = folder / "train.py", folder / "found.json"
    program.write_text(script + ENDING)
    launch = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [*launch, "--nproc-per-node", str(ranks), str(program), str(answer), *words]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(answer.read_text())


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


Rank = Process | subprocess.Popen[str]


def start(words: list[str], world: int, folder: Path, **changes: str) -> list[Rank]:
    """One process per rank that meet at a free port; ``changes`` replace environment variables."""
    port = str(free_port())
    started: list[Rank] = []
    for rank in range(world):
        place = {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **place, **changes}
        command = ["-m", "osfmodel", *words]
        if READ_WHILE_IMPORTED.isdisjoint(changes):
            started.append(Process(command, folder, environment))
        else:
            started.append(
                subprocess.Popen(
                    [sys.executable, *command], cwd=folder, env=environment, text=True, stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            )  # fmt: skip
    return started


def finish(started: Sequence[Rank]) -> list[Ended]:
    """Wait for all of them, within LIMIT; one that does not end is killed and shows as such."""
    ended = []
    for process in started:
        try:
            stdout, stderr = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            stdout, stderr = process.communicate()
        ended.append(Ended(process.returncode, stdout, stderr))
    return ended


def ranks(words: list[str], world: int, folder: Path, **changes: str) -> list[Ended]:
    """``start`` and ``finish``."""
    return finish(start(words, world, folder, **changes))


def on_a_terminal(words: list[str], folder: Path) -> Ended:
    """One process whose stderr is a terminal, as the only rank of a job."""
    import pty

    ours, theirs = pty.openpty()
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{folder}", "OMP_NUM_THREADS": "1", **place}
    command = [sys.executable, "-m", "osfmodel", *words]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=theirs, timeout=LIMIT,
            check=False,
        )  # fmt: skip
    finally:
        os.close(theirs)
    with open(ours, "rb", buffering=0) as terminal:
        return Ended(done.returncode, done.stdout, terminal.read(65_536).decode().replace("\r\n", "\n"))


def tiny_workload(folder, tensors):
    """So many tensors and a layer without any, a few milliseconds an iteration; also in ``folder`` as tiny.json."""
    rng = np.random.default_rng(tensors)
    layers = [osf.Layer(f"layer{i}", 1e-4, 2e-4, int(4 * rng.integers(100, 60_000))) for i in range(tensors)]
    layers.insert(tensors // 2, osf.Layer("relu", 1e-4, 1e-4, 0))
    workload = osf.Workload("tiny", tuple(layers), update_time=2e-4)
    osf.save(workload, folder / "tiny.json")
    return workload
