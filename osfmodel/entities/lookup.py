"""Look up a name in a table; suggest the nearest names if it is not there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import TypeVar

from osfmodel.entities.errors import UsageError

Entry = TypeVar("Entry")


class LateTable(MutableMapping[str, Entry]):
    """A table whose entries are loaded on first use, so that a command loads only those that it needs.

    >>> table = LateTable({"plain": "entities.plan:PLAIN"})
    >>> "plain" in table, table["plain"].channels
    (True, 1)
    """

    def __init__(self, places: Mapping[str, Entry | str]) -> None:
        """``places``: name -> ``module:attribute`` in osfmodel, or the entry itself."""
        self._places = dict(places)

    def __getitem__(self, name: str) -> Entry:
        place = self._places[name]
        if not isinstance(place, str):
            return place
        module, _, attribute = place.partition(":")
        found: Entry = getattr(import_module(f"osfmodel.{module}"), attribute)
        self._places[name] = found
        return found

    def __setitem__(self, name: str, entry: Entry) -> None:
        self._places[name] = entry

    def __delitem__(self, name: str) -> None:
        del self._places[name]

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def require(name: str, table: Mapping[str, Entry], what: str) -> Entry:
    """The entry of ``table`` called ``name``. Raises UsageError that calls it an unknown ``what`` and suggests others.

    >>> require("ddp", {"ddp": 1}, "target")
    1
    """
    if name not in table:
        raise UsageError(f"unknown {what} {name!r}: {suggestion(name, table)}")
    return table[name]


def suggestion(name: str, known: Iterable[str], otherwise: str | None = None, most: int = 1) -> str:
    """ "did you mean" with up to ``most`` names spelt like ``name``; without any, ``otherwise`` or a list of all names.

    >>> suggestion("optimum", ["wfbp", "optimal"])
    'did you mean optimal?'
    >>> suggestion("fast", ["wfbp", "optimal"])
    'known are wfbp, optimal'
    """
    names = list(known)
    all_names = f"known are {', '.join(names)}"
    return did_you_mean(nearest(name, names, most)) or (all_names if otherwise is None else otherwise)


def did_you_mean(names: Iterable[str]) -> str:
    """The question whether one of ``names`` was meant; "" without names."""
    meant = " or ".join(names)
    return f"did you mean {meant}?" if meant else ""


def nearest(name: str, known: Iterable[str], most: int, cutoff: float = 0.6) -> list[str]:
    """Up to ``most`` of the names spelt like ``name``, the nearest first; ``cutoff`` from 0 (any) to 1 (equal)."""
    from difflib import get_close_matches

    return get_close_matches(str(name), list(known), n=most, cutoff=cutoff)
