"""Predicted against measured steps of FSDP2 and HSDP between emulated hosts, on settings drawn by seeds fixed before.

    python benchmarks/live_sharded.py                              # print what is kept: benchmarks/live_sharded
    python benchmarks/live_sharded.py --page                       # also write docs/ledger/emulated-fsdp.md
    python benchmarks/live_sharded.py FOLDER --seed 7 --show       # print what FOLDER holds of that seed
    python benchmarks/live_sharded.py FOLDER --seed 7              # measure what FOLDER lacks: 20 minutes
    python benchmarks/live_sharded.py FOLDER --seed 7 --list       # print the settings alone
    python benchmarks/live_sharded.py FOLDER --seed 7 --only 2     # measure two settings at most

A setting is a number of ranks, the rate of their links, a model, replayed or real by turns, and with 4 or 6 ranks by
chance two replicas (HSDP). Its network is measured with ``osf bench``. Then ``osf run --executor fsdp2`` trains under
plans by turns: one group per block, and the groups that the planner finds at these prices; each with collectives that
block, as FSDP2 does over gloo, and but for HSDP with collectives in the background. Replays compute 0.4 to 1.2 times
as long as communication takes at the rate of the links. Real models compute as the machine does, and are predicted
from ``osf profile`` on one rank. FOLDER keeps all files, written as they end. Cells whose ranks use more than 40 % of
the cores, and those whose repeats differ by more than 5 %, are told apart. Needs root, iproute2 and torch; nothing
else should run on the machine.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import live  # noqa: E402
from live_random import SPARE  # noqa: E402

from osfmodel import Layer, Plan, Workload, load_cluster, load_workload  # noqa: E402
from osfmodel.cost.clusters import pricing_of  # noqa: E402
from osfmodel.cost.pricing import Pricing  # noqa: E402
from osfmodel.engine import predict_timeline  # noqa: E402
from osfmodel.engine.bands import JudgedRun, band_of, gain_doubt  # noqa: E402
from osfmodel.entities.effects import REPLAYED_ON_CPU  # noqa: E402
from osfmodel.entities.executors import FSDP  # noqa: E402
from osfmodel.entities.files import profiles  # noqa: E402
from osfmodel.entities.files.measurements import load_measurements  # noqa: E402
from osfmodel.entities.files.notation import read  # noqa: E402
from osfmodel.entities.measurement import CPU_SHARE, Measurement  # noqa: E402
from osfmodel.entities.modules import blocks, wrapped  # noqa: E402
from osfmodel.entities.units import parse_bandwidth  # noqa: E402
from osfmodel.ledger.as_used import judge_one  # noqa: E402
from osfmodel.ledger.results import UNSTEADY  # noqa: E402
from osfmodel.planning.tuning.chances import chance, doubted  # noqa: E402
from osfmodel.solve.search.group_search import SETTINGS, GroupSearch, groups_for  # noqa: E402
from tests.live.cluster import Hosts, emulated  # noqa: E402

KEPT, DRAWS = Path(__file__).with_suffix(""), (20261217, 20261218)
"""Folders of draws, by seed."""
COUNT = 12
"""Settings of a draw."""
WORKERS, RATES, MODELS = (2, 3, 4, 6), (500, 1000, 2000, 3500, 5000), ("even", "tower", "headed")
"""Ranks, Mbit/s of each, and factories of benchmarks/live_models.py."""
LEAST, MOST = 0.4, 1.2
"""Computation of a replay over the communication of a step per block, at the rate of the links."""
ITERATIONS, REPEATS = 3, 2
BENCH = ("--min-size", "32KiB", "--max-size", "4MiB", "--repeat", "8", "--in-flight", "1")
EACH, PLANNED = "per-block", "planned"
BLOCKING, OVERLAPPING = "blocking", "overlapping"
PAGE = ROOT / "docs/ledger/emulated-fsdp.md"


class Setting(NamedTuple):
    """Ranks, Mbit/s of each, a model, the replay's computation over communication (0 for the real model), replicas."""

    workers: int
    rate: int
    model: str
    ratio: float = 0
    replicas: int = 1

    @property
    def network(self) -> str:
        """The name of its cluster."""
        return f"{self.workers}x{self.rate}mbit-{'replay' if self.ratio else 'real'}"

    @property
    def name(self) -> str:
        """The name of its other files."""
        replicas = f"-{self.replicas}-replicas" if self.replicas > 1 else ""
        kind = f"replay-x{self.ratio:g}" if self.ratio else "real"
        return f"{self.workers}x{self.rate}mbit-{self.model}-{kind}{replicas}"


