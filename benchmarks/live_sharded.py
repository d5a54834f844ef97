"""Predicted against measured steps of FSDP2 between emulated hosts, on settings drawn by a seed that is fixed before.

    python benchmarks/live_sharded.py FOLDER              # measure what FOLDER lacks, then print it: 15 minutes
    python benchmarks/live_sharded.py FOLDER --show       # print what FOLDER holds
    python benchmarks/live_sharded.py FOLDER --list       # print the settings alone
    python benchmarks/live_sharded.py FOLDER --only 2     # measure two networks at most
    python benchmarks/live_sharded.py FOLDER --replays    # no real models, which other work on the machine delays most
    python benchmarks/live_sharded.py FOLDER --hosts      # measure the host's work anew, for clusters that state none
    python benchmarks/live_sharded.py FOLDER --page       # write docs/ledger/emulated-fsdp.md from what FOLDER holds

A setting is a number of ranks, the rate of their links, and a model, replayed or real. Each network is measured once
for replays and once for real models, with ``osf bench``. Then ``osf run --executor fsdp2`` trains under four plans by
turns, which are four cells: one group per block, and the groups that the planner finds at these prices; each with
collectives that block, as FSDP2 does over gloo, and with collectives in the background. Replays compute 0.4 to 1.2
times as long as communication takes at the rate of the links. Real models compute as the machine does; what a step of
the same shards takes beyond that without communication, on all ranks at once as each run measures it, is the host's.
Runs whose ``carried_by`` does not say "one by one" had two collectives at once, and are predicted so; their clusters
state no work of the host, and take that of hosts.json, measured later on that machine. FOLDER keeps all files, written
as they end. Cells of which the ranks keep the cores busy, or whose repeats differ by more than 5 %, are listed and not
counted: the rules of the other sets. Needs root, iproute2 and torch; nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import live  # noqa: E402
import live_models  # noqa: E402

from osfmodel import Layer, Plan, Workload, load_cluster, load_workload  # noqa: E402
from osfmodel.cost.clusters import pricing_of  # noqa: E402
from osfmodel.cost.pricing import Pricing  # noqa: E402
from osfmodel.engine import predict_timeline  # noqa: E402
from osfmodel.engine.strategies import lower  # noqa: E402
from osfmodel.entities.effects import REPLAYED_ON_CPU, Effects  # noqa: E402
from osfmodel.entities.executors import FSDP  # noqa: E402
from osfmodel.entities.files import profiles  # noqa: E402
from osfmodel.entities.files.measurements import load_measurements  # noqa: E402
from osfmodel.entities.files.notation import read  # noqa: E402
from osfmodel.entities.measurement import SHARDED_COMPUTATION, Measurement  # noqa: E402
from osfmodel.entities.modules import blocks, wrapped  # noqa: E402
from osfmodel.entities.units import parse_bandwidth  # noqa: E402
from osfmodel.ledger.results import UNSTEADY  # noqa: E402
from osfmodel.solve.search.group_search import SETTINGS, GroupSearch, groups_for  # noqa: E402
from tests.live.cluster import emulated  # noqa: E402

SEED = 2211
"""Of the settings that are kept."""
WORKERS = (2, 3, 4, 6, 8)
RATES = (400, 800, 1600)
"""Mbit/s of each host."""
NETWORKS = 8
MODELS = ("even", "tower", "headed")
"""Factories of benchmarks/live_models.py."""
LEAST, MOST = 0.4, 1.2
"""Computation of a replay over the communication of a step per block, at the rate of the links."""
ITERATIONS, REPEATS = 3, 2
BENCH = ("--min-size", "32KiB", "--max-size", "4MiB", "--repeat", "8", "--in-flight", "1", "--compute", "none")
EACH, PLANNED = "per-block", "planned"
BLOCKING, OVERLAPPING = "blocking", "overlapping"
PAGE = ROOT / "docs/ledger/emulated-fsdp.md"
HOSTS, TURNS, HOSTED = Path(__file__).with_suffix("") / "hosts.json", 3, ("group_time", "member_time", "group_copy")


class Setting(NamedTuple):
    """Ranks, Mbit/s of each, a model, and the replay's computation over communication; 0 for the real model."""

    workers: int
    rate: int
    model: str
    ratio: float = 0

    @property
    def network(self) -> str:
        """The name of the network."""
        return f"{self.workers}x{self.rate}mbit"

    @property
    def name(self) -> str:
        """The name of its files."""
        return f"{self.network}-{self.model}-{f'replay-x{self.ratio:g}' if self.ratio else 'real'}"


