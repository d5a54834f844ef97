"""Tuned plans against DDP's default on emulated clusters that are drawn at random, by a seed that is fixed before.

    python benchmarks/live_random.py                              # print what was measured: benchmarks/live_random
    python benchmarks/live_random.py FOLDER --show                # print what FOLDER holds
    python benchmarks/live_random.py FOLDER                       # measure what FOLDER lacks: an hour
    python benchmarks/live_random.py FOLDER --seed 7 --count 20   # other settings, and more
    python benchmarks/live_random.py FOLDER --list                # print the settings alone
    python benchmarks/live_random.py FOLDER --smoke               # one tiny setting, to see that all works

With the seed that is kept, two named settings come first; then as many random ones as ``--count``: ranks, a rate that
no bundled cluster has, a model with many tensors, and how slowly its computation is replayed, such that one all-reduce
of everything takes 0.5 to 2 times as long. Each cluster is measured with ``osf bench``; ``osf tune --for ddp`` plans
for it, knowing nothing else; ``osf run`` trains under the default and that plan by turns. FOLDER keeps every file:
clusters, what was tuned, and raw runs, which ``osf check`` reads. Verdicts and intervals that are printed are those of
the present version for that plan on the measured cluster. Where FOLDER has SETTING-before.json, written by another
version's ``osf tune``, that plan runs by turns with the default and the present one. Settings of two seeds are kept:
``--seed 20261214 --count 16`` prints the others. Needs root, iproute2 and torch, and a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import live  # noqa: E402

import osfmodel as osf  # noqa: E402
from osfmodel import load_cluster, load_plan, load_workload  # noqa: E402
from osfmodel.cost.clusters import pricing_of  # noqa: E402
from osfmodel.engine.bands import gain_doubt  # noqa: E402
from osfmodel.entities.files import profiles  # noqa: E402
from osfmodel.entities.files.measurements import load_measurements, save_measurements  # noqa: E402
from osfmodel.entities.measurement import CPU_SHARE  # noqa: E402
from osfmodel.entities.units import parse_bandwidth  # noqa: E402
from osfmodel.planning.tuning.chances import chance as chance_of  # noqa: E402
from osfmodel.planning.tuning.chances import plan_times  # noqa: E402
from osfmodel.targets.ddp import DdpKnobs, to_plan  # noqa: E402
from osfmodel.targets.named_plans import named_plan  # noqa: E402
from tests.live.cluster import Hosts, emulated  # noqa: E402

SEED, COUNT = 20261201, 12
"""Of the settings that are kept."""
WORKERS = (3, 4, 6)
RATES = (600, 700, 800, 1200, 1500, 1800, 2000, 3000)
"""Mbit/s of each host; bundled clusters have 500, 1000, 2500 and 5000."""
MODELS = (
    "densenet201-reconstructed", "nasnetamobile-pipedream", "densenet161-reconstructed", "densenet121-pipedream",
    "googlenet-k80-tensors", "inception-v3-pipedream", "resnet50-reconstructed", "resnext50-32x4d-reconstructed",
)  # fmt: skip
"""Workloads of 128 to 604 tensors and up to 110 MiB, so that a setting takes some ten minutes."""
LEAST, MOST = 0.5, 2.0
"""One all-reduce of all gradients at the rate of the links, over the replayed computation."""
TUNED, BEFORE, DEFAULT = "tuned", "before", "ddp"
KEPT = Path(__file__).with_suffix("")
ITERATIONS, REPEATS = 8, 3
SPARE = 0.4
"""Largest share of the cores that ranks use where there are cores to spare."""


class Setting(NamedTuple):
    """Ranks, Mbit/s of each, a workload, and how many times as slow it is replayed."""

    workers: int
    rate: int
    workload: str
    scale: float

    @property
    def name(self) -> str:
        """The name of its files."""
        return f"{self.workload}-x{self.scale:g}-{self.workers}x{self.rate}mbit"

    @property
    def link(self) -> str:
        """The rate, as tc says it."""
        return f"{self.rate}mbit"


NAMED = (
    Setting(3, 1500, "densenet201-reconstructed", 0.5),
    Setting(4, 700, "nasnetamobile-pipedream", 0.8),
)
"""Settings on which the plans of earlier prices lost to the default."""
SMOKE = Setting(3, 2000, "squeezenet1-0-pipedream", 0.1)


class Effort(NamedTuple):
    """How long to measure: further options of ``osf bench``, iterations and repeats of ``osf run``."""

    bench: tuple[str, ...]
    iterations: int
    repeats: int


FULL = Effort(("--max-size", "64MiB", "--repeat", "10"), ITERATIONS, REPEATS)
QUICK = Effort(("--max-size", "4MiB", "--repeat", "3", "--in-flight", "1,2"), 3, 2)


def drawn(seed: int, count: int) -> Iterator[Setting]:
    """So many settings, the same for the same seed."""
    source = random.Random(seed)
    for _ in range(count):
        workers, rate, name = source.choice(WORKERS), source.choice(RATES), source.choice(MODELS)
        workload = load_workload(name)
        sent = 2 * (workers - 1) / workers * workload.gradient_bytes / parse_bandwidth(f"{rate}Mbps")
        ratio = LEAST * (MOST / LEAST) ** source.random()
        yield Setting(workers, rate, name, float(f"{sent / ratio / workload.compute_time:.2g}"))


def measure(folder: Path, settings: Sequence[Setting], effort: Effort) -> None:
    """Everything of ``settings`` that is not in ``folder``, one after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    for setting in settings:
        files = Files.of(folder, setting)
        if not files.runs.exists():
            profiles.save(load_workload(setting.workload).scaled(setting.scale), files.workload)
            with emulated(setting.workers, setting.link) as hosts:
                if not files.cluster.exists():
                    network = f"{setting.workers} network namespaces on a bridge, egress shaped to {setting.link}"
                    words = ["bench", *effort.bench, "--collective", "all_reduce", "--compute", "none"]
                    live.osf(hosts, [*words, "--network", f"{network} by tc tbf", "-o", str(files.cluster)])
                tune(setting, files)
                train(setting, files, hosts, effort, (str(files.tuned),), files.runs)
        if files.before.exists() and not files.before_runs.exists():
            with emulated(setting.workers, setting.link) as hosts:
                train(setting, files, hosts, effort, (str(files.before), str(files.tuned)), files.before_runs)


