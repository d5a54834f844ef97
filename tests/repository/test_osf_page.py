"""docs/reference/osf.md shows rows that benchmarks/osf_model.py prints, and no others under the same headings."""

from __future__ import annotations

import importlib

import pytest

from tests.conftest import ROOT

PAGE = (ROOT / "docs/reference/osf.md").read_text(encoding="utf-8")
QUICK = ("bcaffe", "pytorch-ddp", "horovod-lowbandwidth")


@pytest.fixture(scope="module")
def bench():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("osf_model")


def rows(text):
    return [line for line in text.splitlines() if line.startswith("|")]


def below(heading):
    """The rows of the page's tables that have this heading."""
    return [row for part in PAGE.split(heading)[1:] for row in rows(part.split("\n\n")[0])]


def test_rows_of_the_ledger_are_those_printed(bench):
    printed = list(bench.ledger_table(QUICK))
    assert printed[0] == bench.HEAD
    assert [row for row in below(bench.HEAD) if row.split()[1] in QUICK] == printed[1:]
    assert [row.split()[1] for row in below(bench.HEAD)] == list(bench.TIMED)


@pytest.mark.long
def test_plans_that_it_cannot_express_are_counted_apart(bench):
    """ASC-WFBP's own plans, each against two others, have two channels."""
    found = bench.judged("papers")
    assert (len(found.osf), len(found.ours), found.beyond) == (32, 32, 8)


@pytest.mark.long
def test_all_tables_are_those_printed(bench):
    """The ledger's in full; of the others the page shows some rows, in the order in which they are printed."""
    assert [*rows(bench.HEAD), *below(bench.HEAD)] == rows("\n".join(bench.ledger_table()))
    printed = "\n".join(bench.gains_tables())
    for head in (bench.GAINS_HEAD, bench.COUNTS_HEAD):
        table = rows(printed.partition(head)[2].split("\n\n")[0])
        shown = below(head)
        assert 2 <= len(shown) == len(set(shown))
        assert shown == [row for row in table if row in shown]


def test_the_page_has_no_table_under_another_heading(bench):
    """The table of plans, written by hand, is the exception."""
    heads = {rows(head)[0] for head in (bench.HEAD, bench.GAINS_HEAD, bench.COUNTS_HEAD)}
    tables = {rows(part)[0] for part in PAGE.split("\n\n") if part.startswith("|")}
    assert tables - heads == {"| plan | a batch closes |"}
    assert heads <= tables


def test_gains_of_one_network_are_those_printed(bench):
    found = list(bench.gains("v100-10gbe", 64, bench.CYCLE).lines())
    assert [row for row in below(bench.GAINS_HEAD) if row.startswith("| v100-10gbe | 64 |")] == found


def test_where_ours_adds_nothing_both_models_err_alike(bench):
    """With added effects they differ."""
    alike, apart = bench.judged("bcaffe"), bench.judged("pytorch-ddp")
    assert alike.osf == alike.ours
    assert apart.osf != apart.ours


def test_a_gain_is_a_quotient_of_scaling_factors(bench, small_workload, small_cluster):
    """In easy numbers: 700 bytes never fill a buffer, which without a clock is then one message."""
    pricing = bench.pricing_of(small_cluster, 2)
    flush, exact = bench.adaptive_factors(small_workload, pricing)
    constant = bench.constant_factors(small_workload, pricing, None)
    assert flush == pytest.approx(11.5 / 15.7)  # c at 6 for 1.2 s, b at 8 for 2.2 s, a at 11 for 4.2 s, and the update
    assert exact >= flush
    assert constant == pytest.approx([11.5 / 18.7] * len(bench.BUFFERS))
