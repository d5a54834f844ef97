"""Dataclasses whose methods are not compiled mean what the standard library's mean."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
from itertools import product
from typing import Any

import pytest

from osfmodel.entities import records


def made(decorator: Any, frozen: bool, slots: bool) -> Any:
    """A class with every kind of field that the package uses, and one that inherits from it."""

    @decorator(frozen=frozen, slots=slots)
    class Base:
        first: int
        second: tuple[int, ...] = ()
        kept: list[int] = dataclasses.field(default_factory=list, compare=False, repr=False)
        found: int = dataclasses.field(init=False, default=0)
        inner: dict[str, int] = dataclasses.field(init=False, default_factory=dict, compare=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "found", self.first + 1)

    @decorator(frozen=frozen, slots=slots, kw_only=True)
    class Derived(Base):
        third: str = "c"

    return Derived


ASKED = [((1,), {}), ((1, (2,)), {}), ((2,), {"third": "d", "kept": [3]}), ((2,), {"third": "d", "kept": [4]})]


@pytest.mark.parametrize(("frozen", "slots"), list(product((False, True), repeat=2)))
def test_they_are_built_shown_compared_and_hashed_alike(frozen, slots):
    ours, theirs = made(records.dataclass, frozen, slots), made(dataclasses.dataclass, frozen, slots)
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    mine, other = ([kind(*words, **named) for words, named in ASKED] for kind in (ours, theirs))
    assert list(map(repr, mine)) == list(map(repr, other))
    assert [one == two for one in mine for two in mine] == [one == two for one in other for two in other]
    assert mine[0] != other[0]
    if frozen:
        assert len(set(mine)) == len(set(other)) == 3
        with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'first'"):
            mine[0].first = 5
    else:
        with pytest.raises(TypeError, match="unhashable"):
            hash(mine[0])
    with pytest.raises(TypeError, match="required positional argument: 'first'"):
        ours()
    assert dataclasses.replace(mine[0], first=7).found == 8
    assert [one.name for one in dataclasses.fields(ours)] == [one.name for one in dataclasses.fields(theirs)]


@records.dataclass(frozen=True, slots=True)
class Sent:
    """A record that goes to another process."""

    size: int
    parts: tuple[int, ...] = ()


def test_they_are_pickled():
    assert pickle.loads(pickle.dumps(Sent(3, (1, 2)))) == Sent(3, (1, 2))
