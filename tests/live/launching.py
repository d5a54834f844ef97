"""Start several ranks of ``osf`` as a launcher would, and never leave one behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
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


def places(world: int, **changes: str) -> list[dict[str, str]]:
    """The environment of each rank of a job on this machine, which meets at a free port; ``changes`` replace others."""
    job = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(world)}
    job |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [{**job, "RANK": str(rank), **changes} for rank in range(world)]


def launched(module: str, names: Sequence[str], world: int) -> list[Ended]:
    """Every rank of ``python -m MODULE NAME...``, ended."""
    return trained(["-m", module, *names], ROOT, places(world))


def trained(words: Sequence[str], folder: Path, environments: Sequence[Mapping[str, str]]) -> list[Ended]:
    """Every rank of ``python WORDS`` in the folder, ended; none is left."""
    started = [Process(words, folder, environment) for environment in environments]
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


def under_torchrun(words: Sequence[str], ranks: int, folder: Path, **changes: str) -> None:
    """``python WORDS`` in the folder on ``ranks`` ranks that know what torchrun tells; all must end well."""
    told = {"CUDA_VISIBLE_DEVICES": "", "TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": str(ranks), **changes}
    environments = [{**place, **told, "LOCAL_RANK": place["RANK"]} for place in places(ranks)]
    ended = trained(words, folder, environments)
    assert [rank.code for rank in ended] == [0] * ranks, "".join(rank.stderr[-3000:] for rank in ended)


def told(script: str, ranks: int, folder: Path, *words: str, **changes: str) -> Any:
    """The JSON that a script writes to the file named by its first argument, on ``ranks`` ranks as of torchrun."""
    answer = folder / "found.json"
    under_torchrun(["-c", script + ENDING, str(answer), *words], ranks, folder, **changes)
    return json.loads(answer.read_text())


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


BRIEFLY = """
import importlib
computation = importlib.import_module("osfmodel.runtime.bench.computation")
hosting = importlib.import_module("osfmodel.runtime.bench.hosting")
computation.SECONDS, computation.ROUNDS, computation.SIZES = 0.05, 2, computation.SIZES[:3]
computation.TENSORS, computation.MIRRORED, computation.TOGETHER, computation.OTHER = 8, 1 << 16, 1 << 18, 1 << 18
hosting.STEPS, hosting.ROUNDS = 1, 2
"""
BRIEF = f"from osfmodel.cli import run{BRIEFLY}run()"
"""``osf`` whose bench measures computation and hosts for a short time only, as a script of ``python -c``."""
Rank = Process | subprocess.Popen[str]


def start(words: list[str], world: int, folder: Path, **changes: str) -> list[Rank]:
    """One process per rank that meet at a free port; ``changes`` replace environment variables."""
    started: list[Rank] = []
    for environment in places(world, **changes):
        command = ["-c", BRIEF, *words]
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
    (environment,) = places(1, PYTHONPATH=f"{ROOT}:{folder}")
    with tempfile.TemporaryFile("w+") as said, os.fdopen(theirs, "w") as terminal:
        process = Process(["-m", "osfmodel", *words], folder, environment, (said, terminal))
        try:
            process.wait(LIMIT)
        finally:
            process.kill()
        said.seek(0)
        stdout = said.read()
    with open(ours, "rb", buffering=0) as terminal:
        return Ended(process.returncode or 0, stdout, terminal.read(65_536).decode().replace("\r\n", "\n"))


def tiny_workload(folder, tensors):
    """So many tensors and a layer without any, a few milliseconds an iteration; also in ``folder`` as tiny.json."""
    rng = np.random.default_rng(tensors)
    layers = [osf.Layer(f"layer{i}", 1e-4, 2e-4, int(4 * rng.integers(100, 60_000))) for i in range(tensors)]
    layers.insert(tensors // 2, osf.Layer("relu", 1e-4, 1e-4, 0))
    workload = osf.Workload("tiny", tuple(layers), update_time=2e-4)
    osf.save(workload, folder / "tiny.json")
    return workload
