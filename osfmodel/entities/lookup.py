"""Tables of entries, also of other packages; look up a name, and suggest the nearest ones if it is not there."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from osfmodel.entities.errors import DataError, UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Entry = TypeVar("Entry")


class Provided(Generic[Entry]):
    """The entries of one table that other installed packages provide: entry points of ``group``, of type ``kind``.

    Metadata of packages are read when somebody asks for a name that osfmodel does not have itself, since that takes
    as long as 7 % of ``osf predict``. A package is imported when one of its entries is used or listed.
    """

    def __init__(self, group: str, kind: type[Entry]) -> None:
        self.group, self.kind = group, kind
        self._loaded: dict[str, Entry] = {}

    @cached_property
    def points(self) -> Mapping[str, Sequence[EntryPoint]]:
        """The entry points by name: several of one name if several packages provide it."""
        if not self.group:
            return {}
        from importlib.metadata import entry_points

        found: dict[str, list[EntryPoint]] = defaultdict(list)
        for point in entry_points(group=self.group):
            found[point.name].append(point)
        return dict(sorted(found.items()))

    def package(self, name: str) -> str:
        """The package that provides an entry, with its version; "" if none does."""
        return " and ".join(map(_package, self.points.get(name, ())))

    def load(self, name: str) -> Entry:
        """The entry. Raises DataError if it does not load, is of another type, or is provided by two packages."""
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def _load(self, name: str) -> Entry:
        point, *others = self.points[name]
        if others:
            raise DataError(f"{self.package(name)} both provide {name!r} in {self.group}: uninstall one of them")
        said = f"{_package(point)}: its entry point {name!r} in {self.group} ({point.value})"
        try:
            entry = point.load()
        except (Exception, SystemExit) as error:
            reason = f"{type(error).__name__}: {error}"
            raise DataError(f"{said} does not load: {reason}: update or uninstall that package") from None
        if not isinstance(entry, self.kind):
            kind = f"{self.kind.__module__}.{self.kind.__qualname__}"
            raise DataError(f"{said} is of type {type(entry).__name__}, not {kind}: update or uninstall that package")
        return entry

    def usable(self, taken: Sequence[str]) -> tuple[dict[str, Entry], list[str]]:
        """The entries that load, and a sentence on each that does not, or whose name is among those ``taken``."""
        found, problems = {}, []
        for name in self.points:
            if name in taken:
                problems.append(
                    f"{self.package(name)}: its entry point {name!r} in {self.group} is not used, as osfmodel has an "
                    "entry of that name: it needs another name"
                )
                continue
            try:
                found[name] = self.load(name)
            except DataError as error:
                problems.append(str(error))
        return found, problems


def _package(point: EntryPoint) -> str:
    return "an unnamed package" if point.dist is None else f"{point.dist.name} {point.dist.version}"


class LateTable(MutableMapping[str, Entry]):
    """A table whose entries are loaded on first use, so that a command loads only those that it needs.

    Other packages can provide further entries, by entry points. These are found by name, like all others; iteration
    is over osfmodel's own.

    >>> table = LateTable({"plain": "entities.plan:PLAIN"})
    >>> "plain" in table, table["plain"].channels
    (True, 1)
    """

    def __init__(self, places: Mapping[str, Entry | str], group: str = "", kind: type[Any] = object) -> None:
        """A table of ``places``: name -> ``module:attribute`` in osfmodel, or the entry itself.

        ``group`` names the entry points of further entries, of type ``kind``; without it there are none.
        """
        self._places = dict(places)
        self.provided: Provided[Entry] = Provided(group, kind)

    def __getitem__(self, name: str) -> Entry:
        if name not in self._places and name in self.provided.points:
            return self.provided.load(name)
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
        return name in self._places or name in self.provided.points

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def all_names(table: Iterable[str]) -> list[str]:
    """The names in ``table``, those of other packages' entries after osfmodel's own."""
    provided = table.provided.points if isinstance(table, LateTable) else {}
    return list(dict.fromkeys([*table, *provided]))


def provider(name: str, table: Mapping[str, Entry]) -> str:
    """The package that provides an entry, with its version; "" if none but osfmodel does."""
    return table.provided.package(name) if isinstance(table, LateTable) and name not in list(table) else ""


def usable_others(table: Mapping[str, Entry]) -> tuple[dict[str, Entry], list[str]]:
    """The entries of other packages, and a sentence on each that cannot be used."""
    return table.provided.usable(list(table)) if isinstance(table, LateTable) else ({}, [])


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
    >>> suggestion("qwen3-30b", ["qwen3-32b", "qwen3-30b-a3b"])
    'did you mean qwen3-30b-a3b?'
    >>> suggestion("fast", ["wfbp", "optimal"])
    'known are wfbp, optimal'
    """
    names = all_names(known)
    listed = f"known are {', '.join(names)}"
    begun = [known for known in names if known.startswith(name) and name]
    whole = [known for known in begun if known.startswith(f"{name}-")]  # without its last part
    meant = [*dict.fromkeys([*whole, *nearest(name, names, most)])][:most]
    return did_you_mean(meant or begun[:3]) or (listed if otherwise is None else otherwise)


def did_you_mean(names: Iterable[str]) -> str:
    """The question whether one of ``names`` was meant; "" without names."""
    meant = " or ".join(names)
    return f"did you mean {meant}?" if meant else ""


def nearest(name: str, known: Iterable[str], most: int, cutoff: float = 0.6) -> list[str]:
    """Up to ``most`` of the names spelt like ``name``, the nearest first; ``cutoff`` from 0 (any) to 1 (equal)."""
    from difflib import get_close_matches

    return get_close_matches(str(name), list(known), n=most, cutoff=cutoff)


def letters(name: str) -> str:
    """Letters and digits of a name, in lower case."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def model_and_rest(text: str) -> tuple[str, str]:
    """The model of a workload in words, and what follows the colon behind it: GPU and conditions."""
    model, _, _ = re.sub(r"(?<=,)( *(?:q?lora|ac)=[^,:]*):", r"\1 ", text).rpartition(":")
    return text[: len(model)], text[len(model) + 1 :]
