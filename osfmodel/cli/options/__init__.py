"""Options that several commands share, and the values that they accept."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from osfmodel.cli.app import PLAN, OneOf, warn
from osfmodel.cli.groups import Decorator
from osfmodel.cost.clusters import counts_in_words
from osfmodel.engine.strategies import STRATEGIES
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import UsageError
from osfmodel.entities.executors import DDP, EXECUTORS
from osfmodel.entities.files import profiles
from osfmodel.entities.files.documents import PlanFile
from osfmodel.entities.lookup import require
from osfmodel.entities.units import parse_part
from osfmodel.entities.workload import Workload
from osfmodel.targets import CONFIG_TARGETS, target_name

ANY = "any"
"""The value of --for that compares DDP, ZeRO, FSDP2 and HSDP."""


def plan_option(said: str, metavar: str = "NAME|FILE") -> Decorator:
    """--plan, repeatable: a command is handed ``plan_names``, for :func:`plan_files`."""
    return click.option(
        "--plan", "plan_names", multiple=True, metavar=metavar, type=PLAN, help=said, callback=_distinct
    )


def _distinct(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """The plans, of several spellings of one the first."""
    if len(names) < 2:
        return names
    from osfmodel.targets.named_plans import called

    return tuple({called(name): name for name in reversed(names)}.values())[::-1]


class TargetName(OneOf):
    """A key of CONFIG_TARGETS or another name of one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The key that is meant. Raises click.BadParameter for other names."""
        meant = target_name(str(value))
        return super().convert(meant if meant in CONFIG_TARGETS else value, param, ctx)


def target_option(said: str, *also: str) -> Decorator:
    """--for: a command is handed ``target``, a key of CONFIG_TARGETS, or one of ``also``."""
    said = f"{said} 'osf list targets' shows all."
    names = TargetName(CONFIG_TARGETS, *also)
    return click.option("--for", "target", type=names, metavar="TARGET", default="ddp", show_default=True, help=said)


def plan_files(names: Iterable[str], workload: Workload | None = None) -> dict[str, PlanFile]:
    """The content of those of ``names`` that are files; others name plans. Raises UsageError, DataError."""
    from osfmodel.targets.named_plans import NAMED_PLANS, called, named_plan

    files = {}
    for name in names:
        path = Path(name)
        if called(name) in NAMED_PLANS or not (os.path.isfile(path) or path.name != name or path.suffix == ".json"):
            named_plan(name)
        else:
            files[name] = profiles.load_plan_file(path, workload)
            for plan in (files[name].plan, *files[name].others.values()):
                require(plan.strategy, STRATEGIES, f"strategy in {name}:")
                require(plan.executor or DDP.name, EXECUTORS, f"executor in {name}:")
    return files


def parse_workers(text: str, cluster: Cluster) -> list[int]:
    """:func:`osfmodel.cost.clusters.counts_in_words`, with its remark as a warning."""
    counts, left_out = counts_in_words(text, cluster)
    if left_out:
        warn(left_out)
    return counts


def parse_tolerance(text: str) -> float:
    """``2%`` or ``0.02`` as 0.02. Raises UsageError."""
    try:
        found = parse_part(text)
    except ValueError:
        raise UsageError(f"--tolerance {text!r:.40}: write a part, such as 2% or 0.02") from None
    if not 0 <= found < 1:
        raise UsageError(f"a tolerance of {found:g}: give a fraction from 0 to below 1, such as 0.02 or 2%")
    return found
