"""Groups of modules as short text: ``layers.0-3;layers.4,layers.5;head.*``.

A semicolon ends a group, a comma a part of it. A part is the name of a module, a range of the numbers at the end of
names (``layers.0-3``), or a pattern with ``*``, ``?`` or ``[...]``, which stands for all blocks that it fits or, if it
fits none, for the outermost modules that it fits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import groupby

from osfmodel.entities.errors import PlanError
from osfmodel.entities.lookup import suggestion
from osfmodel.entities.modules import blocks
from osfmodel.entities.workload import Workload

RANGE = re.compile(r"(.*?)(\d{1,6})-(\d{1,6})")
WILD = re.compile(r"[*?\[]")


def modules_of(groups: Sequence[Sequence[str]], workload: Workload) -> tuple[tuple[str, ...], ...]:
    """The modules of each group of parts. Raises PlanError for what no module is called, and for one in two groups."""
    names = list(_modules(workload))
    found = [tuple(name for part in parts for name in _named(part, names, workload)) for parts in groups]
    seen: set[str] = set()
    for name in (name for group in found for name in group):
        if name in seen:
            raise PlanError(f"module {name!r} is in two groups: name it once")
        seen.add(name)
    return tuple(found)


def is_part(part: str, workload: Workload) -> bool:
    """Whether a part stands for modules of the workload."""
    try:
        return bool(_named(part, list(_modules(workload)), workload))
    except PlanError:
        return False


def _modules(workload: Workload) -> Iterator[str]:
    """Names of all modules that hold parameters, outer ones first, and of rows without a module."""
    trained = [layer.name.split(".") for layer in workload.layers if layer.gradient_bytes]
    return iter(dict.fromkeys(".".join(parts[: end + 1]) for parts in trained for end in range(len(parts))))


def _named(part: str, names: Sequence[str], workload: Workload) -> list[str]:
    """The modules that a part stands for."""
    if part in names:
        return [part]
    numbers = RANGE.fullmatch(part)
    if numbers is not None and int(numbers[2]) <= int(numbers[3]):
        wanted = [f"{numbers[1]}{number}" for number in range(int(numbers[2]), int(numbers[3]) + 1)]
    elif WILD.search(part):
        wanted = [name for name in blocks(workload) if fnmatchcase(name, part)] or _outermost(part, names)
    else:
        wanted = []
    unknown = next((name for name in wanted if name not in names), part)
    if not wanted or unknown != part:
        known = blocks(workload) or names
        raise PlanError(
            f"no module of {workload.name!r} is called {unknown!r}: {suggestion(unknown, known, _some(known))}"
        )
    return wanted


def _outermost(pattern: str, names: Sequence[str]) -> list[str]:
    found = [name for name in names if fnmatchcase(name, pattern)]
    return [name for name in found if not any(name.startswith(f"{other}.") for other in found)]


def _some(names: Sequence[str]) -> str:
    """A few of the names, for a message."""
    return f"there are {pattern_text([names])}"


def pattern_text(groups: Sequence[Sequence[str]]) -> str:
    """Groups as text that :func:`modules_of` reads; runs of numbered modules as ranges."""
    return ";".join(",".join(_parts(group)) for group in groups)


def _parts(names: Sequence[str]) -> Iterator[str]:
    """The parts of a group: names, and ranges of three names or more."""
    for stem, first, count in runs_of(names):
        if count > 2:
            yield f"{stem}{first}-{first + count - 1}"
        else:
            yield from (f"{stem}{first + place}" if first >= 0 else stem for place in range(count))


def runs_of(names: Sequence[str]) -> list[tuple[str, int, int]]:
    """(stem, first number, how many) of each run of names with consecutive numbers; (name, -1, 1) for other names."""
    found = []
    keyed = [(place, *_numbered(name)) for place, name in enumerate(names)]
    for (stem, _), run in groupby(keyed, lambda row: (row[1], row[2] - row[0] if row[2] >= 0 else -1 - row[0])):
        several = list(run)
        found.append((stem, several[0][2], len(several)))
    return found


@lru_cache(maxsize=2**14)
def _numbered(name: str) -> tuple[str, int]:
    """The name without the number at its end, and that; (name, -1) without one, or where it begins with a 0."""
    match = re.fullmatch(r"(.*?)(0|[1-9]\d{0,5})", name)
    return (name, -1) if match is None or match[1][-1:] == "0" else (match[1], int(match[2]))
