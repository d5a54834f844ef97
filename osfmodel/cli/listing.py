"""``osf list``"""

from __future__ import annotations

import click

from osfmodel.cli.app import OneOf, emit, output_options
from osfmodel.entities.errors import UsageError
from osfmodel.entities.lookup import suggestion
from osfmodel.show import catalogue
from osfmodel.show.documents.results import Listed


@click.command(name="list")
@click.argument("kind", type=OneOf(catalogue.LISTINGS), metavar="[KIND]", required=False)
@click.argument("name", required=False)
@output_options
def list_command(kind: str | None, name: str | None, style: str | None, as_json: bool, output: str | None) -> None:
    """List what comes with osfmodel, or show all that is known of one entry and where its figures are from.

    KIND is workloads, clusters, plans, targets, engines, cost-models, effects, compressions, formats or snippets (what
    osf tune --lines prints).

    \b
    Example:
      osf list
      osf list clusters azure-a100-hdr
      osf list workloads --format json
    """
    found = {key: catalogue.listing(key) for key in ([kind] if kind else catalogue.LISTINGS)}
    rows = {key: entry.rows for key, entry in found.items()}
    if kind is not None and name is not None:
        rows = {kind: [row for row in rows[kind] if row["name"] == name]}
        if not rows[kind]:
            meant = suggestion(name.lower(), [row["name"] for row in found[kind].rows], "", most=3)
            raise UsageError(f"there is no {name!r} in 'osf list {kind}'{meant and f': {meant}'}")
    problems = [problem for entry in found.values() for problem in entry.problems]
    emit(style, as_json, output, Listed(rows, list(dict.fromkeys(problems)), whole=name is not None))
