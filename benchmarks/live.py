"""Predicted against measured on an emulated cluster: DDP and the executor with gloo, network namespaces, shaped links.

    python benchmarks/live.py                   # show the runs that the project keeps, held against predictions
    python benchmarks/live.py FOLDER            # measure what is not in FOLDER yet: an hour and more
    python benchmarks/live.py FOLDER --keep     # put what FOLDER holds among the project's profiles
    python benchmarks/live.py FOLDER --models   # train small real models instead, through all four commands
    python benchmarks/live.py FOLDER --tune     # have osf tune --live measure, tune and choose instead
    python benchmarks/live.py FOLDER --executor # the first two with plans that the executor runs, beside DDP

Needs root, iproute2 and torch. For each number of ranks and each rate the network is measured once with ``osf bench``;
then each workload is replayed with ``osf run`` under all plans, by turns, and ``osf check`` holds what was predicted
from workload and network alone against that. Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from osfmodel import Plan, load_cluster, load_workload  # noqa: E402
from osfmodel.cost.clusters import pricing_of  # noqa: E402
from osfmodel.cost.pricing import Pricing  # noqa: E402
from osfmodel.cost.shapes import TableCost  # noqa: E402
from osfmodel.entities.effects import REPLAYED_ON_CPU  # noqa: E402
from osfmodel.entities.errors import OsfError  # noqa: E402
from osfmodel.entities.executors import RUNTIME  # noqa: E402
from osfmodel.entities.files import profiles  # noqa: E402
from osfmodel.entities.files.measurements import load_measurements, save_measurements  # noqa: E402
from osfmodel.entities.measurement import Measurement, Source  # noqa: E402
from osfmodel.entities.plan import Objective  # noqa: E402
from osfmodel.ledger.check import side_by_side  # noqa: E402
from osfmodel.ledger.results import BUSY, Beside, PlanRuns  # noqa: E402
from osfmodel.ledger.sources import emulated_ddp  # noqa: E402
from osfmodel.targets.named_plans import make_plan  # noqa: E402
from tests.live.cluster import Hosts, emulated, local  # noqa: E402

PLANS = ("wfbp", "ddp", "cap:best", "optimal", "single")
CAPS = ("128KiB", "256KiB", "512KiB", "1MiB", "2MiB", "4MiB", "8MiB", "16MiB", "25MiB", "32MiB", "64MiB", "128MiB")
SCALES = {"resnet50-v100": 5.0, "googlenet-k80": 0.5, "transformer-6x256-cpu": 0.4}
"""How many times as slow computation is replayed: one all-reduce of everything takes 0.25 to 5.1 times as long."""
ITERATIONS, REPEATS = 20, 3
NAMES = {False: "emulated-ddp", True: "emulated-runtime"}
"""Sources of ``osf check``: under DDP alone, and with the executor beside it."""
NEAR, FAR = 0.03, 0.04
"""Speed-ups that are predicted within so much count as predicted; errors of cells to look at."""
LICENCE = "Apache-2.0, as this project"
ORIGIN = "measured with benchmarks/live.py"
UNSTATED = "a machine that the runs do not state"
VIEW, COPIES, SWEEP, EXECUTOR = "", "-copies", "-sweep", "-runtime"
"""Ends of file names: gradients live in buckets; DDP's default, which copies them; the first with a sweep of caps, and
with plans that the executor runs."""
SETS = {SWEEP: "sweep of caps", EXECUTOR: "executor"}
"""Names of the last two in kept runs."""
OWN, PUBLISHED, CHANNELS = "planned", ("us-byte", "byte-scheduler", "asc-wfbp"), (1, 2, 4)


class Setting(NamedTuple):
    """One file of runs: a workload on so many ranks whose links have this rate; ``how`` says which options or plans."""

    workers: int
    rate: str
    workload: str
    how: str = VIEW

    @property
    def cluster(self) -> str:
        """The name of the cluster, which is measured anew for the runs with the executor."""
        return f"{NAMES[True] if self.how == EXECUTOR else 'emulated'}-{self.workers}x{self.rate}"

    @property
    def file(self) -> str:
        """The name of the file of runs."""
        return f"{self.workload}-{self.workers}x{self.rate}{self.how}.json"

    @property
    def plans(self) -> tuple[str, ...]:
        """Plans to run, by turns, apart from the plans that are made for the setting."""
        if self.how == EXECUTOR:
            return ("ddp", "optimal", *(f"{RUNTIME.prefix}{name}" for name in PUBLISHED))
        return ("ddp", "optimal", *(f"cap:{cap}" for cap in CAPS)) if self.how == SWEEP else PLANS

    @property
    def options(self) -> list[str]:
        """Further arguments of ``osf run``."""
        return [] if self.how == COPIES else ["--gradient-as-bucket-view"]


def settings() -> Iterator[Setting]:
    """All of them, in the order in which they are measured: what is short first."""
    small = [name for name in SCALES if name != "resnet50-v100"]
    fast = [(4, "2500mbit"), (2, "5gbit"), (4, "5gbit"), (2, "2500mbit"), (8, "2500mbit")]
    slow = [(2, "1gbit"), (4, "1gbit"), (8, "1gbit")]
    for workers, rate in fast[:4]:
        yield from (Setting(workers, rate, name) for name in small)
    yield from (Setting(4, "5gbit", name, SWEEP) for name in small)
    yield from (Setting(8, "2500mbit", name) for name in small)
    yield from (Setting(4, "2500mbit", name, COPIES) for name in small)
    for workers, rate in slow:
        yield from (Setting(workers, rate, name) for name in reversed(small))
    yield from (Setting(4, "2500mbit", name, SWEEP) for name in small)
    yield from (Setting(2, "5gbit", name, COPIES) for name in small)
    yield from (Setting(workers, rate, "resnet50-v100") for workers, rate in (*fast, *slow))


def executed_settings() -> Iterator[Setting]:
    """The settings with the executor."""
    for workload in sorted(SCALES, key=("transformer-6x256-cpu", "googlenet-k80", "resnet50-v100").index):
        for workers, rate in ((4, "2500mbit"), (8, "2500mbit"), (4, "1gbit"), (8, "1gbit")):
            yield Setting(workers, rate, workload, EXECUTOR)


def made_plans(setting: Setting, cluster_file: Path) -> Iterator[tuple[str, Plan]]:
    """Plans for the executor, by name: our own, on 1 to 4 channels, and DDP's default on as many as DDP has.

    The best that the planner finds for k channels is run on all k, also where it would use fewer.
    """
    workload = load_workload(setting.workload).scaled(SCALES[setting.workload])
    cluster = load_cluster(cluster_file)
    pricing = pricing_of(cluster, setting.workers).under(REPLAYED_ON_CPU | RUNTIME.conditions)
    yield f"ddp-k{cluster.in_flight}", make_plan("ddp", workload, pricing, Objective(cluster.in_flight))
    for overlap in (False, True):
        for channels in CHANNELS:
            rules = Objective(channels, overlap)
            name = f"own-k{channels}{'-overlap' if overlap else ''}"
            yield name, make_plan(OWN, workload, pricing, rules).under(rules)


def _saved(setting: Setting, folder: Path, cluster_file: Path) -> list[str]:
    """Save the plans of :func:`made_plans` as files, and return the words that run them."""
    home = folder / setting.file.removesuffix(".json")
    home.mkdir(exist_ok=True)
    words = []
    for name, plan in made_plans(setting, cluster_file):
        profiles.save(plan, home / f"{name}.json")
        words += ["--plan", f"{RUNTIME.prefix}{home / name}.json"]
    return words


def measure(folder: Path, chosen: Iterable[Setting]) -> None:
    """Everything of ``chosen`` that is not in ``folder``, one setting after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    for setting in chosen:
        if (folder / setting.file).exists():
            continue
        with emulated(setting.workers, setting.rate) as hosts:
            cluster_file = folder / f"{setting.cluster}.json"
            if not cluster_file.exists():
                words = ["bench", "--max-size", "64MiB", "--repeat", "10", "--collective", "all_reduce"]
                network = f"{setting.workers} network namespaces on a bridge, egress shaped to {setting.rate} by tc tbf"
                osf(hosts, [*words, "--compute", "none", "--network", network, "-o", str(cluster_file)])
            words = [*run_words(setting.workload, SCALES[setting.workload], cluster_file), *setting.options]
            words += [word for plan in setting.plans for word in ("--plan", plan)]
            words += _saved(setting, folder, cluster_file) if setting.how == EXECUTOR else []
            words += ["--iterations", str(ITERATIONS), "--repeat", str(REPEATS)]
            partial = folder / f"unfinished-{setting.file}"
            osf(hosts, [*words, "-o", str(partial)])
            machine = machine_of(hosts)
            runs = [replace(run, source=source_of(machine)) for run in load_measurements(partial)]
            save_measurements(partial.stem, runs, partial)
            partial.rename(folder / setting.file)
            print(setting.file, flush=True)


