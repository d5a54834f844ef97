"""Compare predicted with measured: the error of every run of the ledger, and of each source.

Plans that were measured side by side, each with its prediction and its speed-up over the default. Logs of
trainers, and other step times, held against one prediction that was saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from osfmodel.cost.clusters import load_cluster, pricing_of
from osfmodel.cost.pricing import Pricing
from osfmodel.diagnosis.comparing import compare_readings, reading_of
from osfmodel.diagnosis.comparing.readings import COMPARABLE, OF_STEPS, Reading, in_band, the_step
from osfmodel.diagnosis.comparing.statistics import FASTER, SLOWER
from osfmodel.engine.bands import JudgedRun
from osfmodel.entities.batches import variation_of
from osfmodel.entities.compression import NONE, compressed
from osfmodel.entities.display import how_many, show_share, show_time
from osfmodel.entities.errors import DataError, OsfError, UsageError
from osfmodel.entities.files import profiles
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.entities.lookup import suggestion
from osfmodel.entities.measurement import COMPUTATION, DEFAULTS, OF_ONE_REPEAT, UNKNOWN, Measurement, Source
from osfmodel.entities.plan import Plan
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.workload import Workload
from osfmodel.formats.source_text import silent
from osfmodel.formats.trainers import quartile_spread
from osfmodel.ledger import LEDGER
from osfmodel.ledger.as_used import Used, judge_one, judged_of, reliability, used_of
from osfmodel.ledger.recipe import Recipe, label_of, not_predicted, row_of, stated_plan, without_unsteady
from osfmodel.ledger.results import TIME, Beside, Checked, PlanRuns, Row, UsedOverall, Verdict
from osfmodel.targets.named_plans import make_plan


def side_by_side(runs: Sequence[Measurement], rows: Sequence[Row]) -> tuple[Beside, ...]:
    """The groups of ``runs`` under the same conditions but several plans, the default among them.

    ``rows`` are the runs beside their predictions, in the same order.
    """
    groups: dict[object, list[tuple[Measurement, Row]]] = {}
    for run, row in zip(runs, rows, strict=True):
        groups.setdefault((run.workload, run.cluster, run.workers, run.shared_conditions), []).append((run, row))
    return tuple(
        _paired(group) for group in groups.values() if set(DEFAULTS) & set(plans := _plans(group)) and len(plans) > 1
    )


def _plans(group: Sequence[tuple[Measurement, Row]]) -> list[str]:
    return list(dict.fromkeys(run.plan for run, _ in group))


def _paired(group: Sequence[tuple[Measurement, Row]]) -> Beside:
    first = group[0][0]
    turns = tuple(_turns(plan, [pair for pair in group if pair[0].plan == plan]) for plan in _plans(group))
    return Beside(first.workload, first.cluster, first.workers, first.shared_conditions, turns)


def _turns(plan: str, pairs: Sequence[tuple[Measurement, Row]]) -> PlanRuns:
    times = [run.iteration_time for run, _ in pairs]
    unknown = next((row for _, row in pairs if row.predicted is None), None)
    row = unknown or pairs[0][1]
    return PlanRuns(plan, len(pairs), median(times), max(times) / min(times) - 1, row.predicted, row.note, row.steady)


NAMED = "nothing: workload, cluster and plan as named in the file"
PARTLY_OWN = f"{NAMED}; runs imported with workload and cluster from one file are self-consistency"
OWN = "the runs themselves, with which workload and cluster were imported from one file"
"""Phrases for the data that a file's runs were fitted on."""


class RunConditions(NamedTuple):
    """The conditions that a run states: names or files of its inputs, and everything else that times depend on.

    For a run of the executor the conditions hold the plan itself.
    """

    workload: str
    cluster: str
    plan: str
    workers: int
    conditions: tuple[tuple[str, str], ...]


class Named(NamedTuple):
    """The inputs of a run's prediction, and the sources of its workload and its cluster."""

    workload: Workload
    pricing: Pricing
    plan: Plan
    sources: tuple[Source, Source]


def check(sources: Sequence[str] = (), tolerance: float | None = None) -> tuple[Checked, ...]:
    """Judge the named sources of the ledger, or measurement files; the whole ledger without names.

    ``tolerance`` replaces the recorded ones. A file's runs are predicted from the profiles and plans that they name.
    Raises UsageError for an unknown source, DataError for a file that cannot be used.
    """
    return tuple(_check(name, tolerance) for name in dict.fromkeys(sources or LEDGER))


