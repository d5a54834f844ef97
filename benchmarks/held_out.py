"""Coverage of error bands on sources that had no part in them, now and with the bands of 2026-11-22. Run it anywhere:

    python benchmarks/held_out.py [--json]

Every run of the ledger is predicted as a user predicts it (docs/reference/bands.md): the time on one GPU is known, the
network is in words, nothing is fitted, and usual effects and bands are learned without the source and without others on
the same machines. ``before`` has no usual effects and the bands of that day, which were learned from predictions with
fitted effects, these runs among them; prices are those of today in both.
"""

from __future__ import annotations

import argparse
import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from statistics import median

from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.engine.bands import quantile
from osfmodel.entities.effects import NO_EFFECTS
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.entities.files.profiles import load_workload
from osfmodel.entities.measurement import Measurement
from osfmodel.entities.plan import Plan
from osfmodel.entities.workload import Workload
from osfmodel.ledger import LEDGER
from osfmodel.ledger.as_used import Job, UsedSummary, asked, judged_of, reliability, summary_of, used_of
from osfmodel.ledger.check import check, used_overall
from osfmodel.ledger.sources import bcaffe

RATIO_EDGES, BANDWIDTH_EDGES = (0.1, 0.3, 1.0, 3.0), (0.3e9, 1e9, 3e9, 3e10)
BEFORE = {
    (0, 2): 0.141, (0, 3): 0.059, (0, 4): 0.060, (1, 0): 0.150, (1, 1): 0.152, (1, 2): 0.141,
    (2, 0): 0.150, (2, 1): 0.259, (2, 2): 0.141, (3, 0): 0.268, (3, 1): 0.259, (4, 0): 0.386,
}  # fmt: skip
"""Half widths of 2026-11-22 by cell: communication per computation, and bytes per second of the network."""


def before(workload: Workload, plan: Plan, pricing: Pricing) -> tuple[float, float] | None:
    """Prediction and half width as on that day; None if nothing is communicated."""
    timeline = predict_timeline(workload, plan, pricing)
    price = pricing.cost()(workload.gradient_bytes)
    ratio = timeline.communication_time / workload.compute_time
    if not ratio or not price:
        return None
    place = bisect_right(RATIO_EDGES, ratio), bisect_right(BANDWIDTH_EDGES, workload.gradient_bytes / price)
    cell = min(BEFORE, key=lambda one: (abs(one[0] - place[0]) + abs(one[1] - place[1]), one))
    width = BEFORE[cell]
    if pricing.uncertainty > STATED_THEN:
        slower = predict_timeline(workload, plan, pricing.slower(1 + THEN)).iteration_time
        width += slower / timeline.iteration_time - 1
    return timeline.iteration_time, width


THEN, STATED_THEN = 0.4, 0.3
"""Uncertainty of prices from data sheets on that day, and the largest of prices that had none then."""


def rows_before(source: str) -> Iterator[tuple[float, bool]]:
    """(error, whether the band held it) of each run of a source; none of sharded plans, which had no band that day."""
    recipe, runs = LEDGER[source], load_measurements(source)
    assert recipe.jobs is not None
    for run, job in zip(runs, recipe.jobs(runs), strict=True):
        if isinstance(job, str) or run.workers == 1:
            continue
        used = asked(job, run.workers, lambda workload, cluster: NO_EFFECTS)
        found = None if used.plan.sharding else before(*used)
        if found is not None:
            error = found[0] / run.iteration_time - 1
            yield error, abs(error) <= found[1]


def otherwise() -> Iterator[tuple[str, str, UsedSummary]]:
    """(source, network, figures) with another network in words than the one that its runs are judged with.

    Pollux has ``ena`` there, and the B-Caffe of MPI through host memory none.
    """
    for source in LEDGER:
        recipe, runs = LEDGER[source], load_measurements(source)
        if source.startswith("pollux") and recipe.jobs is not None:
            asked_for = [one if isinstance(one, str) else one._replace(cluster=one.cluster.replace("ena", "tcp"))
                         for one in recipe.jobs(runs)]  # fmt: skip
            yield source, "nccl:t4x4,50Gbps/node,tcp", figures_of(source, runs, asked_for)
    runs = load_measurements("bcaffe")
    yield "bcaffe", RING, figures_of("bcaffe", runs, list(bcaffe_jobs(runs)))


RING = "ring:50us,10Gbps"