def machine_of(hosts: Hosts) -> str:
    """Properties of this machine on which runs depend and which they do not state themselves."""
    asked = (
        "import os; print(os.sched_getscheduler(0)); print(open('/proc/sys/net/ipv4/tcp_congestion_control').read())"
    )
    command = [*hosts.prefixes[0], sys.executable, "-c", asked]
    policy, control = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    scheduling = "default" if int(policy) == os.SCHED_OTHER else "real-time"
    return f"a machine of {len(os.sched_getaffinity(0))} cores, {scheduling} scheduling, TCP {control}"


def source_of(machine: str, iterations: int = ITERATIONS, repeats: int = REPEATS) -> Source:
    """The source of runs on such a machine."""
    said = f"{iterations} iterations after 3 of warm-up, {repeats} repeats, plans taking turns; computation by sleeping"
    return Source(ORIGIN, f"PyTorch with gloo between network namespaces on {machine}; {said}", LICENCE)


def run_words(workload: str, scale: float, cluster: Path) -> list[str]:
    """The beginning of ``osf run`` of a scaled replay on a measured network."""
    return ["run", workload, "--scale", f"{scale:g}", "--cluster", str(cluster)]


def osf(hosts: Hosts, words: list[str]) -> str:
    """The output of rank 0."""
    ended = hosts.run([sys.executable, "-m", "osfmodel", *words], timeout=3600)
    for one in ended:
        if one.status:
            sys.exit(f"rank {one.rank}: {one.stderr.strip()[-500:]}")
    return ended[0].stdout


