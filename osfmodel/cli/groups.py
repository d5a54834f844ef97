"""Option groups: each has a heading in --help, and names the options that it does not work with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from osfmodel.entities.errors import UsageError

if TYPE_CHECKING:
    from osfmodel.entities.files.configuration import Configuration

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """Options under one heading.

    heading: e.g. "What if"
    switch:  the option of the group without which the others mean nothing, with its value, e.g. "--live FOLDER"
    without: {heading or option: reason} for what does not work with the switch
    """

    heading: str
    switch: str = ""
    without: Mapping[str, str] = field(default_factory=dict)

    def option(self, *names: str, **attributes: Any) -> Decorator:
        """Declare an option of this group, as ``click.option``."""
        return click.option(*names, cls=GroupedOption, group=self, **attributes)


GENERAL = OptionGroup("Options")
LIMITS = OptionGroup("Limits")
RULES = OptionGroup("Rules")
PRICES = OptionGroup("Prices")
WHAT_IF = OptionGroup("What if")
TRACES = OptionGroup("Traces")
OUTPUT = OptionGroup("Output")
FIRST = (GENERAL, OUTPUT, LIMITS, RULES)
"""Groups that most people need, in the order in which they are shown; others follow as they are declared."""


class GroupedOption(click.Option):
    """An option that knows its group."""

    def __init__(self, *args: Any, group: OptionGroup, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.group = group


def grouped(options: Iterable[click.Parameter]) -> dict[str, list[click.Option]]:
    """The options under each heading, in the order in which they are shown."""
    found: dict[str, list[click.Option]] = {group.heading: [] for group in FIRST}
    for option in options:
        if isinstance(option, click.Option):
            found.setdefault(group_of(option).heading, []).append(option)
    return {heading: members for heading, members in found.items() if members}


def group_of(param: click.Parameter) -> OptionGroup:
    """The group of an option: GENERAL for those that name none."""
    return param.group if isinstance(param, GroupedOption) else GENERAL


NO_CONFIG = "no_config"
"""The parameter of ``osf --no-config``."""
ARGUMENTS = "osfmodel.arguments"
"""Key, in a context's ``meta``, of the arguments as the user gave them."""


class GroupedCommand(click.Command):
    """A command whose options have groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each group."""
        for heading, options in grouped(self.get_params(ctx)).items():
            with formatter.section(heading):
                formatter.write_dl([record for option in options if (record := option.get_help_record(ctx))])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, and keep them for results that state the command that they came from.

        Before them stand those that the user's own file sets.
        """
        if not ctx.resilient_parsing and not {*args} & {*ctx.help_option_names} and (found := user_defaults(ctx)):
            from osfmodel.cli.defaults import with_defaults

            args = with_defaults(ctx, args, found)
        ctx.meta[ARGUMENTS] = tuple(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, unless options are given that do not work together."""
        require_compatible(ctx)
        return super().invoke(ctx)


def user_defaults(ctx: click.Context | None) -> Configuration | None:
    """The user's own file, unless --no-config is given; None without a command.

    Raises DataError for a file that cannot be read.
    """
    if ctx is None:
        return None
    try:
        here = Path.cwd()
    except OSError:  # a folder that was deleted
        return None
    names = [place / name for place in (here, *here.parents) for name in ("osf.toml", "pyproject.toml")]
    if ctx.find_root().params.get(NO_CONFIG) or not any(map(os.path.isfile, names)):
        return None
    from osfmodel.entities.files.configuration import nearest_configuration  # not loaded without such a file

    return nearest_configuration(here)


def require_compatible(ctx: click.Context) -> None:
    """Raise UsageError for an option without the switch of its group, or beside a switch that excludes it."""
    given = {max(param.opts, key=len): param for param in ctx.command.params if is_given(ctx, param.name)}
    switched = {group.switch: group for param in ctx.command.params if (group := group_of(param)).switch}
    for group in switched.values():
        switch = group.switch.split()[0]
        for name, param in given.items():
            reason = group.without.get(name) or group.without.get(group_of(param).heading)
            if switch in given and reason:
                raise UsageError(f"{name} does not work with {switch}: {reason}")
            if switch not in given and group_of(param) is group:
                raise UsageError(f"{name} works only with {group.switch}: give both, or leave {name} out")


def is_given(ctx: click.Context, name: str | None) -> bool:
    """Whether the user gave a parameter on the command line."""
    return name is not None and ctx.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE
