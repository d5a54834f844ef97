"""Options: groups with a heading in --help that do not work with others, and files that are read or written."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from osfmodel.entities.errors import UsageError
from osfmodel.entities.files import profiles

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
DEFAULTS_FILE = "osfmodel.defaults_file"
"""Key, in a context's ``meta``, of the file that holds the user's defaults."""
SIGNS = re.compile("[:=,]")
"""Signs between a file and other words of a value, as in ``config.json:h100,bf16``."""


class FileType(click.ParamType):  # type: ignore[type-arg]
    """A parameter that names a file; if ``folders``, also a folder whose files are read."""

    name = "file"
    folders = True

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """Files."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


class WrittenType(FileType):
    """A parameter that names a file or a folder to write, or a file to add to."""


READ, WRITTEN = FileType(), WrittenType()


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
        if not ctx.resilient_parsing and not {*args} & {*ctx.help_option_names}:
            require_once(ctx, args)
            if found := user_defaults(ctx):
                from osfmodel.cli.defaults import with_defaults

                args, ctx.meta[DEFAULTS_FILE] = with_defaults(ctx, args, found), found.path
        ctx.meta[ARGUMENTS] = tuple(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, unless options are given that do not work together, or an input would be overwritten."""
        require_inputs_kept(ctx)
        require_compatible(ctx)
        return super().invoke(ctx)


def require_once(ctx: click.Context, args: Sequence[str]) -> None:
    """Raise UsageError for an option that takes one value and is given several."""
    seen = set()
    for param in ctx.command.make_parser(ctx).parse_args([*args])[2]:
        single = isinstance(param, click.Option) and not (param.multiple or param.is_flag or param.count)
        if single and param.name in seen:
            name = max(param.opts, key=len)
            several = f"write {name} {param.metavar}" if "," in (param.metavar or "") else "give it once"
            raise UsageError(f"{name} takes one value, and is given several times: {several}")
        seen.add(param.name)


def require_inputs_kept(ctx: click.Context, inside: Iterable[Path] = (), also: Iterable[Any] = ()) -> None:
    """Raise UsageError if a file that the command is to write is one that it reads, or that another option writes.

    Links and other spellings of a path are the same file. What WRITTEN parameters name is written; values of all others
    may name files to read.

    inside: further files that are written, in the folder of an output or beside it
    also:   further words that may name files to read
    """
    given = [(param, one) for param in ctx.command.params for one in _words(ctx.params.get(str(param.name)))]
    written = [(param.opts[0], one) for param, one in given if isinstance(param.type, WrittenType) and one != "-"]
    for (option, target), (other, second) in combinations(written, 2):
        if option != other and (_same(target, second) or os.path.realpath(target) == os.path.realpath(second)):
            raise UsageError(f"{other} {second}: is the file that {option} writes: give another name")
    written += [("-o", str(path)) for path in inside]
    there = [(option, target) for option, target in written if os.path.isfile(target)]
    if not there:
        return
    read = [(param.type, one) for param, one in given if not isinstance(param.type, WrittenType)]
    for kind, word in (*read, *((None, one) for one in (ctx.meta.get(DEFAULTS_FILE), *also) if one is not None)):
        for file in _files(str(word), isinstance(kind, FileType) and kind.folders):
            for option, target in there:
                if _same(file, target):
                    raise UsageError(f"{option} {target}: is the file that is read: give another name")


def _words(value: Any) -> Iterator[str]:
    """The texts of a parameter's value."""
    yield from (one for one in (value if isinstance(value, tuple) else (value,)) if isinstance(one, str))


def _files(word: str, folders: bool) -> Iterator[str | Path]:
    """Files that a value may name: as a whole or in part, as a profile, or as the folder that holds them."""
    ends = [-1, *(match.start() for match in SIGNS.finditer(word)), len(word)]
    parts = {word, *(word[:end] for end in ends), *(word[end + 1 :] for end in ends)}
    for part in {*parts, *(word[start + 1 : end] for start, end in pairwise(ends))} - {""}:
        yield part
        yield os.path.join(part, "config.json")
        yield from profiles.files_called(part)
    if folders and os.path.isdir(word):
        yield from Path(word).iterdir()


def _same(one: str | Path, other: str | Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):  # there is none
        return False


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
