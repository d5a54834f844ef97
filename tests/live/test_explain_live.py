"""Real DDP jobs between emulated hosts with one thing wrong in each: ``osf explain`` names it from their traces."""

from __future__ import annotations

import pytest

import osfmodel as osf
from tests.live import cluster, explained

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    pytest.importorskip("torch")
    reason = cluster.unavailable()
    if reason:
        pytest.skip(reason)
    return dict(explained.record(tmp_path_factory.mktemp("traces")))


@pytest.mark.parametrize("name", explained.EXPECTED)
def test_the_planted_cause_is_named(traces, name):
    found = osf.explain(traces[name])
    assert found.cause == explained.EXPECTED[name], found.verdict
    assert (found.straggler == 1) == (name == "slow-rank")
