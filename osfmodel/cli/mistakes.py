"""Errors that click finds in a command line, with what to type instead."""

from __future__ import annotations

import re

import click

from osfmodel.entities.lookup import did_you_mean, nearest

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
