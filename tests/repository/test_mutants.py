"""benchmarks/mutants.py: which changes it makes, and which tests a mutant meets."""

from __future__ import annotations

import json
import queue
import shutil
from argparse import Namespace

import pytest

from benchmarks import mutants
from benchmarks.mutants import Mutant, Recorded, drawn, meeting, mutants_of
from tests.conftest import ROOT

TEXT = b'''"""A module."""
LIMIT: int = 3


def largest(rows: list[int], strict: bool = True) -> int:
    """Of all."""
    if strict and not rows:
        raise ValueError(f"no {1 + 1}")
    found = max(rows[0], 2)
    return found - LIMIT if found < 9 else found
'''


def changed(text):
    """{(line, before): what it may become}"""
    found = {}
    for one in mutants_of("m.py", text):
        compile(text[: one.start] + one.after.encode() + text[one.end :], "m.py", "exec")
        found.setdefault((one.lines[1], one.before), []).append(one.after)
    return found


def test_what_runs_is_changed_and_nothing_else():
    """No docstring, annotation or f-string; each operator once."""
    assert changed(TEXT) == {
        (2, "3"): ["4", "2"],
        (5, "True"): ["False"],
        (7, "strict and not rows"): ["(not (strict and (not rows)))", "(strict or not rows)"],
        (7, "not rows"): ["(rows)"],
        (8, 'raise ValueError(f"no {1 + 1}")'): ["pass"],
        (9, "max(rows[0], 2)"): ["(max(2, rows[0]))", "(min(rows[0], 2))"],
        (9, "0"): ["1", "-1"],
        (9, "2"): ["3", "1"],
        (10, "return found - LIMIT if found < 9 else found"): ["return None"],
        (10, "found - LIMIT"): ["(found + LIMIT)"],
        (10, "found < 9"): ["(found <= 9)"],
        (10, "9"): ["10", "8"],
    }


def test_characters_of_several_bytes_move_no_change():
    assert changed('a = "é" if b == 1 else c\n'.encode())[1, "b == 1"] == ["(b != 1)"]


def test_a_larger_count_continues_a_smaller_one(monkeypatch):
    monkeypatch.setattr(mutants, "FOLDERS", ("engine/strategies",))
    few, more = drawn(ROOT, 1, 10), drawn(ROOT, 1, 20)
    assert more[:10] == few != drawn(ROOT, 2, 10)
    assert len({(one.path, one.lines[1]) for one in more}) == 20
    assert all(one.path.startswith("osfmodel/engine/strategies/") for one in more)


def test_edits_elsewhere_move_few_mutants(monkeypatch, tmp_path):
    monkeypatch.setattr(mutants, "FOLDERS", ("targets",))
    shutil.copytree(ROOT / "osfmodel/targets", tmp_path / "osfmodel/targets")
    edited = tmp_path / "osfmodel/targets/ddp.py"
    edited.write_text(edited.read_text().replace("import annotations\n", "import annotations\n\nNEW = 1 + 1\n"))
    was, now = ({(one.path, one.before, one.after) for one in drawn(tree, 1, 300)} for tree in (ROOT, tmp_path))
    assert len(was - now) < 5


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "osfmodel").mkdir()
    (tmp_path / "osfmodel/m.py").write_bytes(TEXT)
    (tmp_path / "osfmodel/user.py").write_text("from osfmodel import m\n\n\ndef use():\n    return m.LIMIT\n")
    return tmp_path


TESTS = [
    Recorded("slow", 9.0, {"osfmodel/m.py": 1 << 9}),
    Recorded("quick", 1.0, {"osfmodel/m.py": 1 << 9}),
    Recorded("beside", 0.1, {"osfmodel/m.py": 1 << 7}),
    Recorded("loads", 0.1, {"osfmodel/m.py": 1 << 2}),
    Recorded("uses", 2.0, {"osfmodel/user.py": 1 << 5}),
]


def test_those_that_execute_the_line_come_first_and_the_fastest_of_them(tree):
    """A constant runs when its module is loaded: there, those that run functions of it or of what imports it."""
    of_line = Mutant("osfmodel/m.py", (9, 9), 0, 0, "", "")
    assert [[one.name for one in group] for group in meeting(of_line, TESTS, tree)] == [["quick", "slow"], ["beside"]]
    of_constant = of_line._replace(lines=(2, 2))
    found = [[one.name for one in group] for group in meeting(of_constant, TESTS, tree)]
    assert found == [[], ["beside", "quick", "uses", "slow"]]


def test_a_mutant_is_put_into_the_copy_and_taken_out_again(tree, monkeypatch):
    """As many tests as the time allows, in two parts; the second is left out where the first notices."""
    (mutant,) = (one for one in mutants_of("osfmodel/m.py", TEXT) if one.after == "(min(rows[0], 2))")
    met = []

    def apart(judge, limit, where, names):
        met.append(names)
        assert b"found = (min(rows[0], 2))" in (where / "osfmodel/m.py").read_bytes()
        return "slow" if "slow" in names else ""

    monkeypatch.setattr(mutants, "apart", apart)
    monkeypatch.setattr(mutants, "FIRST", 1)
    copies = queue.Queue()
    copies.put(tree)
    assert mutants.put(mutant, TESTS, 20, copies) == {"by": "slow", "execute": 2, "run": 3, "left_out": 0}
    assert mutants.put(mutant, TESTS, 5, copies) == {"by": "", "execute": 2, "run": 2, "left_out": 1}
    assert met == [["quick"], ["slow", "beside"], ["quick"], ["beside"]]
    assert (tree / "osfmodel/m.py").read_bytes() == TEXT


def test_a_run_goes_on_where_it_was_stopped_and_survivors_can_be_asked_again(tmp_path, monkeypatch, capsys):
    chosen, asked = list(mutants_of("m.py", TEXT))[:3], []

    def put(mutant, **given):
        asked.append(mutant)
        return {"by": "" if mutant == chosen[1] else "a test", "execute": 1, "run": 1, "left_out": 0}

    monkeypatch.setattr(mutants, "put", put)
    results, args = tmp_path / "seed.jsonl", Namespace(jobs=1, seconds=1, again=False)
    for count in (2, 3):
        found = mutants.put_all(chosen[:count], TESTS, args, results, queue.Queue())
    assert asked == chosen
    args.again = True
    assert mutants.put_all(chosen, TESTS, args, results, queue.Queue()) == found
    assert asked == [*chosen, chosen[1]]
    assert [json.loads(line)["by"] for line in results.read_text().splitlines()] == ["a test", "", "a test", ""]
    mutants.report(found)
    assert capsys.readouterr().out.splitlines()[1:] == ["2 of 3 noticed (67%), 0 by time."]