def drawn(seed: int, count: int = COUNT) -> Iterator[Setting]:
    """So many settings, the same for the same seed."""
    source, before = random.Random(seed), set[Setting]()
    while len(before) < count:
        workers, rate, model = (source.choice(some) for some in (WORKERS, RATES, MODELS))
        ratio = LEAST * (MOST / LEAST) ** source.random()
        replicas = source.choice((1, 2)) if workers > 3 else 1
        setting = Setting(workers, rate, model, 0 if len(before) % 2 else float(f"{ratio:.2g}"), replicas)
        if setting not in before:
            before.add(setting)
            yield setting


@cache
def shape_of(model: str) -> Workload:
    """A profile whose layers take time by their elements: forward 1 second in all, backward 2."""
    import live_models  # noqa: PLC0415  (torch: what is kept is judged without)

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


def plans_of(workload: Workload, pricing: Pricing, replicas: int) -> Iterator[tuple[str, Plan]]:
    """The plans of a setting, by name."""
    for form in (BLOCKING, OVERLAPPING)[: 1 if replicas > 1 else 2]:
        search = GroupSearch(workload, pricing, replicas)
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
    stock = pricing_of(load_cluster(cluster), setting.workers)
    return stock.under(FSDP.conditions | (REPLAYED_ON_CPU if setting.ratio else {}))


