"""The command ``osf mcp``: a server of the Model Context Protocol, whose tools are commands that only compute."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import click

from osfmodel.cli.groups import GroupedCommand
from osfmodel.entities.errors import UsageError
from osfmodel.entities.version import __version__

LIMIT = 600
"""Seconds after which a command is ended."""
REFUSED = ("-o", "--output", "--live")
"""Options that write a file, or train."""
INSTRUCTIONS = (
    "Predict and plan distributed training of PyTorch models. Quote error_band with a time: nine in ten comparable "
    "runs were inside it. A workload in words, such as llama3-8b:h100,seq8192,batch1,bf16, is counted, not measured. "
    "Warnings are part of the answer."
)


def ask(command: str, *words: str, options: Sequence[str] = ()) -> dict[str, Any]:
    """The JSON document of a command and its warnings. Raises UsageError with what the command says is wrong."""
    for option in options:
        if option.partition("=")[0] in REFUSED or option.startswith("-o"):
            raise UsageError(f"{option}: tools write no files and train nothing; run osf {command} yourself")
    line = [sys.executable, "-m", "osfmodel", command, *words, *options, "--json"]
    try:
        done = subprocess.run(
            line, capture_output=True, text=True, check=False, timeout=LIMIT, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"osf {command} took more than {LIMIT} s: ask for fewer plans or worker counts") from None
    said = done.stderr.strip().splitlines()
    if done.returncode:
        raise UsageError(said[-1] if said else f"osf {command} ended with {done.returncode}")
    return {"document": json.loads(done.stdout), "warnings": said}


def predict(workload: str, cluster: str, workers: str, options: list[str] | None = None) -> dict[str, Any]:
    """Iteration time of data-parallel training under each way of fusing gradients.

    workload: a bundled name, a profile's path, or words; cluster: a name, a path, or words such as
    nccl:h100x8,400Gbps; workers: "64", "8,16" or "8..64"; options: as of `osf predict --help`: ["--plan", "ddp"].
    """
    return ask("predict", workload, "--cluster", cluster, "--workers", workers, options=options or ())


def tune(workload: str, cluster: str, workers: str, target: str, options: list[str] | None = None) -> dict[str, Any]:
    """The best settings of a framework (target: ddp, fsdp2, horovod, deepspeed ...), and whether to take them.

    If `recommended` is false, keep the framework's defaults. options: as of `osf tune --help`.
    """
    return ask("tune", workload, "--cluster", cluster, "--workers", workers, "--for", target, options=options or ())


def scale(workload: str, cluster: str, workers: str, options: list[str] | None = None) -> dict[str, Any]:
    """Rate, memory and cost of training on each number of GPUs, and the sharding to take.

    options: as of `osf scale --help`, such as ["--tp", "8"] or ["--plan", "fsdp2"].
    """
    return ask("scale", workload, "--cluster", cluster, "--workers", workers, options=options or ())


def memory(workload: str, options: list[str] | None = None) -> dict[str, Any]:
    """Peak memory of a step of a profile, or of words, under each plan, when it is reached, and who owns it.

    options: as of `osf memory --help`, such as ["--batch-size", "64"].
    """
    return ask("memory", workload, options=options or ())


def explain(traces: list[str], options: list[str] | None = None) -> dict[str, Any]:
    """The causes of a slow job from torch.profiler's traces (paths: a file of each rank, or a folder), and remedies.

    options: as of `osf explain --help`.
    """
    return ask("explain", *traces, options=options or ())


TOOLS = (predict, tune, scale, memory, explain)


def server() -> Any:
    """The server, not started. Raises UsageError where the package mcp is not installed."""
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError:
        raise UsageError("osf mcp needs the package mcp: pip install 'osfmodel[mcp]'") from None

    def answered(tool: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        @wraps(tool)
        def run(*words: Any, **named: Any) -> dict[str, Any]:
            try:
                return tool(*words, **named)
            except UsageError as error:
                raise ToolError(str(error)) from None

        return run

    found = MCPServer("osfmodel", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING")
    for tool in TOOLS:
        found.add_tool(answered(tool))
    return found


@click.command(name="mcp", cls=GroupedCommand)
def mcp_command() -> None:
    """Serve predict, tune, scale, memory and explain to agents over the Model Context Protocol.

    Speaks over standard input and output; an agent's program starts it. Tools read files and compute, write nothing
    and open no connection. Needs the package mcp: pip install 'osfmodel[mcp]'.

    \b
    Example:
      osf mcp
    """
    server().run("stdio")
