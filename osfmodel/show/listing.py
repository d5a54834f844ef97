"""The result of ``osf list``: profiles and entries of tables, a line each, or one entry in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from osfmodel.cost import network_rates, worker_counts
from osfmodel.counting.modules import Model
from osfmodel.counting.remarks import Part
from osfmodel.counting.stacks import clock_of
from osfmodel.entities.display import show_bytes, show_time
from osfmodel.entities.units import show_rate
from osfmodel.show.document import Result
from osfmodel.show.table import TERMINAL, Column, column, csv_row, for_people, json_row
from osfmodel.show.terminal import Console, print_fitting

SHORT = 44
"""Maximum characters of a source in a listing; ``osf list KIND NAME`` shows all of it."""


OPERATIONS = (("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3))
"""Units of operations, the largest first."""


class Entry(NamedTuple):
    """A profile or a row of a table, its name, and the package that provides it, if it is another one."""

    name: str
    entry: Any
    package: str = ""


def _who(source: str) -> str:
    """The publisher: the source up to the commit or the path, cut to a line."""
    who = source.partition(" @ ")[0].partition(": ")[0]
    return who if len(who) <= SHORT else who[: SHORT - 1] + "…"


def _giga(size: float | None) -> str:
    return f"{size / 1e9:.0f} GB" if size else ""


def _giga_rate(rate: float | None) -> str:
    return f"{_giga(rate)}/s" if rate else ""


def _tera(rate: float | None) -> str:
    return f"{rate / 1e12:.0f} TFLOPS" if rate else ""


def _count(number: float) -> str:
    return f"{number:,}"


def _operations(number: int) -> str:
    unit, size = next(((unit, size) for unit, size in OPERATIONS if number >= size), OPERATIONS[-1])
    return f"{number / size:.3g} {unit}" if number else ""


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
        column("operations_per_s", "half precision", lambda row: row.entry.rates.get("float16"), _tera),
        column("types", None, lambda row: ", ".join(row.entry.rates)),
        column("in_node", "in the node", lambda row: "xgmi" if row.entry.tuned_as == "cdna" else row.entry.fabric),
        column("bytes_per_s", "per GPU", lambda row: row.entry.link or None, lambda rate: show_rate(rate or 0.0)),
        column("priced_as", "priced as", lambda row: row.entry.tuned_as),
        column("clock_of", "clock of", lambda row: clock_of(row.name)),
    ),
    "algorithms": (
        column("collective", "collective", lambda row: row.name),
        column("workers", "workers", lambda row: row.entry.workers),
        column("from_bytes", "from", lambda row: row.entry.size, show_bytes),
        column("algorithm", "algorithm", lambda row: row.entry.algorithm),
        column("protocol", "protocol", lambda row: row.entry.protocol),
        column("time_s", "takes", lambda row: row.entry.time, show_time),
        column("latency_s", "latency", lambda row: row.entry.latency, show_time),
        column("bytes_per_s", "at most", lambda row: row.entry.rate, lambda rate: f"{rate / 1e9:.4g} GB/s"),
        column("other", "next", lambda row: row.entry.other or None),
        column("other_time_s", "takes", lambda row: row.entry.other_time or None, show_time),
    ),
    "model": (
        column("name", "part", lambda row: row.name),
        column("modules", "modules", lambda row: row.entry.modules),
        column("parameters", "parameters", lambda row: row.entry.parameters, _count),
        column("published", None, lambda row: row.entry.published and row.entry.published[0]),
        column("active", "active", lambda row: row.entry.active, _count),
        column("published_active", None, lambda row: row.entry.published and row.entry.published[1]),
        column("trained", "trained", lambda row: row.entry.trained, _count),
        column("operations", "forward", lambda row: row.entry.operations, _operations),
        column("operations_per_token", None, lambda row: row.entry.each),
        column("kept_elements", "saved activations", lambda row: row.entry.kept, _count),
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


class Counted(NamedTuple):
    """A model whose parts are listed.

    name:  as it was asked for
    whole: all of its parts
    batch: samples of the micro-batch in the words; parts are of one
    """

    name: str
    model: Model
    whole: Part
    batch: int

    @property
    def heading(self) -> str:
        """The model, its parameters beside published ones, and what was counted."""
        whole, each = self.whole, self.whole.published or (None, None)
        said = [_beside(whole.parameters, each[0], "parameters")]
        said += [_beside(whole.active, each[1], "active")] if whole.active < whole.parameters else []
        said += [f"{show_count(whole.trained)} trained"] if whole.trained < whole.parameters else []
        tokens = f" of {self.model.tokens:,} tokens" if self.model.tokens else ""
        inputs = f" ({self.model.sample})" if self.model.sample else ""
        batch = f", of which a micro-batch has {self.batch}" if self.batch > 1 else ""
        return f"{self.name}: {', '.join(said)}; counted for one sample{tokens}{inputs}{batch}"

    @property
    def document(self) -> dict[str, Any]:
        """The name of the model and its inputs, JSON-ready."""
        return {"name": self.name, "tokens": self.model.tokens or None, "inputs": self.model.sample or None}


def _beside(number: int, published: int | None, what: str) -> str:
    """A number of parameters, and the published one where it is another."""
    same = published is not None and show_count(published) == show_count(number)
    other = "" if published is None else " as published" if same else f" (published: {show_count(published)})"
    return f"{show_count(number)} {what}{other}"


def show_count(number: int) -> str:
    """A number of parameters as people say it: 8.03B."""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.{1 if number >= 10 * size else 2}f}{unit}"
    return str(number)


class Listed(Result):
    """The result of ``osf list``: entries by kind, or one entry in full; of a model the parts, under a heading."""

    def __init__(
        self, listings: Mapping[str, Sequence[Entry]], problems: Sequence[str], whole: bool,
        counted: Counted | None = None,
    ) -> None:  # fmt: skip
        self.listings, self.problems, self.whole, self.counted = listings, problems, whole, counted

    def content(self) -> dict[str, Any]:
        head = {"counted": self.counted.document} if self.counted else {}
        return head | {kind: [json_row(columns_of(kind), row) for row in rows] for kind, rows in self.listings.items()}

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
            if self.counted:
                show_parts(console, self.counted, rows)
            elif self.whole:
                show_entry(console, columns_of(kind), rows[0])
            else:
                show_list(console, kind, rows)

    def warnings(self) -> list[str]:
        return list(self.problems)


LEFT_OUT = (
    "source", "GPU", "cost model", "batch", "tensors", "cited", "unit", "clock of", "priced as",
    "bandwidth", "half precision", "type",
)  # fmt: skip
"""Columns to leave out on a narrow terminal, the first one first."""


def show_list(console: Console, kind: str, rows: Sequence[Entry]) -> None:
    """Print one line per entry."""
    console.print(kind, style="bold")
    columns = for_people(columns_of(kind), TERMINAL)
    columns = [one for one in columns if one.key != "package" or any(map(one.shown, rows))]  # all are osfmodel's own
    print_fitting(console, columns, rows, range(len(columns)), LEFT_OUT, wrapped=["meaning"], cut=["source"])


def show_parts(console: Console, counted: Counted, rows: Sequence[Entry]) -> None:
    """Print the parts of a model, one to a line, under a heading; no column that says the same as another."""
    console.print(counted.heading, style="bold")
    whole = counted.whole
    same = {"active": whole.active == whole.parameters, "trained": whole.trained == whole.parameters}
    columns = [one for one in for_people(columns_of("model"), TERMINAL) if not same.get(one.key or "")]
    print_fitting(console, columns, rows, [0], ("modules", "saved activations"))


def show_entry(console: Console, columns: Sequence[Column[Entry]], row: Entry) -> None:
    """Print one entry in full, a line for each property."""
    for one in columns:
        name, value = (one.key or "").replace("_", " "), one.value(row)
        console.print(f"{name}: {'' if value is None else value}", markup=False, soft_wrap=True)