def drawn(seed: int) -> list[Setting]:
    """A replay and a real model on each of the networks, among which all numbers of ranks and all rates are."""
    source = random.Random(seed)
    networks = [(workers, RATES[place % len(RATES)]) for place, workers in enumerate(WORKERS * 3)]
    models = iter(source.sample(MODELS * NETWORKS, 2 * NETWORKS))
    found = []
    for workers, rate in sorted(source.sample(networks[: len(WORKERS)], len(WORKERS))) + sorted(
        source.sample(networks[len(WORKERS) :], NETWORKS - len(WORKERS))
    ):
        ratio = LEAST * (MOST / LEAST) ** source.random()
        found.append(Setting(workers, rate, next(models), float(f"{ratio:.2g}")))
        found.append(Setting(workers, rate, next(models)))
    return found


@cache
def shape_of(model: str) -> Workload:
    """A profile whose layers take time by their elements: forward 1 second in all, backward 2."""
    tensors = {name: tuple(one.shape) for name, one in getattr(live_models, model)()[0].named_parameters()}
    count = sum(one.numel() for one in getattr(live_models, model)()[0].parameters())
    layers = []
    for name, shape in tensors.items():
        elements = shape[0] * (shape[1] if shape[1:] else 1)
        layers.append(Layer(name, elements / count, 2 * elements / count, 4 * elements, shape=shape))
    return Workload(model, tuple(layers))


def replay_of(setting: Setting) -> Workload:
    """The workload of a replay."""
    whole = shape_of(setting.model)
    sent = 4 * (setting.workers - 1) / setting.workers * whole.gradient_bytes / parse_bandwidth(f"{setting.rate}Mbps")
    return replace(whole.scaled(setting.ratio * sent / whole.compute_time), name=setting.name)


def plans_of(workload: Workload, pricing: Pricing) -> Iterator[tuple[str, Plan]]:
    """The plans of a setting, by name."""
    for form in (BLOCKING, OVERLAPPING):
        search = GroupSearch(workload, pricing, 1)
        search.rules = replace(search.rules, asynchronous=form == OVERLAPPING)
        search.settings = tuple(setting for setting in SETTINGS if not setting[2])  # in the background one communicator
        ahead = (0, 1) if form == BLOCKING else (1, 1)
        each = groups_for([(name,) for name in blocks(workload)], ahead)
        yield f"{EACH}-{form}", wrapped(workload, each, search.rules)
        grouping = search.best()
        assert grouping is not None  # memory is not limited
        yield f"{PLANNED}-{form}", search.plan(grouping, workload)


def pricing_for(setting: Setting, cluster: Path) -> Pricing:
    """The prices of a run."""
    measured = load_cluster(cluster)
    if not measured.effects.group_time:
        known = json.loads(HOSTS.read_text())[str(setting.workers)]
        measured = replace(measured, effects=replace(measured.effects, **known))
    return pricing_of(measured, setting.workers).under(FSDP.conditions | (REPLAYED_ON_CPU if setting.ratio else {}))


