"""The page of ``osf explain``: what is on it is what was found, and no name of a trace breaks out of it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import fields, replace

import pytest

import osfmodel as osf
from osfmodel.diagnosis.causes import label_of
from osfmodel.diagnosis.waits import Parts
from osfmodel.entities.display import show_time
from osfmodel.show.explained.page import FILLS, MOST, ROWED, explanation_page
from osfmodel.show.explained.table import WORDS, costs
from tests.commands import invoke
from tests.live.explained import EXPECTED, paths_of
from tests.reports import HOSTILE, Page, assert_fetches_nothing, explanation, hostile_explanation


def labels(found):
    """Labels of the stacked bars."""
    return [attributes["aria-label"] for tag, attributes in found.elements if tag == "g" and "role" in attributes]


def test_the_page_is_whole_and_says_what_was_found():
    one = explanation()
    text = explanation_page(one, "1.2.3")
    found = Page(text)
    assert found.open == []
    assert max(found.ids.values()) == 1
    assert text == explanation_page(one, "1.2.3")
    assert_fetches_nothing(text)
    said = "".join(found.text)
    for words in (one.verdict, "osfmodel 1.2.3", *one.remarks, *(remedy.what for remedy in one.remedies)):
        assert words in said
    for cause, seconds, summary, _ in costs(one):
        assert f"{label_of(cause)}{show_time(seconds)}{seconds / one.step_time:.1%}{summary}" in said
    assert len(labels(found)) == 1 + len(one.ranks)
    assert labels(found)[0].startswith(f"a step: computation {show_time(one.parts.compute)}, exposed transfer ")
    assert all(f"{row.number} all-reduce" in found.text for row in one.buckets)


def test_every_part_of_a_step_has_a_name_and_a_fill():
    assert set(WORDS) == set(FILLS) == {field.name for field in fields(Parts)}


def test_the_bars_are_as_long_as_the_parts():
    one = explanation()
    text = explanation_page(one, "1")
    (first,) = re.findall(r'<g role="img" aria-label="a step:.*?</g>', text)
    widths = [float(width) for width in re.findall(r'width="([0-9.]+)%" height="18" class="(?!exposed|dots)', first)]
    longest = max(sum(getattr(rank.parts, field.name) or 0 for field in fields(Parts)) for rank in one.ranks)
    shown = [seconds for field in fields(Parts) if (seconds := getattr(one.parts, field.name))]
    assert widths == pytest.approx([100 * seconds / longest for seconds in shown], abs=0.01)


def test_names_of_traces_cannot_break_out():
    text = explanation_page(hostile_explanation(), "1")
    found = Page(text)
    assert found.open == []
    assert_fetches_nothing(text)
    assert "script" not in Counter(tag for tag, _ in found.elements)
    (policy,) = [attributes["content"] for tag, attributes in found.elements if "http-equiv" in attributes]
    assert "script-src 'none'" in policy
    assert "".join(found.text).count(HOSTILE) > len(explanation().buckets)


def test_a_page_of_many_ranks_and_messages_is_below_a_megabyte():
    one = explanation()
    rows = tuple(replace(row, number=number) for number, row in enumerate(one.buckets * 100))
    ranks = tuple(replace(one.ranks[0], rank=number) for number in range(1000))
    text = explanation_page(replace(one, buckets=rows, ranks=ranks), "1")
    assert len(text.encode()) < 1e6
    assert f"the {MOST} of {len(rows)} messages with the most exposed time" in text
    assert len(labels(Page(text))) == 1  # the mean alone; the table has every rank
    assert len(labels(Page(explanation_page(replace(one, ranks=ranks[:ROWED]), "1")))) == 1 + ROWED


SHOWN = {"slow-rank", "uneven-exchange", "fsdp2-blocking"}
"""Jobs whose pages are written every day; that of the smallest buckets is above."""


@pytest.mark.parametrize(
    "name", [one if one in SHOWN else pytest.param(one, marks=pytest.mark.long) for one in EXPECTED]
)
def test_each_job_has_its_page(name, tmp_path):
    target = tmp_path / "why.html"
    result = invoke(["explain", *map(str, paths_of(name)), "-o", str(target)])
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    assert f"osf: wrote {target}" in result.stderr
    assert osf.explain(paths_of(name)).verdict in "".join(Page(target.read_text(encoding="utf-8")).text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-o", "nowhere/why.html"], "there is no folder nowhere"),
        (["-o", "why.png"], "pictures: osf report; pages (.html): osf report, explain, scale"),
        (["-o", "why.html", "--json", "--format", "csv"], "contradicts"),
    ],
)
def test_unwritable_output_is_an_error(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(["explain", *map(str, paths_of("healthy")), *words])
    assert result.exit_code == 2
    assert said in result.stderr
    assert list(tmp_path.iterdir()) == []
