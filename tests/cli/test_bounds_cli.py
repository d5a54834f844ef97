"""A lower bound is of the stated prices, since runs on a faster network were seen below it."""

from __future__ import annotations

import pytest

from tests.commands import invoke

pytestmark = pytest.mark.usefixtures("ideal")

WHERE = ["resnet50-v100", "--cluster", "v100-10gbe", "--workers"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["predict", *WHERE, "16"], "Bound for any schedule at these prices: "),
        (["tune", *WHERE, "16"], "at these"),
        (
            ["tune", "resnet50-v100", "--cluster", "v100-10gbe", "--workers", "16", "--for", "horovod"],
            "at these prices",
        ),
        (["report", *WHERE, "16"], "is faster at these prices: "),
    ],
)
def test_every_bound_says_that_it_is_of_the_prices(words, said):
    shown = " ".join(invoke(words).stdout.split())
    assert said in shown
    assert "no schedule could save" not in shown or "at these prices." in shown


def test_the_page_says_so_too(tmp_path):
    page = tmp_path / "page.html"
    assert invoke(["report", *WHERE, "8,16", "-o", str(page)]).exit_code == 0
    text = page.read_text()
    assert "is faster at these prices: " in text
    assert "can pass this at these prices" in text
