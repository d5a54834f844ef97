"""Start Python programs in copies of a process that has imported PyTorch already, in milliseconds instead of seconds.

A server imports what ranks need beside osfmodel, and forks for each request. The copy takes the request's folder,
environment and files, runs what ``python -m`` or ``python -c`` runs, and ends as an interpreter ends: exit handlers,
threads and exit codes are those of a process of its own. All copies share the server's hash seed, and the variables
that PyTorch reads while it is imported.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.util
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

READ_WHILE_IMPORTED = {"OMP_NUM_THREADS"}
"""Variables whose values in a request come too late."""
PRELOADED = (
    "click", "cvxpy", "msgspec", "numpy", "rich.console", "rich.progress", "scipy.optimize", "torch",
    "torch._dynamo", "torch.distributed", "torch.nn.parallel", "torch.optim", "torch.profiler", "yaml",
)  # fmt: skip
LARGEST = 1 << 20
"""Bytes of a request."""


class Process:
    """``python WORDS``, where WORDS begin with -m or -c, in a session of its own.

    pid, poll, wait, communicate, send_signal and kill are those of subprocess.Popen; ``files`` are for what it writes.
    """

    def __init__(
        self, words: Sequence[str], folder: Path, environment: Mapping[str, str], files: Sequence[IO[str]] = ()
    ) -> None:
        assert words[0] in {"-m", "-c"}
        self._files = files or [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115
        self.returncode: int | None = None
        address = _server()
        self._answers = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._answers.connect(address)
        request = json.dumps([list(words), str(folder), dict(environment)]).encode()
        with open(os.devnull) as nothing:
            socket.send_fds(self._answers, [request], [nothing.fileno(), *(file.fileno() for file in self._files)])
        self.pid = int(self._answers.recv(64))

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._answers, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired("a rank", timeout or 0)
            self.returncode = int(self._answers.recv(64))
            self._answers.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Everything it wrote to its output and its errors, once it has ended. Raises subprocess.TimeoutExpired."""
        self.wait(timeout)
        said = []
        for file in self._files:
            with file:
                file.seek(0)
                said.append(file.read())
        return said[0], said[1]

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended just now, and its server has seen that already
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


@cache
def _server() -> str:
    """The address of this process's server, which ends with it."""
    folder = tempfile.mkdtemp()
    address = f"{folder}/server"
    alone = {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }  # threads do not survive forks
    process = subprocess.Popen(
        [sys.executable, __file__, address], env={**os.environ, **alone}, stdin=subprocess.PIPE, start_new_session=True
    )

    def end() -> None:
        assert process.stdin
        process.stdin.close()
        process.wait()
        Path(address).unlink(missing_ok=True)
        os.rmdir(folder)

    atexit.register(end)
    while not Path(address).exists():
        assert process.poll() is None, "the server of warm processes did not start"
        time.sleep(0.05)
    return address


def serve(address: str) -> tuple[list[Any], list[int]]:
    """Fork for each request, until standard input is closed. Returns in the copies only: their request and files."""
    asleep, awake = socket.socketpair()
    awake.setblocking(False)
    signal.set_wakeup_fd(awake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address + ".new")
        listener.listen()
        os.rename(address + ".new", address)
        for source in (listener, asleep, sys.stdin):
            selector.register(source, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if sys.stdin in ready:
                for pid in running:
                    os.kill(pid, signal.SIGKILL)
                sys.exit()
            if asleep in ready:
                asleep.recv(4096)
                _report(running)
            if listener in ready:
                client, _ = listener.accept()
                message, files, _, _ = socket.recv_fds(client, LARGEST, 3)
                pid = os.fork()
                if not pid:
                    signal.set_wakeup_fd(-1)
                    for connection in (client, asleep, awake, *running.values()):
                        connection.close()
                    return json.loads(message), files
                for file in files:
                    os.close(file)
                running[pid] = client
                client.send(str(pid).encode())


def _report(running: dict[int, socket.socket]) -> None:
    """Tell the clients of copies that have ended their exit codes."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with running.pop(pid) as client:
            try:
                client.send(str(os.waitstatus_to_exitcode(status)).encode())
            except BrokenPipeError:  # nobody waits
                continue


def become(request: list[Any], files: list[int]) -> None:
    """Run the request in this process."""
    (kind, program, *words), folder, environment = request
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:1] = [folder, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = [kind, *words]
    if kind == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(program, "<string>", "exec"), main.__dict__)


if __name__ == "__main__":
    for name in PRELOADED:
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what collects or looks through all objects leaves out those of the libraries
    become(*serve(sys.argv[1]))