def keep(folder: Path, executor: bool) -> None:
    """Put the clusters and the runs where the profiles are."""
    chosen = list(executed_settings() if executor else settings())
    for path in sorted({folder / f"{setting.cluster}.json" for setting in chosen} & set(folder.glob("*.json"))):
        cluster = load_cluster(path)
        source = replace(cluster.source, licence=LICENCE)
        profiles.save(replace(cluster, source=source), ROOT / "profiles/clusters" / path.name)
    name = NAMES[executor]
    save_measurements(name, list(kept(folder, chosen)), ROOT / f"profiles/measurements/{name}.json")


def kept(folder: Path, chosen: Iterable[Setting]) -> Iterator[Measurement]:
    """All runs, with bundled names in the place of files, and one source."""
    for setting in chosen:
        path = folder / setting.file
        own = (("set", SETS[setting.how]),) if setting.how in SETS else ()
        for run in load_measurements(path) if path.exists() else ():
            plan = f"{RUNTIME.prefix}{Path(run.plan).stem}" if run.plan.endswith(".json") else run.plan
            source = run.source if run.source.origin == ORIGIN else source_of(UNSTATED)
            yield replace(run, plan=plan, cluster=setting.cluster, source=source, conditions=run.conditions + own)


def train(folder: Path) -> None:
    """Real models through the four commands, on two hosts at 1 Gbit/s; ``osf check`` prints what came of it."""
    for name in ("transformer", "convolutional"):
        factory, home = f"benchmarks.live_models:{name}", folder / name
        home.mkdir(parents=True, exist_ok=True)
        profile, cluster_file, runs = (str(home / file) for file in ("workload.json", "cluster.json", "runs.json"))
        with emulated(2, "1gbit", real_time=False) as hosts:
            alone = replace(hosts, prefixes=hosts.prefixes[:1])
            osf(alone, ["profile", factory, "--name", name, "-o", profile])
            osf(hosts, ["bench", "--for", profile, "--collective", "all_reduce", "-o", cluster_file])
            words = ["run", factory, "--workload", profile, "--cluster", cluster_file, "--verify", "-o", runs]
            for plan in ("ddp", "cap:best", "optimal", "single"):
                words += ["--plan", plan]
            print(osf(hosts, words), flush=True)
        print(osf(local(1), ["check", runs]), flush=True)


