"""Commands drawn from a grammar: each has an answer, or a refusal whose remedy works."""

from __future__ import annotations

from random import Random

import pytest

from osfmodel.cli.app import COMMANDS
from tests.draws import seeds
from tests.grammar import ARGUMENTS, GOOD, LEFT_OUT, OPTIONS, Bench, drawn, judged, one_sided, options_of

SEED = 41


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("grammar"))


def test_the_grammar_has_all_commands_and_options():
    """A command that is added, or an option of one, is drawn."""
    assert {*COMMANDS} - {*ARGUMENTS} == {"bench", "mcp", "profile", "run"}, "these train, need PyTorch, or serve"
    found = {name for command in ARGUMENTS for name, one in options_of(command).items() if not one.is_flag}
    assert found - {*OPTIONS} == set()
    assert not {*OPTIONS} & LEFT_OUT


@pytest.mark.parametrize("number", seeds(6, 30))
def test_commands_are_answered_or_can_be_mended(number, bench):
    """Each proposal of a refusal, typed, leads to an answer; benchmarks/commands.py draws more."""
    draw = drawn(Random(f"{SEED} {number}"))
    found = judged(draw.words, bench, draw.meant)
    assert found.verdict in GOOD, found


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("noun", ["gpu", "rate", "architecture", "tolerance"])
def test_what_one_side_takes_the_others_take(noun, every, bench):
    """A spelling is known to all options that take its noun, or to none; benchmarks/commands.py asks of all nouns."""
    assert list(one_sided(noun, bench, every)) == []
