"""Options of osf scale that are given several times: every combination, and the best."""

from __future__ import annotations

import csv
import io
import json
import re
from itertools import product

import pytest

from tests.commands import invoke

CLUSTER = "nccl:h100x8,400Gbps"
JOB = ["llama3-70b+num_hidden_layers=4:h100,batch1,bf16", "--cluster", CLUSTER, "--workers", "8,16"]
REPEATED = [(name, value) for name in ("--tp", "--batch-size") for value in ("1", "2")]
OPTIONS = [*JOB, *(word for pair in REPEATED for word in pair)]


def ran(*words):
    """The output of osf scale."""
    result = invoke(["scale", *words])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def found():
    """The document of two sizes of two options."""
    return json.loads(ran(*OPTIONS, "--json"))


@pytest.fixture(scope="module")
def alone():
    """The document of each combination by itself."""
    each = product((1, 2), (1, 2))
    return {
        (tp, size): json.loads(ran(*JOB, "--tp", str(tp), "--batch-size", str(size), "--json")) for tp, size in each
    }


def test_every_combination_is_as_it_is_alone(found, alone):
    expected = [
        (count, tp, size, point)
        for place, count in enumerate((8, 16))
        for (tp, size), one in alone.items()
        for point in [one["points"][place]]
    ]
    assert len(found["combinations"]) == 8
    for row, (count, tp, size, point) in zip(found["combinations"], expected, strict=True):
        assert (row["workers"], row["tp"], row["batch_size"]) == (count, tp, size)
        assert {key: row[key] for key in point} == point
    assert all("combinations" not in one for one in alone.values())


def test_the_best_of_each_number_of_gpus_has_the_highest_rate_of_those_that_fit(found, alone):
    for count in (8, 16):
        rows = [row for row in found["combinations"] if row["workers"] == count]
        (best,) = [row for row in rows if row["best"]]
        assert best["fits"] == "yes"
        assert best["samples_per_s"] == max(row["samples_per_s"] for row in rows if row["fits"] == "yes")
    assert found["points"] == alone[best["tp"], best["batch_size"]]["points"]


def test_table_csv_and_page_have_the_same_rows(found, tmp_path):
    rows = found["combinations"]
    table = list(csv.DictReader(io.StringIO(ran(*OPTIONS, "-f", "csv"))))
    keys = ("workers", "tp", "cp", "pp", "ep", "batch_size", "strategy", "best")
    assert [[one[key] for key in keys] for one in table] == [
        ["" if row[key] is None else str(row[key]) for key in keys] for row in rows
    ]
    ran(*OPTIONS, "-o", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    cells = re.findall(r"<tr>(.*?)</tr>", page.partition('id="combinations"')[2].partition("</section>")[0])[1:]
    shown = ran(*OPTIONS).partition("\n\n")[0].splitlines()[2:]
    assert len(cells) == len(shown) == len(rows)
    for row, cell, line in zip(rows, cells, shown, strict=True):
        first = [str(row[key]) for key in ("workers", "tp", "batch_size")]
        assert re.findall(r"<td[^>]*>(.*?)</td>", cell)[:3] == line.split()[:3] == first
        assert ("best" in cell) == line.endswith("best") == row["best"]


def test_each_of_several_plans_is_shown():
    """Also those that are not the best, or do not fit."""
    found = json.loads(ran(*JOB, "--plan", "ddp", "--plan", "fsdp2", "--json"))
    rows = [(row["workers"], row["strategy"], row["fits"], row["best"]) for row in found["combinations"]]
    plans = [("ddp", "no", False), ("fsdp2", "yes", True)]
    assert rows == [(count, *plan) for count in (8, 16) for plan in plans]
    assert "combinations" not in json.loads(ran(*JOB, "--plan", "ddp", "--plan", "ddp", "--json"))


def test_answers_say_the_combination_that_they_are_of():
    found = json.loads(ran(*JOB, "--tp", "1", "--tp", "2", "--target-time", "200ms", "--json"))
    goals = {one["goal"]: one["predicted"] for one in found["answers"] if one["asks"] == "workers"}
    assert goals == {"a step of 200 ms with --tp 1": None, "a step of 200 ms with --tp 2": 8}


def test_the_cheapest_machine_is_looked_for_among_all_combinations():
    machines = ["--cluster", "nccl:a100x8,200Gbps", "--price", "2", "--tp", "1", "--tp", "2"]
    found = json.loads(ran(*JOB, *machines, "--target-time", "200ms", "--json"))
    assert [len(one["combinations"]) for one in found["machines"]] == [4, 4]
    assert found["cheapest"][0]["predicted"] == {"cluster": f"{CLUSTER} with --tp 2", "workers": 8, "price": 16.0}


def test_numbers_of_gpus_that_are_no_whole_replicas_are_left_out():
    words = [JOB[0], "--cluster", "nccl:h100x8,400Gbps", "--workers", "4,8", "--tp", "1", "--tp", "8"]
    result = invoke(["scale", *words, "--json"])
    rows = [(row["workers"], row["tp"]) for row in json.loads(result.stdout)["combinations"]]
    assert rows == [(4, 1), (8, 1), (8, 8)]
    assert "left out: 4 GPUs with --tp 8: no whole replicas" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tp", "0", "--tp", "3"], "--tp 0: it must be a whole number from 1"),
        (["--tp", "1", "--tp", "2", "--anchor", "8=1s"], "--anchor is a step measured with one value of each option"),
        (
            ["--tp", "3", "--tp", "5"],
            "--tp 3: the 64 attention heads of llama3-70b+num_hidden_layers=4 cannot be divided by 3",
        ),
        (["--accumulate", "2", "--accumulate", "4"], "--accumulate takes one value, and is given several times"),
    ],
)
def test_nothing_to_combine_is_one_line(words, said):
    result = invoke(["scale", *JOB, *words])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert said in result.stderr