def tune(folder: Path) -> None:
    """``osf tune --live`` between four hosts at 2.5 Gbit/s: where there is much to gain, and where there is little."""
    for name in ("transformer-6x256-cpu", "resnet50-v100"):
        with emulated(4, "2500mbit") as hosts:
            words = ["tune", name, "--live", str(folder / f"tuned-{name}"), "--scale", f"{SCALES[name]:g}"]
            print(f"{name}:\n{osf(hosts, words)}", flush=True)


def show(executor: bool = False) -> str:
    """The kept runs as tables: each cell, the errors, and what tuning or the executor gained."""
    runs = load_measurements(NAMES[executor])
    groups = side_by_side(runs, emulated_ddp.judge(runs).rows)
    grid = [*_ratios(groups), *_missing(runs, executed_settings() if executor else settings())]
    if executor:
        return "\n".join([*grid, *_errors(groups), "", *_in_trains(runs), "", *_executed(groups), "", *cells(groups)])
    return "\n".join([*cells(groups), "", *grid, *_errors(groups), *_gains(groups), "", *_sweeps(groups)])


def _ratios(groups: Sequence[Beside]) -> Iterator[str]:
    """How much is communicated."""
    found = []
    for group in groups:
        workload = load_workload(group.workload).scaled(SCALES[group.workload])
        cost = pricing_of(load_cluster(group.cluster), group.workers).cost()
        found.append(cost(workload.gradient_bytes) / workload.compute_time)
    yield f"one all-reduce of everything takes {min(found):.2f} to {max(found):.1f} times as long as computation"


def back_to_back() -> dict[int, float]:
    """By size, the time of a message in a train over that of one alone, where it is less: later benches of 4 ranks."""
    found: dict[int, list[float]] = {}
    for path in sorted(ROOT.glob("benchmarks/live_random/*-4x*-cluster.json")):
        (table,) = (table for table in load_cluster(path).tables if table.collective == "all_reduce")
        for size, alone, train in zip(table.sizes, table.times, table.trains, strict=False):
            found.setdefault(size, []).append(train / alone)
    return {size: median(parts) for size, parts in found.items() if median(parts) < 1}


def _in_trains(runs: Sequence[Measurement]) -> Iterator[str]:
    """The worst cells of 4 ranks under the executor, as judged, and with small messages as quick as in a train."""
    parts = back_to_back()

    def quicker(pricing: Pricing) -> Pricing:
        cost = pricing.cost()
        if pricing.in_flight > 1 or pricing.workers != 4 or not isinstance(cost, TableCost):
            return pricing
        times = [time * parts.get(size, 1.0) for size, time in zip(cost.sizes, cost.times, strict=True)]
        return replace(pricing, costs={**pricing.costs, "all_reduce": replace(cost, times=tuple(times))})

    before, after = (side_by_side(runs, emulated_ddp.judge(runs, change).rows) for change in (lambda one: one, quicker))
    yield "| executor, 4 ranks, beyond 4 % | error | small messages as in a train |\n|---|--:|--:|"
    for group, quick in zip(before, after, strict=True):
        for one, other in zip(group.turns, quick.turns, strict=True):
            known = group.workers == 4 and one.steady and one.error is not None and other.error is not None
            if known and RUNTIME.prefix in one.plan and abs(one.error or 0.0) > FAR:
                yield f"| {_name(group)} {one.plan} | {one.error:+.1%} | {other.error:+.1%} |"


