"""benchmarks/peers: what a run is, how predictors are asked, and that a missing one is named with what to do."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from tests.conftest import ROOT

HERE = ROOT / "benchmarks" / "peers"


@pytest.fixture(scope="module")
def peers():
    """The main module, as ``python benchmarks/peers`` runs it."""
    before = dict(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(HERE), *sys.path])
        spec = importlib.util.spec_from_file_location("peers_main", HERE / "__main__.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    for name in set(sys.modules) - set(before):
        if name.partition(".")[0] in ("rows", "table", "adapters"):
            del sys.modules[name]


@pytest.fixture(scope="module")
def runs(peers):
    return [row for row in peers.rows(1) if row.source in ("simumax", "torchtitan")]


def test_runs_say_what_was_published(runs):
    first = next(row for row in runs if row.source == "simumax")
    assert (first.sizes.layers, first.sizes.width, first.sizes.key_heads) == (12, 8192, 8)
    assert (first.groups.pipeline, first.replicas, first.zero, first.global_batch) == (2, 4, 1, 16)
    assert first.seconds == pytest.approx(0.843)


def test_the_roofline_is_three_lines(peers, runs):
    row = next(row for row in runs if row.source == "simumax")
    answer = peers.PEERS["roofline"].ask(row)
    assert answer.seconds == pytest.approx(6 * row.model.parameters * 16 * 4096 / (0.5 * 2250e12 * 8), rel=1e-3)
    assert answer.memory == 16 * row.model.parameters / 2


@pytest.mark.long
def test_ours_beside_a_roofline_make_the_tables(peers, runs):
    found = {name: peers.ask(peers.PEERS[name], runs) for name in ("osfmodel", "roofline")}
    assert [bool(one) for one in found["osfmodel"].answers] == [True] * len(runs)
    lines = [line for line in peers.by_time(runs, found) if line.startswith("| osfmodel")]
    assert lines[0].startswith(f"| osfmodel | {len(runs)} | 100% |")
    assert any(line.startswith("| roofline | parameters") for line in peers.by_memory(runs, found))


def test_a_factor_is_learned_on_other_sources(peers, runs):
    """Times that are half of what was measured everywhere are mended, those of one source alone are not."""
    half = [(row, row.seconds / 2) for row in runs]
    assert {round(said / measured, 6) for said, measured in peers.scaled(half)} == {1.0}
    own = [(row, row.seconds / (2 if row.source == "simumax" else 1)) for row in runs]
    assert {round(said / measured, 6) for said, measured in peers.scaled(own)} == {0.5, 2.0}


def test_faults_and_runs_that_cannot_be_said_are_counted(peers, runs):
    def fails(row):
        if row.source == "simumax":
            raise ValueError(row)
        raise peers.UnsaidError("it has no such GPU")

    titans = sum(row.source == "torchtitan" for row in runs)
    found = peers.ask(peers.PEERS["roofline"]._replace(ask=fails), runs)
    assert found.reasons == {"it fails with ValueError": len(runs) - titans, "it has no such GPU": titans}
    assert list(peers.by_time(runs, {"roofline": found}))[2:] == []


def test_a_missing_predictor_is_named_with_what_to_do(peers, monkeypatch):
    adapters = sys.modules["adapters"]
    monkeypatch.setattr(adapters, "SOURCES", ROOT / "none")
    with pytest.raises(peers.MissingError, match=r"git clone https://github.com/calculon-ai/calculon .*caa4b11f"):
        peers.PEERS["calculon"].open()


def test_the_page_has_every_predictor(peers):
    page = (ROOT / "docs/ledger/peers.md").read_text(encoding="utf-8")
    assert [name for name in [*peers.PEERS, *peers.NOT_ASKED] if name not in page] == []