def measure(folder: Path, settings: Sequence[Setting], most: int | None) -> None:
    """Everything of ``settings`` that is not in ``folder``; of so many at most."""
    folder.mkdir(parents=True, exist_ok=True)
    for setting in [one for one in settings if not (folder / f"{one.name}-runs.json").exists()][:most]:
        with emulated(setting.workers, f"{setting.rate}mbit", real_time=bool(setting.ratio)) as hosts:
            cluster = folder / f"{setting.network}.json"
            counts = {table.workers for table in load_cluster(cluster).tables} if cluster.exists() else set()
            parts = {setting.replicas, setting.workers // setting.replicas} - {1, setting.workers}
            for count in [*(parts - counts), setting.workers] if parts - counts or not counts else ():
                some = replace(hosts, prefixes=hosts.prefixes[:count], namespaces=hosts.namespaces[:count])
                _bench(cluster, setting, some, "--merge" if cluster.exists() else "-o")  # effects are the last ones
            profile, subject = folder / f"{setting.name}-workload.json", f"benchmarks.live_models:{setting.model}"
            if setting.ratio:
                profiles.save(replay_of(setting), profile)
            else:
                alone = replace(hosts, prefixes=hosts.prefixes[:1])
                live.osf(alone, ["profile", subject, "--name", setting.name, "-o", str(profile)])
            words = ["run", str(profile)] if setting.ratio else ["run", subject, "--workload", str(profile)]
            workload = load_workload(profile)
            for name, plan in plans_of(workload, pricing_for(setting, cluster), setting.replicas):
                path = folder / f"{setting.name}-{name}.json"
                profiles.save(plan, path)
                words += ["--plan", str(path)]
            words += ["--executor", "fsdp2", "--cluster", str(cluster)]
            words += ["--iterations", str(ITERATIONS), "--repeat", str(REPEATS)]
            unfinished = folder / f"unfinished-{setting.name}.json"
            live.osf(hosts, [*words, "-o", str(unfinished)])
            unfinished.rename(folder / f"{setting.name}-runs.json")
            print(setting.name, flush=True)


def _bench(cluster: Path, setting: Setting, hosts: Hosts, option: str) -> None:
    """Measure the network of a setting among ``hosts``: -o writes ``cluster``, --merge adds to it."""
    network = f"{setting.workers} network namespaces on a bridge, egress shaped to {setting.rate} Mbit/s by tc tbf"
    compute = ("--compute", "none") if setting.ratio else ()
    live.osf(hosts, ["bench", *BENCH, *compute, "--network", network, option, str(cluster)])


class Cell(NamedTuple):
    """A plan on a setting: what ran, its runs, and the measured and predicted seconds of a step."""

    setting: Setting
    plan: str
    workload: Workload
    sent: Plan
    pricing: Pricing
    runs: Sequence[Measurement]
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """predicted / measured - 1."""
        return self.predicted / self.measured - 1

    @property
    def spread(self) -> float:
        """The slowest repeat over the fastest, less 1."""
        times = [run.iteration_time for run in self.runs]
        return max(times) / min(times) - 1

    @property
    def used(self) -> float:
        """The largest share of the cores that the ranks used."""
        return max(float(run.condition(CPU_SHARE)) for run in self.runs)

    @property
    def inside(self) -> bool:
        """Whether the band of ``osf predict`` holds it."""
        band = band_of(self.workload, self.sent, predict_timeline(self.workload, self.sent, self.pricing), self.pricing)
        return band is not None and band.low <= self.measured <= band.high


def cells_of(folder: Path, setting: Setting) -> Iterator[Cell]:
    """The cells of a setting that was measured, predicted now."""
    path = folder / f"{setting.name}-runs.json"
    runs = load_measurements(path) if path.exists() else []
    profile = load_workload(folder / f"{setting.name}-workload.json") if runs else None
    for name in dict.fromkeys(run.plan for run in runs):
        assert profile is not None
        turns = [run for run in runs if run.plan == name]
        pricing = pricing_for(setting, folder / Path(turns[0].cluster).name)
        plan = read(turns[0].condition("sent"), profile)
        predicted = predict_timeline(profile, plan, pricing).iteration_time
        named = name.removeprefix(f"{setting.name}-").removesuffix(".json")
        yield Cell(
            setting, named, profile, plan, pricing, turns, median(run.iteration_time for run in turns), predicted
        )


class Gain(NamedTuple):
    """The time that planned groups save over one per block, as parts of the latter's.

    promised, low, high: predicted at the prices of the latter, and its interval
    measured, spread:    between medians; the slowest repeat of either over its fastest, less 1
    used:                the largest share of the cores that the ranks used
    """

    setting: Setting
    form: str
    promised: float
    low: float
    high: float
    measured: float
    spread: float
    used: float

    @property
    def slower(self) -> bool:
        """Whether the planned groups were slower by more than 1 % and the spread."""
        return live.lost(self.measured, self.spread)


def pairs_of(cells: Sequence[Cell]) -> Iterator[tuple[Cell, Cell]]:
    """Planned groups, and one per block, on each setting in each form."""
    found = {(cell.setting, cell.plan): cell for cell in cells}
    for (setting, plan), one in found.items():
        other = found.get((setting, plan.replace(PLANNED, EACH)))
        if plan.startswith(PLANNED) and other is not None:
            yield one, other


def gain_of(planned: Cell, each: Cell, doubt: float | None = None) -> Gain:
    """The gain of planned groups, with an interval by this doubt of ratios; by default that of osfmodel."""
    now, before = (
        [
            predict_timeline(workload, one.sent, prices).iteration_time
            for workload, prices in doubted(each.workload, each.pricing)
        ]
        for one in (planned, each)
    )
    low, high, _ = chance(now, before, gain_doubt(planned.sent, each.pricing) if doubt is None else doubt)
    promised = 1 - predict_timeline(each.workload, planned.sent, each.pricing).iteration_time / each.predicted
    return Gain(
        each.setting, planned.plan.partition("-")[2], promised, low, high, 1 - planned.measured / each.measured,
        max(planned.spread, each.spread), max(planned.used, each.used),
    )  # fmt: skip


def kept() -> Iterator[tuple[int, list[Cell]]]:
    """The seeds of the draws that are kept, each with its cells."""
    for seed in DRAWS:
        yield seed, [cell for setting in drawn(seed) for cell in cells_of(KEPT / str(seed), setting)]


def group_of(seed: int) -> str:
    """The source, and group of sources, of a draw."""
    return f"emulated-fsdp-{seed}"


def judged(cell: Cell, seed: int) -> list[JudgedRun]:
    """The runs of a cell beside its prediction; each draw is a group of its own."""
    asked, name = (cell.workload, cell.sent, cell.pricing), group_of(seed)
    found = (judge_one(name, name, run, *asked) for run in cell.runs)
    return [one._replace(measured=run.iteration_time) for one, run in zip(found, cell.runs, strict=True) if one]


def show(cells: Sequence[Cell]) -> Iterator[str]:
    """The cells and gains as tables, and how many are as they should be."""
    yield "| setting | plan | measured | predicted | error | spread | cores used |"
    yield "|---|---|--:|--:|--:|--:|--:|"
    for cell in cells:
        times = f"{cell.measured * 1e3:.1f} ms | {cell.predicted * 1e3:.1f} ms | {cell.error:+.1%}"
        yield f"| {cell.setting.name} | {cell.plan} | {times} | {cell.spread:.1%} | {cell.used:.0%} |"
    yield ""
    yield "| planned groups | promised | interval | measured | spread | cores used |"
    yield "|---|--:|--:|--:|--:|--:|"
    gains = [gain_of(*pair) for pair in pairs_of(cells)]
    for one in gains:
        said = f"{one.promised:+.1%} | {one.low:+.1%} to {one.high:+.1%} | {one.measured:+.1%}"
        yield f"| {one.setting.name}, {one.form} | {said} | {one.spread:.1%} | {one.used:.0%} |"
    yield ""
    yield from sums(cells, gains)


def sums(cells: Sequence[Cell], gains: Sequence[Gain]) -> Iterator[str]:
    """Errors of levels, and of gains, by groups of settings."""
    yield "| steps | cells | median error | worst | bias | in the band |"
    yield "|---|--:|--:|--:|--:|--:|"
    for words, some in (
        ("replays, blocking", [one for one in cells if one.setting.ratio and BLOCKING in one.plan]),
        ("replays, overlapping", [one for one in cells if one.setting.ratio and OVERLAPPING in one.plan]),
        ("real models, blocking", [one for one in cells if not one.setting.ratio and BLOCKING in one.plan]),
        ("real models, overlapping", [one for one in cells if not one.setting.ratio and OVERLAPPING in one.plan]),
        ("HSDP", [one for one in cells if one.setting.replicas > 1]),
        ("cores to spare", [one for one in cells if one.used <= SPARE]),
        ("busy cores", [one for one in cells if one.used > SPARE]),
        ("steady, all", [one for one in cells if one.spread <= UNSTEADY]),
    ):
        if some:
            sizes = [abs(one.error) for one in some]
            bias, inside = median(one.error for one in some), fmean(one.inside for one in some)
            yield f"| {words} | {len(some)} | {median(sizes):.1%} | {max(sizes):.1%} | {bias:+.1%} | {inside:.0%} |"
    yield ""
    yield "| gains | pairs | in the interval | within 3 points | promised less measured | slower | of those advised |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for words, chosen in (
        ("all", gains),
        ("cores to spare", [one for one in gains if one.used <= SPARE]),
        ("busy cores", [one for one in gains if one.used > SPARE]),
        ("steady", [one for one in gains if one.spread <= UNSTEADY]),
    ):
        if chosen:
            inside = sum(one.low <= one.measured <= one.high for one in chosen)
            near = sum(abs(one.promised - one.measured) <= live.NEAR for one in chosen)
            bias = 100 * fmean(one.promised - one.measured for one in chosen)
            slower, advised = sum(one.slower for one in chosen), [one for one in chosen if one.low > 0]
            yield (
                f"| {words} | {len(chosen)} | {inside} | {near} | {bias:+.1f} points | {slower} | "
                f"{sum(one.slower for one in advised)} of {len(advised)} |"
            )
    amiss = [f"{cell.setting.name} {cell.plan}" for cell in cells
             if any(run.condition("buckets_as_planned") != "yes" for run in cell.runs)]  # fmt: skip
    yield f"\nCollectives not as planned: {', '.join(amiss) or 'none'}."


