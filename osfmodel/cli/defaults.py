"""Options that the user's own file sets, where the command line does not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import click

from osfmodel.entities.files.configuration import Configuration

SUBJECTS = ("predict", "tune", "scale", "report")


class Default(NamedTuple):
    """An option that a key sets.

    commands: those whose option it sets
    unless:   options beside which it does not
    needs:    an option without which it does not
    """

    key: str
    option: str
    commands: tuple[str, ...]
    unless: tuple[str, ...] = ()
    needs: str = ""


DEFAULTS = (
    Default("cluster", "--cluster", SUBJECTS, unless=("--live",)),
    Default("workers", "--workers", SUBJECTS, unless=("--live",)),
    Default("cluster", "--cluster", ("memory",), needs="--workers"),
    Default("workers", "--workers", ("memory",), needs="--cluster"),
    Default("effects", "--effect", (*SUBJECTS, "memory"), unless=("--live",)),
    Default("price", "--price", ("scale",)),
    Default("price", "--price-per-gpu-hour", ("predict",), needs="--samples"),
    Default("format", "--format", (), unless=("--json", "--output", "--lines")),
)
"""The options of each key; those without commands are set in all that have the option."""


def with_defaults(ctx: click.Context, args: Sequence[str], found: Configuration) -> list[str]:
    """The arguments after those that the file sets, which stderr names."""
    options = {max(param.opts, key=len): param for param in ctx.command.params if isinstance(param, click.Option)}
    parsed, _, _ = ctx.command.make_parser(ctx).parse_args(list(args))
    given = {name for name, param in options.items() if param.name in parsed}
    chosen = [row for row in DEFAULTS if row.key in found.words and row.option in options and _sets(ctx, row)]
    present = given | {row.option for row in chosen}
    used = [
        row
        for row in chosen
        if row.option not in given and not given & {*row.unless} and (not row.needs or row.needs in present)
    ]
    if used:
        said = ", ".join(f"{row.key} {_quoted(found.words[row.key])}" for row in used)
        click.echo(f"osf: defaults from {found.name}: {said}", err=True)
    return [*(word for row in used for value in found.words[row.key] for word in (row.option, value)), *args]


def _sets(ctx: click.Context, row: Default) -> bool:
    return not row.commands or ctx.command.name in row.commands


def _quoted(words: Iterable[str]) -> str:
    return " ".join(words)