def overall(checked: Sequence[Checked]) -> tuple[float | None, float | None]:
    """Medians over the sources of the median and the 90th percentile of time errors; only predictions count."""
    predicted = [one for one in checked if not one.self_consistency]
    pairs = [(one.median_abs_error, one.p90_abs_error) for one in predicted if one.compares == TIME]
    known = [(middle, high) for middle, high in pairs if middle is not None and high is not None]
    if not known:
        return None, None
    return median(middle for middle, _ in known), median(high for _, high in known)


def used_overall(checked: Sequence[Checked]) -> UsedOverall | None:
    """The sources of the ledger that are of real machines, as used; None if there are fewer than two."""
    found = [one.as_used for one in checked if one.listed and one.as_used and not one.emulated]
    covered = [one.coverage for one in found if one.coverage is not None]
    if len(found) < 2 or not covered:
        return None
    middles = median(one.median_abs_error for one in found), median(one.bias for one in found)
    return UsedOverall(len(found), *middles, plain_sum(covered) / len(covered))


def _check(name: str, tolerance: float | None) -> Checked:
    recipe = LEDGER.get(name)
    if recipe is None:
        path = _file(name)
        runs = load_measurements(path)
        named = cache(partial(_named, path.parent))  # turns of one plan are predicted from the same
        verdict = _by_name(runs, named, path.parent)
        beside, used = side_by_side(runs, verdict.rows), used_of(_as_named(name, runs, verdict.rows, named))
        return Checked(name, verdict.rows, verdict.fitted_on, tolerance, beside, used=used, remarks=verdict.remarks)
    verdict, used = _verdict(name, recipe)
    within = recipe.tolerance if tolerance is None else tolerance
    return Checked(name, verdict.rows, verdict.fitted_on, within, (), True, recipe.compares, used)


@cache
def _verdict(name: str, recipe: Recipe) -> tuple[Verdict, tuple[Used, ...]]:
    """The verdict on a bundled source, which no run of the process changes, and its runs as used."""
    runs = load_measurements(name)
    jobs = () if recipe.jobs is None else recipe.jobs(runs)
    judged = judged_of(name, recipe.group or name, runs, jobs) if jobs else []
    return recipe.judge(runs), used_of((label_of(run), one) for run, one in judged)


def _file(name: str) -> Path:
    path = Path(name)
    if name.endswith(".json") or path.is_file():
        return path
    if path.is_dir():
        raise UsageError(f"{name}: that is a folder: give the measurement files in it")
    known = f"known are {', '.join(LEDGER)}, or give a measurement file"
    raise UsageError(f"unknown source {name!r}: {suggestion(name, LEDGER, known)}")


def _by_name(runs: Sequence[Measurement], named: Callable[[RunConditions], Named], folder: Path) -> Verdict:
    """The runs of a file, each predicted from the profiles and plans, or files beside it, that it names."""
    rows = without_unsteady(runs, [_row(run, named) for run in runs])
    counted = [row.own for row in rows if row.counts]
    fitted_on = OWN if counted and all(counted) else PARTLY_OWN if any(counted) else NAMED
    return Verdict(rows, fitted_on, tuple(dict.fromkeys(said for run in runs if (said := _loaded(run, folder)))))


ANOTHER_LOAD = 0.1
"""Relative difference of the computation measured in a run from its profile's that is reported."""


def _loaded(run: Measurement, folder: Path) -> str:
    """A sentence if the run's computation took another time than its profile has; "" if not, or not measured."""
    told = dict(run.conditions).get(COMPUTATION)
    try:
        profile = profiles.load_workload(_beside(run.workload, folder)).compute_time
        measured = profile if told is None else float(told)
    except (OsfError, ValueError):
        return ""  # of which its rows tell
    if abs(measured / profile - 1) <= ANOTHER_LOAD:
        return ""
    return (
        f"computation itself took {measured / profile:.2g} times the profile's on {how_many(run.workers, 'worker')} "
        f"({show_time(measured)}, {run.workload} has {show_time(profile)}): errors are mostly of that; profile the "
        "model under the load of the run"
    )


def _as_named(
    name: str, runs: Sequence[Measurement], rows: Sequence[Row], named: Callable[[RunConditions], Named]
) -> Iterator[tuple[str, JudgedRun]]:
    """The runs of a file that count as predictions, for their error bands."""
    for run, row in zip(runs, rows, strict=True):
        if row.counts and not row.own and run.workers > 1:
            found = named(_conditions_of(run))
            one = judge_one(name, "", run, found.workload, found.plan, found.pricing)
            if one is not None:
                yield row.label, one


