"""The source of figures, which every workload, cluster and measurement carries."""

from __future__ import annotations

import re
from zlib import crc32

from osfmodel.entities.display import brief
from osfmodel.entities.errors import DataError
from osfmodel.entities.records import dataclass

IMPORTED = "imported from "
"""Prefix of the origin of figures that were imported from another tool's file."""
NO_GPU = "none (CPU)"
CRC = "crc32"
CHECKSUM = re.compile(rf"(?<=, ){CRC} [0-9a-f]{{8}}$")
TELLING = 65_536
"""Bytes at the start of a file that its checksum covers: enough to tell it from others of its name."""


@dataclass(frozen=True, slots=True)
class Source:
    """Provenance of a profile.

    origin:      who measured it and where it is published (repository, path, commit; paper, table)
    conditions:  hardware, software and settings under which it was measured, and what was done to it since
    licence:     the terms under which the figures were published
    gpu:         the GPU that they are of; NO_GPU if they are of a CPU
    """

    origin: str = "not stated"
    conditions: str = "not stated"
    licence: str = "not stated"
    gpu: str = "not stated"

    __repr__ = brief

    def __post_init__(self) -> None:
        for name in ("origin", "conditions", "licence", "gpu"):
            if not getattr(self, name).isprintable():
                raise DataError(f"the {name} of a source has characters that cannot be printed")

    @property
    def is_import(self) -> bool:
        """Whether ``osf import`` wrote it."""
        return self.origin.startswith(IMPORTED)

    def same_import(self, other: Source) -> bool:
        """Whether both are imports of the same file, packed or not."""
        if not (self.is_import and other.is_import):
            return False
        mine, others = (CHECKSUM.search(origin) for origin in (self.origin, other.origin))
        return mine[0] == others[0] if mine and others else self.origin == other.origin


def imported(file: str, conditions: str, checksum: str = "") -> Source:
    """The source of an import from ``file``, which does not state a licence.

    ``checksum`` distinguishes files of the same name, such as the rank0.json of every job.
    """
    return Source(", ".join(filter(None, (IMPORTED + file, checksum))), conditions)


def checksum_of(start: bytes) -> str:
    """Checksum of a file that begins with ``start``, over its first 64 KiB."""
    return f"{CRC} {crc32(start[:TELLING]):08x}"