def _missing(runs: Sequence[Measurement], wanted: Iterable[Setting]) -> Iterator[str]:
    """A line on settings of the grid that were not measured."""
    there = {setting_of(run) for run in runs}
    missing = [setting.file.removesuffix(".json") for setting in wanted if setting not in there]
    yield f"not measured: {', '.join(missing) or 'nothing'}"


def setting_of(run: Measurement) -> Setting:
    """The one that a kept run is of."""
    stated = dict(run.conditions)
    how = VIEW if "gradient_as_bucket_view" in stated else COPIES
    how = next((end for end, words in SETS.items() if stated.get("set") == words), how)
    return Setting(run.workers, run.cluster.rpartition("x")[2], run.workload, how)


def _name(group: Beside) -> str:
    stated = dict(group.conditions)
    options = "" if "gradient_as_bucket_view" in stated or "horovod" in stated else ", with copies"
    return f"{group.workload} {group.cluster.rpartition('-')[2]}{options}"


def steady(group: Beside) -> list[PlanRuns]:
    return [turns for turns in group.turns if turns.error is not None and turns.steady]


def cells(groups: Sequence[Beside]) -> Iterator[str]:
    yield "| workload, ranks x rate | plan | measured, ms | spread | predicted, ms | error |"
    yield "|---|---|---|---|---|---|"
    for group in groups:
        for turns in group.turns:
            predicted = "" if turns.predicted is None else f"{turns.predicted * 1e3:.1f}"
            error = "" if turns.error is None else f"{turns.error:+.1%}" + ("" if turns.steady else ", not counted")
            row = (_name(group), turns.plan, f"{turns.measured * 1e3:.1f}", f"{turns.spread:.1%}", predicted, error)
            yield f"| {' | '.join(row)} |"


def busy(turns: PlanRuns) -> bool:
    """Whether the ranks kept the cores busy, so that communication waited for them."""
    return turns.note == BUSY


def _errors(groups: Sequence[Beside]) -> Iterator[str]:
    """Median and worst error of cells with cores to spare, and of those that are listed only."""
    cells = [(group, turns) for group in groups for turns in group.turns if turns.error is not None]
    for words, chosen in (
        ("cores to spare", [turns for group, turns in cells if "with copies" not in _name(group) and not busy(turns)]),
        (
            "cores to spare, DDP's default with copies",
            [turns for group, turns in cells if "with copies" in _name(group)],
        ),
        ("cores busy, not counted", [replace(turns, steady=True) for _, turns in cells if busy(turns)]),
    ):
        errors = [abs(turns.error or 0) for turns in chosen if turns.steady]
        if errors:
            found = f"median |error| {median(errors):.2%}, worst {max(errors):.2%}"
            unsteady = f"; {len(chosen) - len(errors)} not steady" if len(errors) < len(chosen) else ""
            yield f"{words}: {len(errors)} cells, {found}{unsteady}"


def _gains(groups: Sequence[Beside]) -> Iterator[str]:
    """How the optimum does against the default, measured and predicted."""
    every = [(group, turns) for group in groups for turns in group.turns if turns.plan == "optimal"]
    pairs = [(group, turns) for group, turns in every if turns.steady and group.default.steady]
    measured = [group.measured_speed_up(turns) for group, turns in pairs]
    missed = [(group, turns) for group, turns in pairs if not _near(group, turns)]
    noisy = [(group, turns) for group, turns in every if not (turns.steady and group.default.steady)]
    slower = [
        f"{_name(group)} ({1 / speed - 1:+.1%})"
        for (group, _), speed in zip(pairs, measured, strict=True)
        if 1 / speed - 1 > max(0.01, group.default.spread)
    ]
    yield (
        f"optimal against DDP's default: measured {min(measured):.3f} to {max(measured):.3f} times as fast, median "
        f"{median(measured):.3f}; within 3 points of the prediction in {len(pairs) - len(missed)} of {len(pairs)}"
    )
    yield f"beyond 3 points: {_both(missed)}"
    yield f"not counted: {_both(noisy)}"
    yield f"slower than the default by more than 1 % and its spread: {', '.join(slower) or 'none'}"


def lost(gained: float, spread: float) -> bool:
    """Whether a gain is a loss of more than 1 % and the spread of repeats."""
    return -gained > max(0.01, spread)