def measure_hosts() -> None:
    """The host's work by number of ranks, as ``osf bench`` measures it: the median of ``TURNS``."""
    found: dict[int, list[Effects]] = {workers: [] for workers in WORKERS}
    for workers in WORKERS * TURNS:
        with emulated(workers, f"{RATES[1]}mbit") as hosts, TemporaryDirectory() as folder:
            words = ["bench", "--min-size", "32KiB", "--max-size", "64KiB", *BENCH[4:], "-o", f"{folder}/c.json"]
            live.osf(hosts, words)
            found[workers].append(load_cluster(Path(folder) / "c.json").effects)
    middle = {
        workers: {name: median(getattr(one, name) for one in each) for name in HOSTED}
        for workers, each in found.items()
    }
    HOSTS.write_text(json.dumps(middle, indent=1) + "\n")


def measure(folder: Path, settings: Sequence[Setting], most: int) -> None:
    """Everything of ``settings`` that is not in ``folder``, on ``most`` networks."""
    folder.mkdir(parents=True, exist_ok=True)
    lacking = [one for one in settings if not (folder / f"{one.name}-runs.json").exists()]
    networks = list(dict.fromkeys(one.network for one in lacking))[:most]
    for setting in lacking:
        if setting.network in networks:
            with emulated(setting.workers, f"{setting.rate}mbit", real_time=bool(setting.ratio)) as hosts:
                cluster = folder / f"{setting.network}-{'replay' if setting.ratio else 'real'}.json"
                if not cluster.exists():
                    network = (
                        f"{setting.workers} network namespaces on a bridge, egress shaped to {setting.rate} Mbit/s"
                    )
                    live.osf(hosts, ["bench", *BENCH, "--network", f"{network} by tc tbf", "-o", str(cluster)])
                profile, subject = folder / f"{setting.name}-workload.json", f"benchmarks.live_models:{setting.model}"
                if setting.ratio:
                    profiles.save(replay_of(setting), profile)
                else:
                    alone = replace(hosts, prefixes=hosts.prefixes[:1])
                    live.osf(alone, ["profile", subject, "--name", setting.name, "-o", str(profile)])
                words = ["run", subject, "--workload", str(profile)] if not setting.ratio else ["run", str(profile)]
                workload = load_workload(profile)
                for name, plan in plans_of(workload, pricing_for(setting, cluster)):
                    path = folder / f"{setting.name}-{name}.json"
                    profiles.save(plan, path)
                    words += ["--plan", str(path)]
                words += ["--executor", "fsdp2", "--cluster", str(cluster)]
                words += ["--iterations", str(ITERATIONS), "--repeat", str(REPEATS)]
                unfinished = folder / f"unfinished-{setting.name}.json"
                live.osf(hosts, [*words, "-o", str(unfinished)])
                unfinished.rename(folder / f"{setting.name}-runs.json")
                print(setting.name, flush=True)


class Cell(NamedTuple):
    """A plan on a setting: measured and predicted seconds, spread of repeats, cores used, and collectives in a step."""

    setting: Setting
    plan: str
    measured: float
    predicted: float
    spread: float
    used: float
    busy: bool
    as_planned: bool
    collectives: int

    @property
    def error(self) -> float:
        """predicted / measured - 1."""
        return self.predicted / self.measured - 1

    @property
    def counts(self) -> bool:
        """Whether it is steady, with cores to spare."""
        return not self.busy and self.spread <= UNSTEADY


def cells_of(folder: Path, setting: Setting) -> Iterator[Cell]:
    """The cells of a setting that was measured, predicted now."""
    path = folder / f"{setting.name}-runs.json"
    runs = load_measurements(path) if path.exists() else []
    profile = load_workload(folder / f"{setting.name}-workload.json") if runs else None
    for name in dict.fromkeys(run.plan for run in runs):
        assert profile is not None
        turns = [run for run in runs if run.plan == name]
        workload = profile
        pricing = _as_run(pricing_for(setting, folder / Path(turns[0].cluster).name), turns[0])
        plan = read(turns[0].condition("sent"), workload)
        if not setting.ratio:
            pricing = _hosted(pricing, workload, plan, turns)
        times = [run.iteration_time for run in turns]
        predicted = predict_timeline(workload, plan, pricing).iteration_time
        asleep = workload.forward_time if setting.ratio else 0
        yield Cell(
            setting, name.removeprefix(f"{setting.name}-").removesuffix(".json"), median(times), predicted,
            max(times) / min(times) - 1, max(float(run.condition("cpu_share")) for run in turns),
            any(run.saturated(asleep) for run in turns),
            all(run.condition("buckets_as_planned") == "yes" for run in turns),
            sum(int(part.split()[0]) for part in turns[0].condition("collectives").split(", ")),
        )  # fmt: skip