def _conditions_of(run: Measurement) -> RunConditions:
    told = tuple(pair for pair in run.conditions if pair[0] not in OF_ONE_REPEAT)
    return RunConditions(run.workload, run.cluster, run.plan, run.workers, told)


def _beside(name: str, folder: Path) -> str | Path:
    """The path of a file, relative to the measurement file's folder; other names are unchanged."""
    return folder / name if name.endswith(".json") else name


def _named(folder: Path, run: RunConditions) -> Named:
    """The workload, prices and plan that a run names. A replay that differs from its profile is predicted as it ran."""
    conditions = dict(run.conditions)
    profile = profiles.load_workload(_beside(run.workload, folder))
    cluster = load_cluster(_beside(run.cluster, folder))
    workload = compressed(variation_of(conditions).of(profile), conditions.get("compression", NONE))
    pricing = pricing_of(cluster, run.workers, workload).under(conditions)
    plan = stated_plan(conditions, workload, pricing)
    if plan is None and run.plan.endswith(".json"):
        plan = profiles.load_plan(folder / run.plan)
    name = "single" if run.workers == 1 else run.plan  # one worker sends nothing, whatever its plan is called
    return Named(workload, pricing, plan or make_plan(name, workload, pricing), (profile.source, cluster.source))


def _row(run: Measurement, named: Callable[[RunConditions], Named]) -> Row:
    conditions = dict(run.conditions)
    if not run.samples:
        raise DataError(f"a run of {run.workload!r} has a peak of memory and no times: what is checked here are times")
    if conditions.get("buckets_as_planned", "yes") != "yes":
        return not_predicted(run, "DDP formed other buckets than those of the plan")
    lacking = [what for what, name in (("workload", run.workload), ("cluster", run.cluster)) if name == UNKNOWN]
    if lacking:
        names = f"it names no {' and no '.join(lacking)}, as osf import wrote none beside it"
        return not_predicted(run, f"{names} (without --kind it says why): name one in the run")
    if run.plan == UNKNOWN and run.workers > 1 and "sent" not in conditions:
        return not_predicted(run, "its trace does not say which buckets were sent: name a plan in the run")
    try:
        found = named(_conditions_of(run))
        of_run = found.sources if run.workers > 1 else found.sources[:1]  # a single worker uses no network
        own = all(run.source.same_import(source) for source in of_run)
        return row_of(run, found.workload, found.pricing, found.plan)._replace(own=own)
    except OsfError as error:
        return not_predicted(run, str(error))


def coverage(checked: Sequence[Checked]) -> dict[float, float]:
    """Found coverage of error bands by the stated one, over sources of real machines, or those of files."""
    real = [one for one in checked if one.used and not one.emulated]
    return reliability({one.source: [row.judged for row in one.used] for one in real})


def check_logs(
    logs: Sequence[str], prediction: str, tolerance: float | None = None, tell: Callable[[str], None] = silent
) -> tuple[Checked, ...]:
    """Judge the prediction of a step in a result of osf predict or osf scale by the median of the steps of each log.

    A log may also be step times or a measured run. ``tell`` receives oddities. Raises UsageError for files of anything
    else and for several predictions, DataError for a file without times.
    """
    predicted = reading_of(prediction, tell=tell)
    if predicted.kind != "prediction":
        raise UsageError(
            f"--prediction {prediction}: is none: give what osf predict or osf scale writes (-o FILE.json)"
        )
    the_step(predicted)
    return tuple(_checked(reading_of(log, tell=tell), predicted, tolerance) for log in logs)


def _checked(run: Reading, predicted: Reading, tolerance: float | None) -> Checked:
    if run.kind not in OF_STEPS or run.kind == predicted.kind:
        raise UsageError(f"{run.name} holds {COMPARABLE[run.kind]}: give a log with times of steps, or measured steps")
    change = compare_readings([predicted], [run]).leading.change
    times = [time for series in the_step(run).runs for time in series.times]
    where = in_band(predicted.subjects, change.candidate)
    noise = "beyond" if change.verdict in (SLOWER, FASTER) else "within"
    spread = f", spread {show_share(quartile_spread(times))}" if len(times) > 1 else ""
    told = f"{how_many(len(times), 'step')}{spread}, {noise} the noise"
    row = Row(run.name, change.candidate, change.baseline, note="; ".join(filter(None, (told, where))), is_time=True)
    return Checked(run.name, (row,), f"nothing here; the prediction is that of {predicted.name}", tolerance)
