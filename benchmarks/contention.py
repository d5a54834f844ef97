"""Several all-reduces at once, measured and by the model with one parameter per node count.

    OSFMODEL_DATA=FOLDER python benchmarks/contention.py

FOLDER holds the published figures. The first table compares three laws of one parameter per node count, fitted to the
same rows by least squares on relative errors; the time of one alone is taken as measured by each. ``held out``: fitted
to two, three and four at once, judged on five to eight. The second is gloo's, in which nothing is fitted.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import numpy as np

from osfmodel.cost import TableCost
from osfmodel.cost.pricing import Pricing, fit_gain, time_together

DATA = Path(os.environ.get("OSFMODEL_DATA", ""))
SIZE = 104857600
WIRE = 1.25e9
"""Bytes per second of 10 Gb/s Ethernet, one way."""
Times = dict[int, float]
"""Flows at once -> seconds of each."""


def measured() -> dict[int, Times]:
    """Nodes -> times."""
    found: dict[int, Times] = {}
    with open(DATA / "papers/simultaneous_allreduce_100MiB_10GbE.csv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(int(row["node_num"]), {})[int(row["job_num"])] = float(row["avg_latency"]) * 1e-6
    return found


def errors(found: Callable[[int], float], times: Times, least: int = 2) -> list[float]:
    return [found(flows) / time - 1 for flows, time in times.items() if flows >= least]


def best(law: Callable[[float, int], float], times: Times, parameters: np.ndarray) -> Callable[[int], float]:
    """The law with the parameter, of those given, whose squared relative error is least."""
    chosen = min(parameters, key=lambda value: sum(e**2 for e in errors(lambda k: law(value, k), times)))
    return lambda flows: law(chosen, flows)


def shared(times: Times) -> Callable[[int], float]:
    """Of ``osfmodel.cost.pricing``."""
    gain = fit_gain(times)
    return lambda flows: time_together(times[1], 0, gain, flows)


def capped(times: Times) -> Callable[[int], float]:
    """Rate min(c, B/n): one flow alone has a cap, and beyond B/c of them the network is full."""
    return best(lambda ratio, flows: times[1] * flows / min(flows, ratio), times, np.linspace(1, 8, 7001))


def penalised(times: Times) -> Callable[[int], float]:
    """T_k = a + k b M + (k-1) eta M, of which T_1 leaves (b + eta) M, the same for each further one."""
    return best(lambda slope, flows: times[1] * (1 + (flows - 1) * slope), times, np.linspace(0, 2, 20001))


LAWS: Mapping[str, Callable[[Times], Callable[[int], float]]] = {
    "X(n) = g(1 - (1 - 1/g)^n)": shared,
    "X(n) = min(n, B/c)": capped,
    "T_k = a + k b M + (k-1) eta M": penalised,
}


def early(times: Times) -> Times:
    return {flows: time for flows, time in times.items() if flows <= 4}


def laws() -> None:
    table = measured()
    print("| law | median | worst | held out, median | held out, worst |\n|---|---|---|---|---|")
    for name, fit in LAWS.items():
        fitted = [abs(e) for times in table.values() for e in errors(fit(times), times)]
        ahead = [abs(e) for times in table.values() for e in errors(fit(early(times)), times, least=5)]
        print(f"| {name} | {median(fitted):.1%} | {max(fitted):.1%} | {median(ahead):.1%} | {max(ahead):.1%} |")
    print()


def gains() -> None:
    print("| nodes | alone | two at once | gain | alone / network | two .. eight at once, fitted / measured - 1 |")
    print("|---|---|---|---|---|---|")
    for nodes, times in measured().items():
        full = 2 * (nodes - 1) / nodes * SIZE / WIRE
        shown = ", ".join(f"{100 * error:+.1f}" for error in errors(shared(times), times))
        print(
            f"| {nodes} | {times[1] * 1e3:.0f} ms | {times[2] / times[1]:.2f} x | {fit_gain(times):.2f} "
            f"| {times[1] / full:.2f} | {shown} % |"
        )
    print()


def gloo() -> None:
    """Two channels, gain 1, start-up and transfer from the table of single all-reduces."""
    document = json.loads((DATA / "emulated/ddp_gloo_4hosts_1gbit.json").read_text(encoding="utf-8"))
    alone = [(row["bytes"], row["seconds"]) for row in document["all_reduce_seconds"]]
    pricing = Pricing.of(TableCost(*zip(*alone, strict=True)))
    print("| bytes each | one | two at once | model | four at once | model |\n|---|---|---|---|---|---|")
    fours = {row["bytes_each"]: row["seconds"] for row in document["four_at_once_seconds"]}
    for row in document["two_at_once_seconds"]:
        size = row["bytes_each"]
        startup, transfer = pricing.split("all_reduce", size)
        two = startup + 2 * transfer
        figures = [startup + transfer, row["seconds"], two, fours[size], 2 * two]
        print(f"| {size} | " + " | ".join(f"{1e3 * figure:.1f} ms" for figure in figures) + " |")


if __name__ == "__main__":
    laws()
    gains()
    gloo()