def _as_run(pricing: Pricing, run: Measurement) -> Pricing:
    """The prices with as many collectives at once as the run had."""
    one_by_one = dict(run.conditions).get("carried_by") != "collectives in the background"
    return pricing if one_by_one else replace(pricing, in_flight=int(run.condition("in_flight")))


def _hosted(pricing: Pricing, workload: Workload, plan: Plan, turns: Sequence[Measurement]) -> Pricing:
    """The prices with the host's work that is left of a step without communication, beside what it computes."""
    alone = median(float(run.condition(SHARDED_COMPUTATION)) for run in turns)
    computed = workload.compute_time - workload.update_time * (1 - 1 / turns[0].workers)
    operations = lower(workload, plan, pricing).operations
    known = sum(one.startup for one in operations if one.kind in ("host", "copy_in", "copy", "pack"))
    names = ("group_time", "member_time", "copy_in", "copy_out")
    factor = max(alone - computed, 0) / known
    return replace(
        pricing,
        effects=replace(pricing.effects, **{name: getattr(pricing.effects, name) * factor for name in names}),
    )


def show(folder: Path, settings: Sequence[Setting]) -> Iterator[str]:
    """The cells as a table, their errors, and planned groups against one per block."""
    cells = [cell for setting in settings for cell in cells_of(folder, setting)]
    yield "| setting | plan | measured | predicted | error | spread | cores used |"
    yield "|---|---|---|---|---|---|---|"
    for cell in cells:
        error = f"{cell.error:+.1%}" + ("" if cell.counts else ", not counted")
        times = f"{cell.measured * 1e3:.1f} ms | {cell.predicted * 1e3:.1f} ms"
        yield f"| {cell.setting.name} | {cell.plan} | {times} | {error} | {cell.spread:.1%} | {cell.used:.0%} |"
    yield ""
    for words, chosen in (
        ("replays, blocking", [cell for cell in cells if cell.setting.ratio and BLOCKING in cell.plan]),
        ("replays, overlapping", [cell for cell in cells if cell.setting.ratio and OVERLAPPING in cell.plan]),
        ("real models, blocking", [cell for cell in cells if not cell.setting.ratio and BLOCKING in cell.plan]),
        ("real models, overlapping", [cell for cell in cells if not cell.setting.ratio and OVERLAPPING in cell.plan]),
        ("all", cells),
    ):
        errors = [abs(cell.error) for cell in chosen if cell.counts]
        busy = sum(cell.busy for cell in chosen)
        rest = f"{busy} with busy cores, {len(chosen) - len(errors) - busy} not steady"
        found = f"median |error| {median(errors):.2%}, worst {max(errors):.2%}" if errors else "nothing to count"
        yield f"* {words}: {len(errors)} cells, {found}; {rest}"
    other = [f"{cell.setting.name} {cell.plan}" for cell in cells if not cell.as_planned]
    yield f"* collectives not as planned: {', '.join(other) or 'none'}"
    gaps = [(cell.measured - cell.predicted) / cell.collectives * 1e3 for cell in cells
            if cell.counts and cell.setting.ratio and OVERLAPPING in cell.plan]  # fmt: skip
    if gaps:
        ends = f"{min(gaps):.2f} to {max(gaps):.2f} ms"
        yield f"* replays, overlapping, measured less predicted, for each collective: {median(gaps):.2f} ms ({ends})"
    yield from _gains(cells)
    missing = [setting.name for setting in settings if not (folder / f"{setting.name}-runs.json").exists()]
    yield f"* not measured: {', '.join(missing) or 'nothing'}"