HEAD = """\
# FSDP2 between emulated hosts

Where ranks share two cores, steps are predicted too short, most those of real models, which are profiled on one rank,
and of HSDP. No planned groups were slower than one group per block beyond the spread of repeats.

Steps of real `fully_shard` over gloo between network namespaces on two cores, at settings drawn by seeds fixed
before: 2 to 6 ranks, 0.5 to 5 Gbit/s, three models, replayed or real, some with two replicas (HSDP). `osf bench`
measured networks. `blocking` is FSDP2 over gloo as it is, `overlapping` has collectives in the background. One group
per block and planned groups took turns. `python benchmarks/live_sharded.py` prints every cell. Errors are predicted /
measured - 1. *Cores to spare*: ranks use at most 40 % of the cores. *Steady*: repeats differ by at most 5 %. *Slower*:
by more than 1 % and the spread. *Advised*: the interval is above 0.

"""
TAIL = """
Bands and intervals are learned from these two draws; from one alone, intervals hold 35 and 100 % of the gains of
the other ([gains](random-settings.md#gains-between-measured-plans)). Missed are the goals of 3 % for overlapping
steps (10 % at worst), of 3 points for 85 % of gains, and of 85 % inside.

Collectives in the background stand still while hosts that share cores work: `osf bench` measures the part
(`group_stall`). Collectives between busy ranks still take longer than alone, and those of two replicas go at once
([spans](attribution.md)). Six clusters had effects measured again afterwards.

Nothing is learned from two other draws (`python benchmarks/live_sharded.py benchmarks/live_sharded/SEED --seed SEED
--show`):

"""
UNLEARNED = {20261215: "planned without `group_stall`", 20261219: "six settings, measured last"}
"""Draws that are kept beside those, and how they differ."""


