"""Real jobs between emulated hosts with one thing wrong in each: ``osf explain`` names it from their traces."""

from __future__ import annotations

import pytest

import osfmodel as osf
from tests.live import cluster, explained

pytestmark = [pytest.mark.live, pytest.mark.long]
TURNS = 5
"""How often each job is recorded: what most recordings say counts, as another load on a host is a cause of its own."""


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    pytest.importorskip("torch")
    reason = cluster.unavailable()
    if reason:
        pytest.skip(reason)
    return dict(explained.record(tmp_path_factory.mktemp("traces"), turns=TURNS))


@pytest.mark.parametrize("name", explained.EXPECTED)
def test_the_planted_cause_is_named(traces, name):
    found = [osf.explain(paths) for paths in traces[name]]
    expected = (explained.EXPECTED[name], 1 if name.endswith("slow-rank") else None)
    named = [(one.cause, one.straggler if one.straggler == 1 else None) for one in found]
    assert named.count(expected) > TURNS / 2, [one.verdict for one in found]
