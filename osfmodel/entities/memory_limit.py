"""The memory that a step may take of each GPU."""

from __future__ import annotations

from dataclasses import dataclass

from osfmodel.entities.errors import UsageError


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Bytes that a step may hold on each GPU.

    optimizer:    one of OPTIMIZERS, instead of the profiled one
    communicator: bytes that the library keeps for each communicator
    """

    bytes: int
    optimizer: str | None = None
    communicator: int = 0

    def __post_init__(self) -> None:
        if self.bytes < 1:
            raise UsageError(f"a memory limit of {self.bytes} bytes: give 1 or more, such as 16GiB")
