"""Unknown names: one way to say so, and one place that knows how."""

from __future__ import annotations

import doctest
import re

import pytest

from osfmodel.entities import lookup
from osfmodel.entities.errors import UsageError
from tests.conftest import ROOT

TABLE = {"ddp": 1, "deepspeed": 2, "horovod": 3}


def test_the_examples_in_the_docstrings():
    assert doctest.testmod(lookup).failed == 0


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("deepsped", "did you mean deepspeed?"),
        ("fast", "known are ddp, deepspeed, horovod"),
        ("", "known are ddp, deepspeed, horovod"),
    ],
)
def test_an_unknown_name_is_met_with_the_nearest_or_with_all(name, advice):
    with pytest.raises(UsageError, match=re.escape(f"unknown target {name!r}: {advice}")):
        lookup.require(name, TABLE, "target")


def test_several_may_have_been_meant():
    assert lookup.suggestion("deeped", ["deepspeed", "deeper"], most=2) == "did you mean deeper or deepspeed?"
    assert lookup.suggestion("fast", TABLE, "or give a file") == "or give a file"
    assert lookup.did_you_mean([]) == ""
    assert lookup.nearest(3, TABLE, most=1) == []  # a figure where a name belongs


def test_only_one_module_compares_spellings():
    users = [path for path in (ROOT / "osfmodel").rglob("*.py") if "difflib" in path.read_text(encoding="utf-8")]
    assert [path.stem for path in users] == ["lookup"]