def _near(group: Beside, turns: PlanRuns) -> bool:
    return abs(group.measured_speed_up(turns) - (group.predicted_speed_up(turns) or 0)) <= NEAR


def _both(pairs: Sequence[tuple[Beside, PlanRuns]]) -> str:
    found = [
        f"{_name(group)} ({group.measured_speed_up(turns):.3f}, predicted {group.predicted_speed_up(turns) or 0:.3f})"
        for group, turns in pairs
    ]
    return ", ".join(found) or "none"


def _sweeps(groups: Sequence[Beside]) -> Iterator[str]:
    """How the optimum does against the best of the caps that were run beside it."""
    for group in groups:
        caps = [turns for turns in group.turns if turns.plan.startswith("cap:") and turns.plan != "cap:best"]
        if caps:
            best = min(caps, key=lambda turns: turns.measured)
            ours = next(turns for turns in group.turns if turns.plan == "optimal")
            yield (
                f"{_name(group)}: optimal {ours.measured * 1e3:.1f} ms, best of {len(caps)} caps {best.plan} "
                f"{best.measured * 1e3:.1f} ms ({ours.measured / best.measured - 1:+.1%}), default "
                f"{group.default.measured * 1e3:.1f} ms"
            )


def _executed(groups: Sequence[Beside]) -> Iterator[str]:
    """DDP's own plan under the executor against DDP, and our best plan against the best that DDP can do."""
    yield "| workload, ranks x rate | ddp under the executor | our plan | predicted gain | measured gain |"
    yield "|---|---|---|---|---|"
    slower: list[str] = []
    for group in groups:
        found = {turns.plan.removeprefix(RUNTIME.prefix): turns for turns in group.turns}
        alike = next(turns for name, turns in found.items() if name.startswith("ddp-k"))
        own = [turns for name, turns in found.items() if name.startswith("own-") and turns.predicted is not None]
        tuned, ours = found["optimal"], min(own, key=lambda turns: turns.predicted or 0)
        promised = 1 - (ours.predicted or 0) / (tuned.predicted or 1)
        gained = 1 - ours.measured / tuned.measured
        same = alike.measured / group.default.measured - 1
        yield f"| {_name(group)} | {same:+.1%} | {ours.plan} | {promised:.1%} | {gained:.1%} |"
        if -gained > max(0.01, tuned.spread):
            slower.append(f"{_name(group)} ({-gained:+.1%})")
    yield f"slower than DDP's tuned plan by more than 1 % and its spread: {', '.join(slower) or 'none'}"


def show_or_measure(
    description: str | None, show: Callable[[], str], measure: Callable[[Path], None], keep: Callable[[Path], None]
) -> None:
    """The command line of a set that is measured in a folder, kept among the profiles, and shown from there."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--keep", action="store_true", help="put what FOLDER holds among the profiles, measure nothing")
    arguments = parser.parse_args()
    if arguments.keep and not arguments.folder:
        parser.error("--keep needs FOLDER")
    if arguments.folder:
        (keep if arguments.keep else measure)(arguments.folder)
    else:
        try:
            print(show())
        except OsfError as error:
            sys.exit(f"no runs were kept: {error}")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--keep", action="store_true", help="put what FOLDER holds among the profiles, measure nothing")
    parser.add_argument("--models", action="store_true", help="train real models, measure no replays")
    parser.add_argument("--tune", action="store_true", help="run osf tune --live, measure no replays")
    parser.add_argument("--executor", action="store_true", help="plans of the executor, beside DDP")
    arguments = parser.parse_args(words)
    for name in ("keep", "models", "tune"):
        if getattr(arguments, name) and not arguments.folder:
            parser.error(f"--{name} needs FOLDER")
    if arguments.folder and arguments.models:
        train(arguments.folder)
    elif arguments.folder and arguments.tune:
        tune(arguments.folder)
    elif arguments.folder and arguments.keep:
        keep(arguments.folder, arguments.executor)
    elif arguments.folder:
        measure(arguments.folder, executed_settings() if arguments.executor else settings())
    else:
        print(show(arguments.executor))


if __name__ == "__main__":
    main()
