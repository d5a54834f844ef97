"""osf mcp: its tools answer as the commands do, and without the package it says what to install."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from osfmodel.cli import main, mcp
from osfmodel.entities.errors import UsageError
from tests.commands import invoke

JOB = ("googlenet-k80", "k80-10gbe-ring", "8")


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    done = invoke(["mcp"])
    assert done.exit_code == 2
    assert done.stderr == "osf: osf mcp needs the package mcp: pip install 'osfmodel[mcp]'\n"


def test_a_tool_gives_the_document_of_its_command():
    found = mcp.predict(*JOB, options=["--plan", "ddp"])
    words = ["predict", JOB[0], "--cluster", JOB[1], "--workers", JOB[2], "--plan", "ddp", "--json"]
    done = invoke(words)
    assert found["document"] == json.loads(done.stdout)
    assert found["warnings"] == done.stderr.strip().splitlines()


def test_every_tool_is_a_command():
    assert {tool.__name__ for tool in mcp.TOOLS} <= set(main.list_commands(None))


@pytest.mark.parametrize("option", ["-o", "-ox.json", "--output=x.json", "--live"])
def test_tools_write_nothing(option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"tools write no files and train nothing; run osf tune yourself"):
        mcp.tune(*JOB, target="ddp", options=[option])
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_is_the_line_of_the_command():
    with pytest.raises(UsageError, match=r"osf: no workload named 'googlenet-k8'.*did you mean googlenet-k80"):
        mcp.predict("googlenet-k8", *JOB[1:])


def test_the_server_lists_and_calls_its_tools():
    pytest.importorskip("mcp", reason="mcp is not installed: pip install 'osfmodel[mcp]'")
    served = mcp.server()
    tools = asyncio.run(served.list_tools())
    assert [tool.name for tool in tools] == ["predict", "tune", "scale", "memory", "explain"]
    assert all(tool.description for tool in tools)