def page() -> str:
    """docs/ledger/emulated-fsdp.md, of what is kept."""
    cells = [cell for _, some in kept() for cell in some]
    learned = "\n".join(sums(cells, [gain_of(*pair) for pair in pairs_of(cells)]))
    return HEAD + learned + "\n" + TAIL + "".join(f"{line}\n" for line in unlearned())


def unlearned() -> Iterator[str]:
    """Gains and bands on the draws from which nothing is learned, a row each."""
    yield "| draw | promised less measured | in the interval | slower | steps in the band |"
    yield "|---|--:|--:|--:|--:|"
    for seed, words in UNLEARNED.items():
        cells = [cell for setting in drawn(seed) for cell in cells_of(KEPT / str(seed), setting)]
        gains = [gain_of(*pair) for pair in pairs_of(cells)]
        bias = 100 * fmean(one.promised - one.measured for one in gains)
        inside = sum(one.low <= one.measured <= one.high for one in gains)
        slower, held = sum(one.slower for one in gains), fmean(cell.inside for cell in cells)
        yield f"| {seed}, {words} | {bias:+.1f} points | {inside} of {len(gains)} | {slower} | {held:.0%} |"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="without it, what is kept is printed")
    parser.add_argument("--seed", type=int, default=DRAWS[0])
    parser.add_argument("--count", type=int, default=COUNT, help="settings to draw")
    parser.add_argument("--only", type=int, help="settings to measure at most")
    parser.add_argument("--list", action="store_true", help="print the settings, measure nothing")
    parser.add_argument("--show", action="store_true", help="print what FOLDER holds, measure nothing")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.relative_to(ROOT)} from what is kept")
    arguments = parser.parse_args(words)
    settings = list(drawn(arguments.seed, arguments.count))
    if arguments.list:
        print("\n".join(setting.name for setting in settings))
        return
    if arguments.folder and not arguments.show:
        measure(arguments.folder, settings, arguments.only)
    if arguments.folder:
        cells = [cell for setting in settings for cell in cells_of(arguments.folder, setting)]
    else:
        cells = [cell for _, some in kept() for cell in some]
    print("\n".join(show(cells)))
    if arguments.page:
        PAGE.write_text(page())


if __name__ == "__main__":
    main()
