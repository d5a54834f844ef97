"""Options: groups with a heading in --help, files that are read or written, the user's defaults, and mistakes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from osfmodel.entities.errors import CostError, PlanError, UsageError
from osfmodel.entities.files import profiles
from osfmodel.entities.lookup import did_you_mean, nearest

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
SIGNS = re.compile("[:=,]")
"""Signs between a file and other words of a value, as in ``config.json:h100,bf16``."""
NEVER_READ = (".html", ".md", ".png", ".svg")
"""Endings of results that no command reads: these may be written again into the folder of the inputs."""


class FileType(click.ParamType):  # type: ignore[type-arg]
    """A file or the name of a profile; if ``folders``, or a folder whose files are read."""

    name, folders = "file", True


READ, WRITTEN = FileType(), FileType()
"""Types of parameters that name a file or a folder to read, and one to write or to add to."""


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
                args = with_defaults(ctx, args, found)
        ctx.meta[ARGUMENTS] = tuple(args)
        options = {name: one for one in self.params if isinstance(one, click.Option) for name in one.opts}
        for name, value in pairwise([] if ctx.resilient_parsing else args):
            if name in options and not options[name].is_flag and value in options:
                raise click.BadOptionUsage(name, f"Option {name!r} requires an argument.", ctx)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, unless options are given that do not work together, or an input would be overwritten."""
        require_inputs_kept()
        require_compatible(ctx)
        try:
            return super().invoke(ctx)
        except PlanError as error:
            if is_given(ctx, "engine") and ctx.params["engine"] in str(error).split():
                raise PlanError(f"{error}; leave --engine out") from None
            raise
        except CostError as error:
            if is_given(ctx, "cost_model"):
                raise CostError(f"{error}; leave --cost-model out, or give a cluster that has it") from None
            raise


def require_once(ctx: click.Context, args: Sequence[str]) -> None:
    """Raise UsageError for an option that takes one value and is given several."""
    given = ctx.command.make_parser(ctx).parse_args([*args])[2]
    for param in given:
        if isinstance(param, click.Option) and not (param.multiple or param.is_flag) and given.count(param) > 1:
            name = max(param.opts, key=len)
            values = [value for option, value in pairwise(args) if option in param.opts]
            values += [arg.partition("=")[2] for arg in args if arg.partition("=")[0] in param.opts and "=" in arg]
            one = ",".join(values) if "," in (param.metavar or "") else "".join(values[-1:])
            remedy = f"write {name} {one}" if one else "give it once"
            raise UsageError(f"{name} takes one value, and is given several times: {remedy}")


def require_inputs_kept(inside: Iterable[Path] = (), also: Iterable[Any] = ()) -> None:
    """Raise UsageError if a file that the command would write is one that it reads, or that another option writes.

    Links and other spellings of a path are the same file. Parameters of WRITTEN name what is written; those of OUTPUT
    describe it, and all others may name files to read.

    inside: further files that are written, in the folder of an output or beside it
    also:   further words that may name files to read
    """
    ctx = click.get_current_context()
    values = [(param, ctx.params.get(str(param.name))) for param in ctx.command.params]
    given = [(param, word) for param, value in values for word in (value if isinstance(value, tuple) else (value,))]
    written = [(param.opts[0], word) for param, word in given if param.type is WRITTEN and word not in (None, "-")]
    for (option, target), (other, second) in combinations(written, 2):
        if os.path.realpath(target) == os.path.realpath(second) and (option != other or target != second):
            raise UsageError(f"{other} {second}: is also written by {option} {target}: give another name")
    there = [one for one in (*written, *(("-o", str(path)) for path in inside)) if os.path.isfile(one[1])]
    if not there:
        return
    read = [(param.type, word) for param, word in given if param.type is not WRITTEN and group_of(param) is not OUTPUT]
    files = [file for kind, word in read if isinstance(word, str) for file in _files(word, kind)]
    files += [file for word in also for file in _files(str(word))]
    for file in (*files, *([] if (found := user_defaults(ctx)) is None else [found.path])):
        for option, target in there:
            if os.path.exists(file) and os.path.samefile(file, target):
                raise UsageError(f"{option} {target}: is the file that is read: give another name")


def _files(word: str, kind: object = None) -> Iterator[str | Path]:
    """Paths that a word may mean: as a whole or in part, as a profile, or as a folder that holds them."""
    signs = [match.start() for match in SIGNS.finditer(word)]
    parts = {word, *SIGNS.split(word), *(word[:sign] for sign in signs), *(word[sign + 1 :] for sign in signs)}
    for part in parts - {""}:
        yield from (part, os.path.join(part, "config.json"))
        yield from profiles.files_called(part) if kind is None or isinstance(kind, FileType) else ()
    if isinstance(kind, FileType) and kind.folders and os.path.isdir(word):
        yield from (file for file in Path(word).iterdir() if file.suffix.lower() not in NEVER_READ)


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
        said = ", ".join(f"{row.key} {' '.join(found.words[row.key])}" for row in used)
        click.echo(f"osf: defaults from {found.name}: {said}", err=True)
    return [*(word for row in used for value in found.words[row.key] for word in (row.option, value)), *args]


def _sets(ctx: click.Context, row: Default) -> bool:
    return not row.commands or ctx.command.name in row.commands


EXAMPLES = {
    "--cluster": "For example --cluster ring:50us,10Gbps, my-cluster.json, or one of 'osf list clusters'.",
    "--workers": "For example --workers 8.",
    "--plan": "For example --plan ddp; 'osf list plans' shows all.",
    "--output": "For example -o runs.json.",
}
"""Examples of values, by option, that complete the error about a missing one."""
NUMBERS = {"integer": "Write a whole number, such as 8.", "float": "Write a number, such as 2.5."}
ALIKE = 0.8
"""Minimum similarity of an option that may have been meant; click's 0.6 proposes --lines for --engine."""


def with_remedy(error: click.ClickException) -> str:
    """The message of an error that click found, which ends in what to type instead."""
    message = error.format_message().strip()
    ctx, param = getattr(error, "ctx", None), getattr(error, "param", None)
    called = "osf" if ctx is None or ctx.parent is None else f"osf {ctx.info_name}"
    if isinstance(error, click.NoSuchOption) and ctx is not None:
        known = [name for one in ctx.command.get_params(ctx) for name in one.opts if name.startswith("--")]
        meant = did_you_mean(nearest(error.option_name, known, most=2, cutoff=ALIKE))
        asked = f"leave it out; '{called} --help' lists the options"
        return f"No such option {error.option_name!r}: {meant or asked}"
    if isinstance(error, click.MissingParameter) and param is not None and ctx is not None:
        example = re.search(rf"{called} \S.*", ctx.command.help or "")
        return f"{message} {EXAMPLES.get(param.opts[-1]) or f'For example: {example and example[0]}'}"
    if "unexpected extra argument" in message and ctx is not None:
        traces = "Of several traces, repeat --trace before each, or give their folder."
        remedy = traces if ctx.params.get("traces") else "Leave it out, or quote a value with spaces."
        return f"{message.rstrip('.')}. {remedy}"
    if isinstance(error, click.BadOptionUsage):
        return f"{message} {EXAMPLES.get(error.option_name, 'Give one, or leave the option out.')}"
    kind = next((kind for kind in NUMBERS if f" {kind}" in message and "is not a valid" in message), None)
    return message if kind is None else f"{message} {NUMBERS[kind]}"
