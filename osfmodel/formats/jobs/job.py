"""A training job as a file of its framework states it, and the keys of such a file as a reader takes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from osfmodel.entities.display import brief
from osfmodel.entities.errors import DataError

LARGEST = 10**9
"""Above any number of a job."""
OFF = ("", "none", "no", "null", "false", "disabled", "default", "0", "0.0")
"""Values, in lower case, with which a setting does nothing."""
ON = ("true", "yes", "on", "1")
SINGLE = re.compile(r"(degree|size|stages|shards|steps)$")
"""Names of settings that do nothing with 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """A training job; "" , None and missing keys are what its file leaves open.

    framework:  name of its format
    model:      name of an architecture, also as on a hub
    dimensions: fields of its configuration, where the file has these instead of a name
    tokenizer:  name or type, where the file does not say the number of words
    groups:     sizes of the groups inside a replica, by kind
    plan:       named plan of its strategy
    parts:      parts of a workload in words by kind: ``{"seq": "seq8192", "type": "bfloat16", "ac": "ac=full"}``
    replicas:   sets of ranks that each shard; None if there is one, or one on each node
    gpus:       in all
    batch, accumulate, whole: samples of a micro-batch, micro-batches of a step, samples of a step of all replicas
    notes:      on what is predicted otherwise than the file has it
    """

    framework: str = ""
    model: str = ""
    dimensions: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: str = ""
    groups: Mapping[str, int] = field(default_factory=dict)
    plan: str = "ddp"
    parts: Mapping[str, str] = field(default_factory=dict)
    replicas: int | None = None
    gpus: int | None = None
    batch: int | None = None
    accumulate: int | None = None
    whole: int | None = None
    notes: tuple[str, ...] = ()
    __repr__ = brief


class JobFormat(NamedTuple):
    """A file of a framework that states a job.

    summary: what it is
    endings: of such files
    decode:  (text) -> its values, those inside others as mappings; DataError for other text
    signs:   keys, with dots between those of tables, of which such a file has one
    beside:  pattern of keys that neither cost time nor memory
    read:    (keys) -> the job
    plans:   named plans of the strategies that the framework has
    """

    summary: str
    endings: tuple[str, ...]
    decode: Callable[[str], Mapping[str, Any]]
    signs: tuple[str, ...]
    beside: str
    read: Callable[[FileKeys], JobConfig]
    plans: tuple[str, ...]


class FileKeys:
    """The values of a file by their keys, with dots between those of tables; it knows which of them were taken."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = dict(_flat(values))
        self.taken: set[str] = set()

    def value(self, *names: str) -> Any:
        """The value under the first of ``names`` that has one; None without, for ``auto`` and variables of a shell."""
        self.taken.update(names)
        found = (self.values.get(name) for name in names)
        return next((one for one in found if one not in (None, "", "auto") and "$" not in str(one)), None)

    def word(self, *names: str) -> str:
        """The value in lower case; "" without one."""
        found = self.value(*names)
        return "" if found is None else str(found).lower()

    def flag(self, *names: str) -> bool:
        """Whether one of ``names`` is set."""
        return {self.word(name) for name in names}.intersection(ON) != set()

    def count(self, *names: str, least: int = 1) -> int | None:
        """The whole number from ``least`` on under one of ``names``. Raises DataError for another value."""
        found = self.value(*names)
        if found is None:
            return None
        number = re.fullmatch(r"(-?[0-9]{1,10})(?:\.0)?", str(found))
        if number is None or isinstance(found, bool) or not least <= int(number[1]) <= LARGEST:
            name = next(name for name in names if self.values.get(name) == found)
            raise DataError(f"{name} is {found!r:.40}: it must be a whole number from {least} to {LARGEST:,}")
        return int(number[1])

    def sizes(self, names: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
        """The sizes of groups by kind, of which ``names`` has the keys, where they are more than 1."""
        found = {kind: self.count(*keys) for kind, keys in names.items()}
        return {kind: size for kind, size in found.items() if size is not None and size > 1}

    def left(self, beside: str) -> list[str]:
        """The keys, with their values, that were not taken, do something, and are not ``beside`` the matter."""
        rest = {
            key: value for key, value in self.values.items() if key not in self.taken and not re.search(beside, key)
        }
        return [f"{key} = {value!s:.40}" for key, value in rest.items() if not _does_nothing(key, value)]

    def outside(self) -> list[str]:
        """The keys that were taken and whose values are variables that the file does not set."""
        return [f"{key} = {self.values[key]}" for key in sorted(self.taken) if "$" in str(self.values.get(key))]


def _does_nothing(key: str, value: Any) -> bool:
    word = str(value).lower()
    return word in OFF or (word == "1" and SINGLE.search(key) is not None)


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        elif value != []:
            yield f"{before}{key}", value
