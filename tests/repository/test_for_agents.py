"""The guide for programs, and llms.txt: commands run, keys are in their JSON, exit codes hold, links lead to pages."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from osfmodel.cli.app import COMMANDS
from tests import stand_ins
from tests.commands import invoke
from tests.conftest import ROOT

GUIDE = (ROOT / "docs/how-to/use-from-an-agent.md").read_text(encoding="utf-8")
INDEX = (ROOT / "docs/llms.txt").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(osf [^`]+)` \| (.+) \|$", GUIDE, re.MULTILINE)


def values(document, path):
    """The values at a path such as ``points[].step_time_s``; none where a key is missing."""
    found = [document]
    for part in path.split("."):
        found = [
            one[part.removesuffix("[]")] for one in found if isinstance(one, dict) and part.removesuffix("[]") in one
        ]
        if part.endswith("[]"):
            found = [entry for entries in found for entry in entries]
    return found


@pytest.mark.parametrize(("command", "keys"), ROWS, ids=[command.split()[1] for command, _ in ROWS])
def test_the_keys_of_each_command_are_in_its_json(command, keys, tmp_path, monkeypatch):
    stand_ins.place(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = invoke(shlex.split(command)[1:])
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    paths = re.findall(r"`([^`]+)`", keys)
    assert len(paths) >= 3
    assert document["schema_version"] == 1
    assert [path for path in paths if not values(document, path)] == []


def test_there_are_five_commands_and_the_search_for_keys_can_fail():
    assert len(ROWS) == 5
    assert values({"a": [{"b": 1}, {"b": 2}]}, "a[].b") == [1, 2]
    assert values({"a": [{"b": 1}]}, "a[].c") == values({"a": 1}, "b.c") == []


def test_the_limits_name_every_command():
    """Each is said to compute, to train, or to take as long as its grid."""
    limits = GUIDE.partition("## Stay within limits")[2]
    assert [name for name in COMMANDS if f"`{name}`" not in limits and f"`osf {name}`" not in limits] == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["predict", "googlenet-k80", "--cluster", "k80-10gbe-ring", "--workers", "8"], 0),
        (["predict", "broken.json", "--cluster", "k80-10gbe-ring", "--workers", "8"], 1),
        (["predict", "googlenet-k8", "--cluster", "k80-10gbe-ring", "--workers", "8"], 2),
        (["predict", "googlenet-k80", "--clusters", "x"], 2),
    ],
)
def test_exit_codes_are_those_of_the_table(words, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text('{"schema_version": 1')
    done = invoke(words)
    assert done.exit_code == code
    assert f"| {code} | " in GUIDE
    assert code == 0 or (done.stderr.startswith("osf: ") and done.stderr.count("\n") == 1)


def test_the_links_of_the_index_lead_to_pages():
    links = re.findall(r"\]\(([^)]+)\)", INDEX)
    assert len(links) > 20
    missing = [link for link in links if not (ROOT / "docs" / link.replace(".html", ".md")).is_file()]
    assert missing == []


def test_the_index_has_the_form_of_an_llms_txt():
    """A title, a summary, and lists of links under headings."""
    first, _, summary, *rest = INDEX.splitlines()
    assert first == "# osfmodel"
    assert summary.startswith("> ")
    listed = [
        line for line in "\n".join(rest).partition("\n## ")[2].splitlines()[1:] if line and not line.startswith("## ")
    ]
    assert all(re.match(r"- \[[^]]+\]\([^)]+\)", line) for line in listed)
