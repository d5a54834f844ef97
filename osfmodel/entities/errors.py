"""The exceptions of osfmodel, and checks of numbers and names when a noun is made.

::

    OsfError
    ├── UsageError   an argument is wrong: unknown name, bad unit, impossible count
    ├── DataError    a file or a figure in it is wrong (says which file, where, and what)
    │   └── ForeignFileError   a file that osfmodel did not write, where one of its own is needed
    ├── PlanError    a plan does not fit its workload, or an engine or target cannot run it
    ├── CostError    a cluster cannot price a collective (a worker count that was not measured, say)
    ├── JobError     a job of several workers failed: they did not meet, one died, the model raised something
    └── StoppedError somebody stopped it

Every message is one line and says what to do next where there is something to do. The command line ends with 2 where
its own words are wrong (UsageError, and what click finds): an unknown option, name or unit, options that contradict
each other or do not go with this workload or cluster, a place that ``-o`` cannot write to. It ends with 1 for all
else: a file that is missing or wrong, figures that are not there, a plan that cannot be run, a job that
failed. So a script that gets 2 must change its words, and one that gets 1 its data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

LONGEST = 900
"""Maximum characters of a message; the middle of a longer one, which quotes some file, is left out."""


class OsfError(Exception):
    """Base of every error that osfmodel raises on purpose. ``exit_code`` is what the command line returns."""

    exit_code = 1

    def __str__(self) -> str:
        return one_line(super().__str__())


class UsageError(OsfError):
    """An argument is wrong: an unknown name, a missing unit, an impossible count."""

    exit_code = 2


class DataError(OsfError):
    """A file cannot be read, or a figure in it is impossible."""


REMEDY = "to convert another tool's output: osf import"
"""Remedy for the file of another tool."""


class ForeignFileError(DataError):
    """A file without osfmodel's ``schema_version``, where one of osfmodel's own files of ``kind`` is needed.

    path: the file
    kind: "workload", "cluster" or "measurements"
    reason: why it cannot be read as such
    """

    def __init__(self, path: Path, kind: str, reason: str) -> None:
        super().__init__(path, kind, reason)
        self.path, self.kind, self.reason = path, kind, reason

    def __str__(self) -> str:
        return one_line(f"{self.path}: {self.reason}; {REMEDY}")


class PlanError(OsfError):
    """A plan does not belong to its workload, or cannot be run as asked."""


class CostError(OsfError):
    """A cluster cannot price the collective that was asked for."""


class JobError(OsfError):
    """A job of several workers failed: they did not meet, one of them died, or the model raised something."""


class StoppedError(OsfError):
    """The run was stopped by Ctrl-C, or by a launcher that ends its workers."""

    exit_code = 130


def one_line(text: str) -> str:
    """``text`` as it may be printed: on one line, without codes for terminals, not too long."""
    if not text.isprintable():
        text = "".join(sign if sign.isprintable() else " " if sign.isspace() else repr(sign)[1:-1] for sign in text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"


LARGEST_COUNT = 2**53 - 1
"""The largest whole number up to which floating point tells neighbours apart."""
LONGEST_TIME = 1e12
"""Longest time in seconds, some 30,000 years: sums of times stay finite."""


def require_time(value: float, what: str) -> None:
    """Raise DataError unless ``value`` is a finite, non-negative number (of seconds)."""
    if isinstance(value, bool) or not hasattr(value, "__float__") or not math.isfinite(value) or value < 0:
        raise DataError(f"{what} is {value!r}: it must be a finite number, zero or more")
    if value > LONGEST_TIME:
        raise DataError(f"{what} is {value!r}: it must be below {LONGEST_TIME:g}")


def require_positive(value: float, what: str) -> None:
    """Raise DataError unless ``value`` is a finite number above zero (a bandwidth)."""
    if isinstance(value, bool) or not hasattr(value, "__float__") or not math.isfinite(value) or value <= 0:
        raise DataError(f"{what} is {value!r}: it must be a finite number above zero")


def require_name(name: str, what: str) -> None:
    """Raise DataError unless ``name`` is printable text: names end up in code to paste and on terminals."""
    if not isinstance(name, str) or not name or not name.isprintable():
        raise DataError(f"{what} is {name!r:.60}: it must be printable text, not empty")


def require_count(value: int, what: str, least: int = 0) -> None:
    """Raise DataError unless ``value`` is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise DataError(f"{what} is {value!r:.40}: it must be a whole number, {least} or more")
    if value > LARGEST_COUNT:
        raise DataError(f"{what} is {value!r:.40}: it must be below 2^53")


def require_unique(names: Sequence[str], what: str, kind: str) -> None:
    """Raise DataError if two ``kind`` of ``what`` have the same name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DataError(f"{what} has two {kind} named {name!r}: names must be unique")
        seen.add(name)
