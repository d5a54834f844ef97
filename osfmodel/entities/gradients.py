"""The gradients of a workload in the order in which they become ready."""

from __future__ import annotations

from dataclasses import dataclass

from osfmodel.entities.dtypes import element_bytes


@dataclass(frozen=True, slots=True)
class Gradients:
    """The gradients of a workload in ready order: the input of planners.

    Parallel tuples, one entry per layer that has parameters. ``ready_times`` are seconds after the start of
    the iteration and never decrease; ``enqueue_times`` are when the host submits them (= ready times if the
    profile does not say). ``held`` are the sizes in memory of compressed gradients; empty without compression.
    """

    names: tuple[str, ...]
    ready_times: tuple[float, ...]
    sizes: tuple[int, ...]
    dtypes: tuple[str, ...]
    enqueue_times: tuple[float, ...]
    held: tuple[int, ...] = ()

    @property
    def held_sizes(self) -> tuple[int, ...]:
        """Size of each gradient in memory: the bytes that DDP counts, since it compresses by bucket."""
        return self.held or self.sizes

    @property
    def elements(self) -> dict[str, int]:
        """Bytes of an element by dtype; tensors may be cut at multiples of it. 1 if sizes are not multiples of it."""
        kinds = {dtype: element_bytes(dtype) for dtype in dict.fromkeys(self.dtypes)}
        pairs = list(zip(self.dtypes, self.sizes, strict=True))
        return {
            kind: element if all(size % element == 0 for dtype, size in pairs if dtype == kind) else 1
            for kind, element in kinds.items()
        }

    @property
    def chains(self) -> list[list[int]]:
        """Positions in ready order, by dtype: gradients that may share a bucket."""
        kinds = dict.fromkeys(self.dtypes)
        if len(kinds) == 1:
            return [list(range(len(self.dtypes)))]
        return [[i for i, dtype in enumerate(self.dtypes) if dtype == kind] for kind in kinds]

    def __len__(self) -> int:
        return len(self.names)