def _gains(cells: Sequence[Cell]) -> Iterator[str]:
    """Planned groups against one per block, where both count."""
    found = {(cell.setting, cell.plan): cell for cell in cells if cell.counts}
    pairs = [
        (one, other)
        for (setting, plan), one in found.items()
        if plan.startswith(PLANNED) and (other := found.get((setting, plan.replace(PLANNED, EACH))))
    ]
    slower = []
    gains: dict[str, list[tuple[float, float]]] = {model: [] for model in MODELS}
    for one, other in pairs:
        gained, promised = (1 - a / b for a, b in ((one.measured, other.measured), (one.predicted, other.predicted)))
        gains[one.setting.model].append((gained, promised))
        if -gained > max(0.01, one.spread, other.spread):
            slower.append(f"{one.setting.name} {one.plan} ({gained:+.1%})")
    yield f"* planned groups slower than one per block by more than 1 % and the spread: {', '.join(slower) or 'none'}"
    for model, rows in gains.items():
        if rows:
            measured, promised = (median(column) for column in zip(*rows, strict=True))
            most = max(row[0] for row in rows)
            yield (
                f"* {model}: planned groups saved {measured:.1%} in the median ({promised:.1%} predicted), at most "
                f"{most:.1%}, in {len(rows)} pairs"
            )


HEAD = """\
# FSDP2 between emulated hosts

Steps of real `fully_shard` over gloo, between network namespaces whose links are shaped, at settings drawn by a seed.
Networks were measured with `osf bench`; nothing is fitted to the steps. `blocking` is FSDP2 over gloo as it is,
`overlapping` launches collectives in the background. Each ran under one group per block and under planned groups, by
turns. Cells in which ranks used more than 90 % of the cores, or whose repeats differ by more than 5 %, do not count.

The host's work for each collective is in the model, as `osf bench` measures it: it was not when these were drawn, and
their clusters take that of `benchmarks/live_sharded/hosts.json`, measured later, beside other work: single values moved
by up to 2.6 times between two measurements. `overlapping` runs here had
two collectives at once, and are predicted so. Steps still take longer than predicted where more ranks than cores share
a machine, the median of real models more than before: a collective under way is held up where hosts work for the next,
likely ([spans](attribution.md)). Of real models the host's work is scaled to the run's own step without communication.

`--page` writes this page, `--show` prints every cell.

Settings of other seeds, each by `python benchmarks/live_sharded.py benchmarks/live_sharded/SEED --seed SEED --show`:

* 20261215, drawn before the host's work was in the model: 39 cells count, median |error| 3.69 % (6.65 before), worst
  18.6 %; overlapping ones 5.9 (replays) and 10.8 % (real). Groups planned without it lost up to 9.4 %.
* 20261216 (`--replays`), drawn after, one collective at a time, beside other work on the machine: 15 cells, median
  0.89 %, worst 15.4 % (8 ranks); of the overlapping ones only 4 are steady. No planned groups lost.

"""


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--only", type=int, default=NETWORKS, help="networks to measure at most")
    parser.add_argument("--replays", action="store_true", help="leave real models out")
    parser.add_argument("--hosts", action="store_true", help=f"write {HOSTS.relative_to(ROOT)}, which takes 15 minutes")
    parser.add_argument("--list", action="store_true", help="print the settings, measure nothing")
    parser.add_argument("--show", action="store_true", help="print what FOLDER holds, measure nothing")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.relative_to(ROOT)} from what FOLDER holds")
    arguments = parser.parse_args(words)
    settings = [one for one in drawn(arguments.seed) if one.ratio or not arguments.replays]
    if arguments.hosts:
        measure_hosts()
        return
    if arguments.list:
        print("\n".join(setting.name for setting in settings))
        return
    if not (arguments.show or arguments.page):
        measure(arguments.folder, settings, arguments.only)
    lines = list(show(arguments.folder, settings))
    if arguments.page:
        PAGE.write_text(HEAD + "\n".join(lines[lines.index("") + 1 :]) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
