"""The results of ``osf memory`` and ``osf tune --memory`` in every format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from osfmodel.engine.memory import Memory
from osfmodel.entities.display import show_bytes
from osfmodel.entities.files.documents import SCHEMA_VERSION, document_of, encode
from osfmodel.planning.memory.budget import Candidate, MemoryTuning
from osfmodel.show.tables import csv_row, json_row
from osfmodel.show.tables.memory import FITS, LEVELS, OWNERS_OF_LEVEL, PEAKS, SAVINGS, WHICH, FitRow, compared


@dataclass(frozen=True, slots=True)
class MemoryPredicted:
    """The result of ``osf memory``: memory and iteration time of each plan, by name.

    where:   cluster and worker count in words; "" for a single worker
    limit:   bytes of a GPU; None if not given
    lacking: why a plan does not fit, and what would help, by its name
    """

    workload: str
    batch_size: int | None
    memories: Mapping[str, Memory]
    times: Mapping[str, float]
    notes: Sequence[str] = ()
    where: str = ""
    limit: int | None = None
    lacking: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "workload": self.workload,
            "batch_size": self.batch_size,
            "limit_bytes": self.limit,
            "plans": [{"plan": name, **self._fits(name), **_memory(memory)} for name, memory in self.memories.items()],
        }

    def _fits(self, name: str) -> dict[str, Any]:
        """Whether the plan fits and, if not, why; empty without a limit."""
        return {} if self.limit is None else {"fits": name not in self.lacking, "lacking": self.lacking.get(name)}

    def rows(self) -> list[dict[str, Any]]:
        return [
            {"workload": self.workload, "plan": name, **csv_row(LEVELS, level)}
            for name, memory in self.memories.items()
            for level in memory.levels
        ]

    def show(self, console: Any) -> None:
        from osfmodel.show.terminal import memory as memory_screen

        title = f"{self.workload}{self.where}, a batch of {self.batch_size} per worker"
        console.print(title, style="bold", markup=False)
        memory_screen.show_memory(console, self.memories, self.times, self.limit)
        if self.limit is not None and not self.lacking:
            console.print(f"Fits into {show_bytes(self.limit)}.", style="bold", markup=False)
        for name, why in self.lacking.items():
            console.print(f"Does not fit: {name} {why}.", style="bold", markup=False)
        for note in self.notes:
            console.print(f"Note: {note}.", markup=False)

    def warnings(self) -> list[str]:
        return []


class MemoryTuned:
    """The result of ``osf tune --memory``; its document is itself a plan file."""

    def __init__(self, tuning: MemoryTuning, options: Mapping[str, Any] | None = None) -> None:
        self.tuning, self.options = tuning, options

    def document(self) -> dict[str, Any]:
        tuning = self.tuning
        return {
            "schema_version": SCHEMA_VERSION,
            "workload": tuning.workload.name,
            "cluster": tuning.cluster.name,
            "workers": tuning.workers,
            "limit_bytes": tuning.demand.limit,
            "largest_batch_size": tuning.largest,
            "before": None if tuning.before is None else _fit(tuning.before),
            "after": _fit(tuning.after),
            "notes": list(tuning.notes),
            "options": self.options,
            "plan": document_of(tuning.after.plan),
        }

    def rows(self) -> list[dict[str, Any]]:
        shared = {"workload": self.tuning.workload.name, "workers": self.tuning.workers}
        fits = [*compared(self.tuning), *(FitRow("tried", one) for one in self.tuning.tried)]
        return [{**shared, **csv_row((WHICH, *FITS), fit)} for fit in fits]

    def show(self, console: Any) -> None:
        from osfmodel.show.terminal import memory as memory_screen

        memory_screen.show_memory_tuning(console, self.tuning)

    endings = ()
    """No endings: only the plan file itself holds the plan."""

    def code(self, ending: str) -> str:
        """The plan file, whatever its name ends in."""
        return encode(document_of(self.tuning.after.plan))

    def warnings(self) -> list[str]:
        return list(self.tuning.warnings)


def _fit(candidate: Candidate) -> dict[str, Any]:
    return {**json_row((*FITS, *SAVINGS), FitRow("", candidate)), **_memory(candidate.memory)}


def _memory(memory: Memory) -> dict[str, Any]:
    return {
        **json_row(PEAKS, memory),
        "levels": [json_row((*LEVELS, OWNERS_OF_LEVEL), level) for level in memory.levels],
    }
