"""The result of ``osf list``: profiles and entries of tables, a line each, or one entry in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from osfmodel.cost import network_rates, worker_counts
from osfmodel.entities.units import show_rate
from osfmodel.show.document import Result
from osfmodel.show.table import TERMINAL, Column, column, csv_row, for_people, json_row
from osfmodel.show.terminal import Console, print_fitting

SHORT = 44
"""Maximum characters of a source in a listing; ``osf list KIND NAME`` shows all of it."""


class Entry(NamedTuple):
    """A profile or a row of a table, its name, and the package that provides it, if it is another one."""

    name: str
    entry: Any
    package: str = ""


def _who(source: str) -> str:
    """The publisher: the source up to the commit or the path, cut to a line."""
    who = source.partition(" @ ")[0].partition(": ")[0]
    return who if len(who) <= SHORT else who[: SHORT - 1] + "…"


def _rate(rate: float | None) -> str:
    return show_rate(rate or 0.0)


def _giga(size: float | None) -> str:
    return f"{size / 1e9:.0f} GB" if size else ""


def _giga_rate(rate: float | None) -> str:
    return f"{_giga(rate)}/s" if rate else ""


def _half(rates: Mapping[str, float]) -> float | None:
    """Operations per second in float16, if a GPU has them."""
    return rates.get("float16")


def _tera(rate: float | None) -> str:
    return f"{rate / 1e12:.0f} TFLOPS" if rate else ""


def _count(number: float) -> str:
    return f"{number:,}"


def _operations(number: int) -> str:
    return "" if not number else f"{number / 1e12:.3g} TFLOP" if number >= 1e12 else f"{number / 1e9:.3g} GFLOP"


NAME: Column[Entry] = column("name", "name", lambda row: row.name)
SUMMARY: Column[Entry] = column("meaning", "meaning", lambda row: row.entry.summary)
GPU: Column[Entry] = column("gpu", "GPU", lambda row: row.entry.source.gpu)
SOURCE: tuple[Column[Entry], ...] = (
    column("source", "source", lambda row: row.entry.source.origin, _who),
    column("conditions", None, lambda row: row.entry.source.conditions),
    column("licence", None, lambda row: row.entry.source.licence),
)
"""Columns of a profile's source."""
PACKAGE: Column[Entry] = Column(
    "package", "package", lambda row: row.package or "osfmodel", lambda row: row.package or ""
)
ENTRIES: tuple[Column[Entry], ...] = (NAME, SUMMARY)
"""Columns of a table's entries, unless LISTED has others."""
PROVIDED: tuple[Column[Entry], ...] = (NAME, PACKAGE, SUMMARY)
"""Columns of the entries of a table to which other packages add."""
LISTED: Mapping[str, tuple[Column[Entry], ...]] = {
    "workloads": (
        NAME,
        column("tensors", "tensors", lambda row: len(row.entry.gradients)),
        column("gradient_mib", "MiB", lambda row: round(row.entry.gradient_bytes / 2**20, 1)),
        column("compute_ms", "ms", lambda row: round(row.entry.compute_time * 1e3, 1)),
        column("batch_size", "batch", lambda row: row.entry.batch_size),
        GPU,
        *SOURCE,
    ),
    "clusters": (
        NAME,
        column("workers", "workers", lambda row: ",".join(map(str, worker_counts(row.entry))) or "any"),
        column("cost_model", "cost model", lambda row: row.entry.cost_model),
        GPU,
        column("network", None, lambda row: network_rates(row.entry) or None),
        *SOURCE,
    ),
    "architectures": (
        NAME,
        column("parameters", "parameters", lambda row: row.entry.parameters, lambda count: f"{count:,}"),
        column("active", "active", lambda row: row.entry.active, lambda count: f"{count / 1e9:.3g}B"),
        column("sequence", "tokens", lambda row: row.entry.sequence or None),
        column("longest", None, lambda row: row.entry.longest or None),
        column("type", "type", lambda row: row.entry.kind),
        column("source", "source", lambda row: row.entry.source, _who),
    ),
    "gpus": (
        NAME,
        column("memory_bytes", "memory", lambda row: row.entry.memory, _giga),
        column("memory_bytes_per_s", "bandwidth", lambda row: row.entry.bandwidth, _giga_rate),
        column("operations_per_s", "half precision", lambda row: _half(row.entry.rates), _tera),
        column("types", None, lambda row: ", ".join(row.entry.rates)),
        column("in_node", "in the node", lambda row: "xgmi" if row.entry.tuned_as == "cdna" else row.entry.fabric),
        column("bytes_per_s", "per GPU", lambda row: row.entry.link or None, _rate),
        column("priced_as", "priced as", lambda row: row.entry.tuned_as),
    ),
    "model": (
        NAME,
        column("modules", "modules", lambda row: row.entry.modules),
        column("parameters", "parameters", lambda row: row.entry.parameters, _count),
        column("published", "published", lambda row: row.entry.published, _count),
        column("active", "active", lambda row: row.entry.active, _count),
        column("trained", "trained", lambda row: row.entry.trained, _count),
        column("operations", "operations", lambda row: row.entry.operations, _operations),
        column("operations_per_token", None, lambda row: row.entry.each),
        column("kept_elements", "kept", lambda row: row.entry.kept, _count),
    ),
    "config": (
        NAME,
        column("value", "value", lambda row: row.entry.value),
        column("origin", "from", lambda row: row.entry.origin),
        SUMMARY,
    ),
    "targets": PROVIDED,
    "cost-models": PROVIDED,
    "formats": PROVIDED,
    "effects": (
        NAME,
        column("unit", "unit", lambda row: row.entry.unit),
        column("cited", "cited", lambda row: row.entry.cited),
        SUMMARY,
        column("evidence", None, lambda row: row.entry.evidence),
    ),
}
"""Columns of the entries, by kind."""


