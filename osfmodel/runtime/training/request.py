"""A request of ``osf run``: the subject, the plans, and the reading of its names and files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from osfmodel.cost.clusters import load_cluster, pricing_of
from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import FREE
from osfmodel.entities.batches import Variation
from osfmodel.entities.display import show_time
from osfmodel.entities.executors import RUNTIME
from osfmodel.entities.files import profiles
from osfmodel.entities.files.measurements import save_measurements
from osfmodel.entities.measurement import Measurement
from osfmodel.entities.plan import Plan
from osfmodel.entities.workload import Workload
from osfmodel.runtime.job.ranks import Watchdog
from osfmodel.runtime.training.factories import is_factory
from osfmodel.targets.named_plans import make_plan

UNMEASURED = Pricing.of(FREE, workers=2)
"""Placeholder prices, for plans that can be made without any."""


def keep_turns(
    runs: Sequence[Measurement], total: int, output: str, watch: Watchdog, tell: Callable[[str], None]
) -> None:
    """Save the finished turns in ``output``, and tell of the last of them; for the rank that keeps the file."""
    save_measurements(Path(output).stem, runs, output)
    watch.kept = f"; {len(runs)} finished turns are in {output}"
    tell(f"{len(runs)} of {total}: {runs[-1].plan} {show_time(runs[-1].iteration_time)} per iteration")


class RunRequest(NamedTuple):
    """The request of the command line."""

    subject: str
    plans: tuple[str, ...]
    cluster: str | None
    workload: str | None
    variation: Variation
    output: str
    hook: bool | None
    verify: bool
    timeline: str | None = None
    compression: str | None = None
    asynchronous: bool = False

    @property
    def real(self) -> bool:
        """Whether the subject is a user's model."""
        return is_factory(self.subject)

    def pricing(self, workers: int) -> Pricing:
        """Prices of the cluster, if one is given."""
        return UNMEASURED if self.cluster is None else pricing_of(load_cluster(self.cluster), workers)

    def relative(self, name: str) -> str:
        """A file's path relative to the output's folder; other names are unchanged."""
        if is_executed(name):
            return RUNTIME.prefix + self.relative(name.removeprefix(RUNTIME.prefix))
        return os.path.relpath(name, Path(self.output).resolve().parent) if is_file(name) else name


def is_executed(plan: str) -> bool:
    """Whether a plan is for osf.execute, in a run that also has plans for DDP."""
    return plan.startswith(RUNTIME.prefix)


def is_file(name: str) -> bool:
    """Whether it names a file, not something known by that name."""
    return name.endswith(".json")


def plan_called(name: str, workload: Workload, pricing: Pricing) -> Plan:
    """The plan in a file, or the named one at these prices. Raises OsfError if there is none."""
    return profiles.load_plan(name, workload) if is_file(name) else make_plan(name, workload, pricing)
