"""Commands drawn from a grammar: each has an answer, or a refusal whose remedy works."""

from __future__ import annotations

from random import Random

import pytest

from tests.grammar import ARGUMENTS, LEFT_OUT, OPTIONS, Bench, drawn, judged, options_of

SEED = 41


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("grammar"))


def test_the_grammar_has_all_options():
    """An option that is added to a command is drawn."""
    found = {name for command in ARGUMENTS for name, one in options_of(command).items() if not one.is_flag}
    assert found - {*OPTIONS} == set()
    assert not {*OPTIONS} & LEFT_OUT


@pytest.mark.parametrize("number", range(30))
def test_commands_are_answered_or_can_be_mended(number, bench):
    """What a refusal proposes, typed, leads to an answer; see benchmarks/commands.py for more of them."""
    found = judged(drawn(Random(f"{SEED} {number}")).words, bench)
    assert found.verdict not in ("traceback", "silent", "several lines"), found
