"""The result of ``osf compare`` in every format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from osfmodel.diagnosis.comparing import RunComparison
from osfmodel.entities.files.documents import SCHEMA_VERSION
from osfmodel.show.tables import TERMINAL, Column, for_people, json_row, texts
from osfmodel.show.tables.compared import COLLECTIVES, FACTS, MODULES, PARTS, SUBJECTS, left_out, lists


class Compared:
    """The result of ``osf compare``: the verdict, and what changed."""

    def __init__(self, comparison: RunComparison) -> None:
        self.comparison, self.verdict = comparison, comparison.sentence

    def document(self) -> dict[str, Any]:
        one, leading = self.comparison, self.comparison.leading
        change = leading.change
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": f"comparison of {one.kind}",
            "baselines": list(one.baselines),
            "candidates": list(one.candidates),
            "verdict": one.verdict,
            "regression": one.regression,
            "sentence": self.verdict,
            "tolerance": one.tolerance,
            "compared": leading.name,
            "change": {"low": change.low, "median": change.median, "high": change.high},
            "noise_floor": change.noise,
            "baseline_s": change.baseline,
            "candidate_s": change.candidate,
            "subjects": [json_row(SUBJECTS, row) for row in one.subjects],
            "parts": [json_row(PARTS, row) for row in leading.parts],
            "collectives": [json_row(COLLECTIVES, row) for row in one.collectives],
            "modules": [json_row(MODULES, row) for row in one.modules],
            "conditions": [json_row(FACTS, row) for row in one.facts],
            "notes": list(one.remarks),
        }

    def rows(self) -> list[dict[str, Any]]:
        return list(self._rows())

    def _rows(self) -> Iterator[dict[str, Any]]:
        """A row for each thing that is compared, each part of its step, each collective and each module."""
        one = self.comparison
        for subject in one.subjects:
            row = json_row(SUBJECTS, subject)
            yield _row(
                "compared", subject.name, row["baseline_s"], row["candidate_s"],
                **{key: row[key] for key in ("change", "low", "high", "noise_floor", "verdict")},
            )  # fmt: skip
            for part in subject.parts:
                yield _row("part", f"{subject.name}: {part.name}", part.baseline, part.candidate)
        for use in one.collectives:
            times = [None if side is None else side.time for side in (use.baseline, use.candidate)]
            size = use.either.bytes
            told = [use.either.kind, use.either.group, f"{use.either.workers} workers"]
            told += [] if size is None else [f"{size:.0f} bytes"]
            yield _row("collective", ", ".join(filter(None, told)), *times)
        for module in one.modules:
            yield _row("module", module.name, module.baseline, module.candidate)

    def show(self, console: Any) -> None:
        from osfmodel.show.terminal.compare import show_comparison_of_runs

        show_comparison_of_runs(console, self.comparison, self.verdict)

    def markdown(self) -> str:
        """The verdict, its tables and notes as text for a pull request."""
        one = self.comparison
        sides = [", ".join(f"`{name}`" for name in side) for side in (one.baselines, one.candidates)]
        blocks = [f"**{self.verdict}**", " -> ".join(sides)]
        for table in lists(one):
            if table.title:
                blocks.append(f"### {table.title}")
            blocks.append(markdown_table(table.columns, table.rows))
            blocks += [left_out(table)] if table.left_out else []
        blocks += ["\n".join(f"- {note}" for note in one.remarks)] if one.remarks else []
        return "\n\n".join(blocks) + "\n"

    def warnings(self) -> list[str]:
        return []


def _row(table: str, name: str, baseline: float | None, candidate: float | None, **more: Any) -> dict[str, Any]:
    """A row of CSV; ``more`` are the columns that only a verdict has."""
    difference = (candidate or 0.0) - (baseline or 0.0)
    told = {key: more.get(key) for key in ("change", "low", "high", "noise_floor", "verdict")}
    return {
        "table": table,
        "name": name,
        "baseline_s": baseline,
        "candidate_s": candidate,
        "change_s": difference,
    } | told


def markdown_table(columns: Sequence[Column[Any]], records: Sequence[Any]) -> str:
    """A table in Markdown with the columns that a terminal shows, without those that are empty."""
    shown = for_people(columns, TERMINAL)
    rows = [texts(shown, record) for record in records]
    kept = [place for place in range(len(shown)) if any(row[place] for row in rows)]
    heads = [shown[place].heading(TERMINAL) for place in kept]
    lines = [heads, ["---"] * len(kept), *([_escaped(row[place]) for place in kept] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _escaped(text: str) -> str:
    """A cell of a table in Markdown: no bar ends it, and no name is taken for markup."""
    for sign in "\\`*_|<>[]":
        text = text.replace(sign, f"\\{sign}")
    return text