def train(setting: Setting, files: Files, hosts: Hosts, effort: Effort, plans: Sequence[str], runs: Path) -> None:
    """Train under the default and ``plans`` by turns, and keep the ``runs``."""
    words = live.run_words(setting.workload, setting.scale, files.cluster)
    words += [word for plan in (DEFAULT, *plans) for word in ("--plan", plan)]
    words += ["--iterations", str(effort.iterations), "--repeat", str(effort.repeats)]
    unfinished = runs.with_name(f"unfinished-{runs.name}")
    live.osf(hosts, [*words, "-o", str(unfinished)])
    source = live.source_of(live.machine_of(hosts), effort.iterations, effort.repeats)
    source = replace(source, origin="measured with benchmarks/live_random.py")
    save_measurements(setting.name, [replace(run, source=source) for run in load_measurements(unfinished)], unfinished)
    unfinished.rename(runs)
    print(runs.name, flush=True)


class Files(NamedTuple):
    """The files of a setting in a folder."""

    workload: Path
    cluster: Path
    tuned: Path
    runs: Path
    before: Path
    before_runs: Path

    @staticmethod
    def of(folder: Path, setting: Setting) -> Files:
        """Their paths."""
        kinds = ("workload", "cluster", TUNED, "runs", BEFORE, f"{BEFORE}-runs")
        return Files(*(folder / f"{setting.name}-{kind}.json" for kind in kinds))


def tune(setting: Setting, files: Files) -> None:
    """Write what ``osf tune`` finds from the workload and the measured cluster alone."""
    words = [str(files.workload), "--cluster", str(files.cluster), "--workers", str(setting.workers), "--for", "ddp"]
    command = [sys.executable, "-m", "osfmodel", "tune", *words, "-o", str(files.tuned)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True)


class Outcome(NamedTuple):
    """The result of a setting, in fractions of the default's time, and the verdict of the tool.

    promised, gained: time that the tuned plan saves, predicted and measured
    spread:           the slowest repeat of the default or of the tuned plan over its fastest, less 1
    error:            of the default's predicted time
    buckets:          of the tuned plan
    busy:             the largest share of the cores that the ranks used in a repeat of either
    """

    setting: Setting
    promised: float
    gained: float
    spread: float
    error: float
    buckets: int
    busy: float

    @property
    def slower(self) -> bool:
        """Whether the tuned plan was slower than the default by more than 1 % and the spread."""
        return live.lost(self.gained, self.spread)

    @property
    def near(self) -> bool:
        """Whether the gain was predicted within 3 points."""
        return abs(self.promised - self.gained) <= live.NEAR


def outcome_of(setting: Setting, tuned_file: Path, runs_file: Path) -> Outcome:
    """The outcome of a tuned plan that was measured beside the default."""
    tuned: dict[str, Any] = json.loads(tuned_file.read_text())
    plans = (DEFAULT, tuned_file.name)
    runs = [run for run in load_measurements(runs_file) if run.plan in plans]
    times = {plan: [run.iteration_time for run in runs if run.plan == plan] for plan in plans}
    middle = {plan: median(found) for plan, found in times.items()}
    default, promised = tuned["default_iteration_time_s"], tuned["tuned_iteration_time_s"]
    return Outcome(
        setting,
        1 - promised / default,
        1 - middle[tuned_file.name] / middle[DEFAULT],
        max(max(found) / min(found) - 1 for found in times.values()),
        default / middle[DEFAULT] - 1,
        len(tuned["plan"]["buckets"]),
        max(float(run.condition(CPU_SHARE)) for run in runs),
    )


