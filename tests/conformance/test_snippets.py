"""Every entry of SNIPPETS, the moment it is listed."""

from __future__ import annotations

import re

import pytest

from osfmodel import CONFIG_TARGETS
from osfmodel.entities.errors import UsageError
from osfmodel.planning.tuning.launch import SNIPPETS
from tests.commands import invoke
from tests.kept import tuned

WORKLOAD = "alexnet-pipedream"
CASES = [("v100-10gbe", 16), ("v100-10gbe", 4), ("v100-10gbe", 7), ("nccl-h100-node", 8)]
"""Clusters and workers: of several nodes, of one, of nodes that are not filled, of a model that knows algorithms."""
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))


def written(name, target, case):
    """(the lines, "") of an entry for a tuned plan, or ("", why there are none)."""
    try:
        return SNIPPETS[name].write(tuned(WORKLOAD, *case, target)), ""
    except UsageError as error:
        return "", str(error)


@pytest.mark.parametrize("name", SNIPPETS)
def test_it_is_described_and_serves_somebody(name):
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", name)
    assert re.fullmatch(r"\S.*[^.\s]", SNIPPETS[name].summary)
    assert any(written(name, target, case)[0] for target in CONFIG_TARGETS for case in CASES)


@pytest.mark.covering
@every_case
@pytest.mark.parametrize("target", CONFIG_TARGETS)
@pytest.mark.parametrize("name", SNIPPETS)
def test_it_is_a_whole_file_or_one_clear_line_that_says_why_not(name, target, case):
    """Lines say what they are for, and leave nothing open; a refusal names what is refused, and what to do."""
    cluster, workers = case
    text, why = written(name, target, case)
    if text:
        assert WORKLOAD in text
        assert cluster in text
        assert re.search(rf"\b{workers} workers\b", text)
        assert text.endswith("\n")
        assert not re.search(r"(?<!\$)\{\w*\}", text), "a placeholder was left in the template"
        assert any(line and not line.startswith("#") for line in text.splitlines())
        assert text == SNIPPETS[name].write(tuned(WORKLOAD, *case, target))
    else:
        assert "\n" not in why
        assert any(named in why for named in (target, repr(cluster), f"{workers} workers"))
        assert re.search(r": \S", why)


@pytest.mark.parametrize("name", SNIPPETS)
def test_several_worker_counts_are_served_or_one_is_asked_for(name):
    text, why = written(name, "ddp", ("nccl-h100-ndr", (8, 16)))
    assert re.search(r"\b8\b.*\b16\b", text) if text else why.endswith("give one to --workers")


@pytest.mark.covering
@pytest.mark.usefixtures("kept_tuning")
@pytest.mark.parametrize("target", ["ddp", "byteps"])
@every_case
@pytest.mark.parametrize("name", SNIPPETS)
def test_the_command_writes_the_same_or_refuses_the_same(name, target, case, tmp_path):
    cluster, workers = case
    asked = ["tune", WORKLOAD, "--cluster", cluster, "--workers", str(workers), "--for", target, "--lines", name]
    path = tmp_path / "lines"
    text, why = written(name, target, case)
    printed, kept = invoke(asked), invoke([*asked, "-o", str(path)])
    assert printed.exit_code == kept.exit_code == (0 if text else 2)
    assert printed.stdout == text
    assert (path.read_text() if path.exists() else "") == text
    assert not why or why in printed.stderr