def bcaffe_jobs(runs: Sequence[Measurement]) -> Iterator[Job | str]:
    """Its runs as if somebody asked for them with a ring in words."""
    alone = next(run for run in runs if (run.workload, run.workers) == (bcaffe.PROFILE, 1))
    workload = bcaffe.with_forward(load_workload(bcaffe.PROFILE), alone.iteration_time)
    for run in runs:
        yield Job(workload, RING, bcaffe.plan_of(run, workload)) if run.workload == bcaffe.PROFILE else "no profile"


def figures_of(source: str, runs: Sequence[Measurement], asked_for: Sequence[Job | str]) -> UsedSummary:
    """A source under other jobs, in bands and effects in which it has no part."""
    group = LEDGER[source].group or source
    found = summary_of(source, used_of([("", one) for _, one in judged_of(source, group, runs, asked_for)]))
    assert found is not None
    return found


def report() -> dict[str, object]:
    checked = [one for one in check() if one.as_used is not None]
    rows = []
    for one in checked:
        now = summary_of(one.source, one.used)
        assert now is not None
        errors = list(rows_before(one.source))
        then = [abs(error) for error, _ in errors]
        rows.append(
            {
                "source": one.source,
                "real": not one.emulated,
                "n": now.n,
                "median": now.median_abs_error,
                "p90": now.p90_abs_error,
                "bias": now.bias,
                "coverage": now.coverage,
                "width": now.width,
                "median_before": median(then) if then else None,
                "p90_before": quantile(then, 0.9),
                "bias_before": median(error for error, _ in errors) if errors else None,
                "coverage_before": sum(held for _, held in errors) / len(errors) if errors else None,
            }
        )
    real = [row for row in rows if row["real"]]
    compared = [row for row in real if row["coverage_before"] is not None]
    overall = used_overall(checked)
    assert overall is not None
    return {
        "sources": rows,
        "now": {
            **overall._asdict(),
            "width": median(number(row["width"]) for row in real),
            "one_gpu": median(number(row["median"]) for row in compared),
        },
        "before": {
            "median_abs_error": median(number(row["median_before"]) for row in compared),
            "bias": median(number(row["bias_before"]) for row in compared),
            "coverage": mean([number(row["coverage_before"]) for row in compared]),
        },
        "otherwise": [(source, network, one._asdict()) for source, network, one in otherwise()],
        "reliability": reliability({one.source: [row.judged for row in one.used] for one in checked if real_of(one)}),
    }


def real_of(one: object) -> bool:
    return not getattr(one, "emulated", False)


def number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def show(found: dict[str, object]) -> Iterator[str]:
    """The report as Markdown tables."""
    yield "| source | runs | median | p90 | bias | in band | width / p90 inside | before: median | bias | in band |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for row in found["sources"]:  # type: ignore[attr-defined]
        now = (
            f"{row['median']:.1%} | {row['p90']:.1%} | {row['bias']:+.1%} | {row['coverage']:.0%} | {row['width']:.1f}"
        )
        then = " | | "
        if row["coverage_before"] is not None:
            then = f"{row['median_before']:.1%} | {row['bias_before']:+.1%} | {row['coverage_before']:.0%}"
        yield f"| {row['source']} | {row['n']} | {now} | {then} |"
    now, then = found["now"], found["before"]  # type: ignore[assignment]
    yield ""
    yield "| sources of real machines | now | before |"
    yield "|---|---|---|"
    for name, key, form in (
        ("median of their medians", "median_abs_error", ".1%"),
        ("median bias", "bias", "+.1%"),
        ("mean coverage of 90 % bands", "coverage", ".0%"),
    ):
        yield f"| {name} | {now[key]:{form}} | {then[key]:{form}} |"
    yield f"| median of the medians, without sharded sources | {now['one_gpu']:.1%} | |"
    yield f"| median of half width / p90 of errors inside | {now['width']:.1f} | |"
    yield ""
    yield "| source | network instead | median | bias | in band |"
    yield "|---|---|---|---|---|"
    for source, network, one in found["otherwise"]:  # type: ignore[attr-defined]
        figures = f"{one['median_abs_error']:.1%} | {one['bias']:+.1%} | {one['coverage']:.0%}"
        yield f"| {source} | `{network}` | {figures} |"
    yield ""
    yield "| stated | found |"
    yield "|---|---|"
    for level, part in found["reliability"].items():  # type: ignore[attr-defined]
        yield f"| {level:.0%} | {part:.0%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    found = report()
    print(json.dumps(found, indent=1) if parser.parse_args().json else "\n".join(show(found)))


if __name__ == "__main__":
    main()