class Said(NamedTuple):
    """The verdict of ``osf tune`` now, whether its plan is faster with no proviso, and the interval of the gain of the
    plan that was run.
    """

    recommended: bool
    verdict: str
    low: float = -1.0
    high: float = 1.0

    def holds(self, outcome: Outcome) -> bool:
        """Whether the measured gain is inside."""
        return self.low <= outcome.gained <= self.high


def said_of(setting: Setting, files: Files) -> Said:
    """The present verdict on a measured cluster, which may be on another plan than the one that was run."""
    workload = load_workload(setting.workload).scaled(setting.scale)
    cluster = load_cluster(files.cluster)
    now = osf.tune(workload, cluster, setting.workers)
    chance = now.outcomes[0].chance
    stock = pricing_of(cluster, setting.workers)
    plans = (load_plan(files.tuned), to_plan(DdpKnobs(), workload))
    ran, default = (plan_times(workload, stock, plan, named_plan(DEFAULT)) for plan in plans)
    low, high, _ = chance_of(ran, default, gain_doubt(plans[0], stock))
    other = "" if now.plan.buckets == load_plan(files.tuned).buckets else " (another plan)"
    return Said(now.improvement and chance is not None and chance.sure, now.verdict.split(". ")[0] + other, low, high)


def show(folder: Path, settings: Sequence[Setting]) -> Iterator[str]:
    """A table of the outcomes, and how many are as they should be."""
    yield "| setting | ddp, error | buckets | predicted gain | measured gain | spread | cores used | osf tune |"
    yield "|---|--:|--:|--:|--:|--:|--:|---|"
    measured = [(setting, files) for setting in settings if (files := Files.of(folder, setting)).runs.exists()]
    found = [(outcome_of(setting, files.tuned, files.runs), said_of(setting, files)) for setting, files in measured]
    for one, said in found:
        promised = f"{one.promised:+.1%} ({said.low:+.1%} to {said.high:+.1%})"
        gains = f"{promised} | {one.gained:+.1%} | {one.spread:.1%} | {one.busy:.0%}"
        verdict = "take it" if said.recommended else "keep the default"
        yield f"| {one.setting.name} | {one.error:+.1%} | {one.buckets} | {gains} | {verdict} |"
    missing = [setting.name for setting in settings if not Files.of(folder, setting).runs.exists()]
    yield f"slower than the default by more than 1 % and the spread: {_names(one for one, _ in found if one.slower)}"
    yield f"gain predicted within 3 points: {sum(one.near for one, _ in found)} of {len(found)}"
    for words, some in (("all", found), ("cores to spare", [row for row in found if row[0].busy <= SPARE])):
        if some:
            inside = sum(said.holds(one) for one, said in some)
            apart = fmean(one.promised - one.gained for one, _ in some)
            yield f"{words}: in the interval {inside} of {len(some)}, promised less measured {100 * apart:+.1f} points"
    lost = (one for one, said in found if said.recommended and one.gained < 0)
    yield f"recommended, and slower than the default at all: {_names(lost)}"
    yield f"not measured: {', '.join(missing) or 'nothing'}"
    yield from beside(folder, settings)


def beside(folder: Path, settings: Sequence[Setting]) -> Iterator[str]:
    """A table of plans of another version, each in turn with the present one and the default."""
    rows = [(setting, files) for setting in settings if (files := Files.of(folder, setting)).before_runs.exists()]
    if rows:
        yield "\n| setting | plan | buckets | predicted gain | measured gain | spread |\n|---|---|---|---|---|---|"
    for setting, files in rows:
        for words, plan in (("before", files.before), ("now", files.tuned)):
            one = outcome_of(setting, plan, files.before_runs)
            gains = f"{one.promised:+.1%} | {one.gained:+.1%} | {one.spread:.1%}"
            yield f"| {setting.name} | {words} | {one.buckets} | {gains} |"


def _names(outcomes: Iterator[Outcome]) -> str:
    return ", ".join(f"{one.setting.name} ({one.gained:+.1%})" for one in outcomes) or "none"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="without it, what is kept is printed")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, default=COUNT, help="random settings after the named ones")
    parser.add_argument("--smoke", action="store_true", help="one tiny setting instead")
    parser.add_argument("--list", action="store_true", help="print the settings, measure nothing")
    parser.add_argument("--show", action="store_true", help="print what FOLDER holds, measure nothing")
    arguments = parser.parse_args(words)
    named = NAMED if arguments.seed == SEED else ()
    settings = [SMOKE] if arguments.smoke else [*named, *drawn(arguments.seed, arguments.count)]
    if arguments.list:
        print("\n".join(setting.name for setting in settings))
        return
    folder = arguments.folder or KEPT
    if arguments.folder and not arguments.show:
        measure(folder, settings, QUICK if arguments.smoke else FULL)
    print("\n".join(show(folder, settings)))


if __name__ == "__main__":
    main()