def columns_of(kind: str) -> tuple[Column[Entry], ...]:
    """The columns of a kind in LISTED, else ENTRIES."""
    return LISTED.get(kind, ENTRIES)


class Listed(Result):
    """The result of ``osf list``: entries by kind, or one entry in full."""

    def __init__(self, listings: Mapping[str, Sequence[Entry]], problems: Sequence[str], whole: bool) -> None:
        self.listings, self.problems, self.whole = listings, problems, whole

    def content(self) -> dict[str, Any]:
        return {kind: [json_row(columns_of(kind), row) for row in rows] for kind, rows in self.listings.items()}

    def rows(self) -> list[dict[str, Any]]:
        rows = [
            {"kind": kind, **csv_row(columns_of(kind), row)} for kind, found in self.listings.items() for row in found
        ]
        keys = dict.fromkeys(key for row in rows for key in row)
        return [{key: row.get(key) for key in keys} for row in rows]

    def show(self, console: Console) -> None:
        for number, (kind, rows) in enumerate(self.listings.items()):
            if number:
                console.print()
            if self.whole:
                show_entry(console, columns_of(kind), rows[0])
            else:
                show_list(console, kind, rows)

    def warnings(self) -> list[str]:
        return list(self.problems)


LEFT_OUT = (
    "source", "GPU", "cost model", "batch", "tensors", "cited", "unit", "priced as",
    "bandwidth", "half precision", "type",
)  # fmt: skip
"""Columns to leave out on a narrow terminal, the first one first."""


def show_list(console: Console, kind: str, rows: Sequence[Entry]) -> None:
    """Print one line per entry."""
    console.print(kind, style="bold")
    columns = for_people(columns_of(kind), TERMINAL)
    columns = [one for one in columns if one.key != "package" or any(map(one.shown, rows))]  # all are osfmodel's own
    print_fitting(console, columns, rows, range(len(columns)), LEFT_OUT, wrapped=["meaning"], cut=["source"])


def show_entry(console: Console, columns: Sequence[Column[Entry]], row: Entry) -> None:
    """Print one entry in full, a line for each property."""
    for one in columns:
        name, value = (one.key or "").replace("_", " "), one.value(row)
        console.print(f"{name}: {'' if value is None else value}", markup=False, soft_wrap=True)
