"""Groups of options: headings of --help, and what does not work together."""

from __future__ import annotations

import pytest

from osfmodel.cli.app import COMMANDS
from osfmodel.cli.groups import group_of, grouped
from tests.commands import invoke
from tests.generated_pages import command_called


def headings(text):
    """The sections of a help text."""
    return [line[:-1] for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_every_option_under_the_heading_of_its_group(name):
    command, context = command_called(name)
    text = invoke([name, "--help"]).output
    groups = grouped(command.get_params(context))
    assert headings(text) == list(groups)
    for heading, options in groups.items():
        section = text.partition(f"\n{heading}:\n")[2].partition("\n\n")[0]
        assert all(max(option.opts, key=len) in section for option in options)


def test_what_most_people_need_comes_first():
    shown = headings(invoke(["tune", "--help"]).output)
    assert shown[:4] == ["Options", "Output", "Limits", "Rules"]
    assert shown[-2:] == ["Within a memory budget", "Measured live, under torchrun"]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_group_excludes_what_there_is(name):
    """A heading or an option that a group speaks of is one of the command."""
    command, context = command_called(name)
    params = command.get_params(context)
    known = {*grouped(params), *(option for param in params for option in param.opts)}
    for group in map(group_of, params):
        assert {*group.without, *group.switch.split()[:1]} <= known


def given(option):
    """An option with a value."""
    return [option.opts[0]] if option.is_flag else [option.opts[0], "1"]


@pytest.mark.parametrize("switch", ["--live", "--memory", "--sparse"])
def test_an_option_of_a_group_needs_its_switch(switch):
    command, _ = command_called("tune")
    plain = [option for option in command.params if group_of(option).switch.split()[:1] == [switch]]
    assert plain
    for option in plain:
        if switch in option.opts or option.name in ("backend", "optimizer"):
            continue
        result = invoke(["tune", "googlenet-k80", *given(option)])
        assert result.exit_code == 2
        assert f"{option.opts[0]} works only with {switch}" in result.stderr
        assert f": give both, or leave {option.opts[0]} out" in result.stderr


def test_a_switch_refuses_excluded_options_with_the_reason():
    command, _ = command_called("tune")
    groups = {group_of(option).switch: group_of(option) for option in command.params if group_of(option).without}
    assert len(groups) == 2
    for switch, group in groups.items():
        for name, reason in group.without.items():
            option = next(one for one in command.params if name in (*one.opts, group_of(one).heading))
            value = [option.opts[0], "torchrun"] if option.opts == ["--lines"] else given(option)
            words = ["tune", "googlenet-k80", switch.split()[0], "1", *value]
            result = invoke(words)
            assert f"{max(option.opts, key=len)} does not work with {switch.split()[0]}: {reason}\n" in result.stderr


def test_live_and_memory_tune_for_pytorch_alone():
    asked = ["tune", "googlenet-k80", "--cluster", "k80-10gbe-ring", "--for", "horovod"]
    live = invoke([*asked, "--live", "folder"])
    assert "--for horovod does not work with --live, which trains with PyTorch alone" in live.stderr
    memory = invoke([*asked, "--workers", "4", "--memory", "1GiB"])
    assert "--memory works with --for fsdp2, hsdp, torchtitan, runtime or any, not with horovod" in memory.stderr
