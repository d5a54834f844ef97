"""How well fits predict what they were not fitted on, over the measured tables of OSFMODEL_DATA:

    OSFMODEL_DATA=... python benchmarks/fits.py [--tables] [--json]

*Over sizes*: fitted on every second size of a table, tested on the others; tables with 8 such sizes or more. All
methods see the same sizes, the ends included, so that some predict one size beyond their range.
*Over worker counts*: fitted on some counts, tested on another, over the sizes stated. The time is the smaller of out
of place and in place. Nothing is fitted, and no number of lines is chosen, on a row that is tested.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from osfmodel.cost import COST_MODELS, Fit, cost_of
from osfmodel.cost.fitting import fit_minimum, predict, samples_of
from osfmodel.cost.protocols import loads
from osfmodel.cost.shapes import Array
from osfmodel.entities.cluster import Cluster, Table
from osfmodel.formats import Hints, import_file

TABLES = (
    "echo-azure-nda100v4/nccl_all_reduce_2to128.csv",
    "aiconfigurator/nccl_all_reduce_half.csv",
    "vtrain/nccl_lut_1node.csv",
    "vidur/a100_dgx_all_reduce.csv",
    "deepops/dgxa100_2nodes_8xhdr.csv",
    "aws-efa/g5_8xlarge_2nodes_25g.csv",
    "aws-efa/p4d_2nodes_2022.csv",
    "aws-efa/p4d_2nodes_nccl2.8.csv",
    "oci/a100_2nodes.csv",
)
FEWEST = 8
"""Held-out sizes that a table must have."""
KIB, GIB = 2**10, 2**30


class Held(NamedTuple):
    """Relative errors, predicted / measured - 1, of one table on its held-out sizes."""

    source: str
    name: str
    workers: int
    powers_of_two: bool
    errors: Array

    @property
    def median(self) -> float:
        """Median of the absolute errors."""
        return float(np.median(np.abs(self.errors)))


def clusters(data: Path, file: str) -> list[Cluster]:
    """The clusters that ``osf import`` reads from a table."""
    path = data / "comm_tables" / file
    return [noun for noun in import_file(path, Hints(path.stem)) if isinstance(noun, Cluster)]


def tables(data: Path) -> Iterator[tuple[str, str, Table]]:
    """(source, cluster, table) of all tables that are held out over sizes."""
    for file in TABLES:
        for cluster in clusters(data, file):
            for table in cluster.tables:
                if len(table.sizes) // 2 >= FEWEST:
                    yield file.partition("/")[0], cluster.name, table


def by_model(model: str) -> Callable[[Table, Array], Array]:
    """Predictions of a cost model fitted to a table."""

    def predictions(table: Table, sizes: Array) -> Array:
        found = COST_MODELS[model].fit(samples_of([table]), 1)
        return np.asarray(cost_of(Cluster("fitted", model, **found.parameters), table.workers)(sizes))

    return predictions


def power_law(table: Table, sizes: Array) -> Array:
    """Straight lines between the points in logarithms of size and time; beyond the last as the table goes on."""
    inside = np.exp(np.interp(np.log(sizes), np.log(table.sizes), np.log(table.times)))
    return np.where(sizes > table.sizes[-1], by_model("tabulated")(table, sizes), inside)


METHODS: Mapping[str, Callable[[Table, Array], Array]] = {
    "tabulated (linear)": by_model("tabulated"),
    "table, log-log": power_law,
    "piecewise (min of K)": by_model("piecewise"),
    "hockney (one line)": by_model("hockney"),
}


def every_second(data: Path, method: Callable[[Table, Array], Array], first: int = 0) -> list[Held]:
    """Held-out errors of each table, fitted on its first, third, fifth... size, or with ``first`` 1 the others."""
    found = []
    for source, name, table in tables(data):
        seen = replace(table, sizes=table.sizes[first::2], times=table.times[first::2])
        sizes = np.array(table.sizes[1 - first :: 2], dtype=float)
        errors = method(seen, sizes) / np.array(table.times[1 - first :: 2]) - 1
        powers = all(size & (size - 1) == 0 for size in table.sizes)
        found.append(Held(source, name, table.workers, powers, errors))
    return found


def over_sizes(held: list[Held]) -> dict[str, Any]:
    """The figures of one method."""
    medians = [row.median for row in held]
    powers = np.abs(np.concatenate([row.errors for row in held if row.powers_of_two]))
    worst = max(held, key=lambda row: row.median)
    return {
        "tables": len(held),
        "median_of_medians": float(np.median(medians)),
        "largest_median": worst.median,
        "largest_median_of": f"{worst.name}, {worst.workers} workers",
        "p95_powers_of_two": float(np.percentile(powers, 95)),
    }


def over_workers(
    cluster: Cluster, model: str, fitted: tuple[int, ...], asked: tuple[int, ...], span: tuple[int, int]
) -> tuple[Array, Fit]:
    """Errors at the worker counts ``asked`` of a fit on the counts ``fitted`` at all their sizes."""
    found = COST_MODELS[model].fit(
        samples_of(table for table in cluster.tables if table.workers in fitted), cluster.gpus_per_node
    )
    priced = replace(cluster, cost_model=model, nodes=None, **found.parameters)
    rows = [
        cost_of(priced, sample.workers)(sample.size) / sample.time - 1
        for sample in samples_of(table for table in cluster.tables if table.workers in asked)
        if span[0] <= sample.size <= span[1]
    ]
    return np.array(rows), found


def extrapolations(data: Path) -> list[dict[str, Any]]:
    """Echo's 64 GPUs from 2 to 32, and vTrain's 3 and 6 from 2, 4 and 8, by the models that serve any count."""
    (echo,) = clusters(data, TABLES[0])
    cases = [("echo", echo, (2, 4, 8, 16, 32), (64,), (64 * KIB, GIB))]
    for cluster in clusters(data, TABLES[2]):
        name = f"vtrain {cluster.name.rpartition('-')[2]}"
        one_node = replace(cluster, gpus_per_node=8)
        cases += [(name, one_node, (2, 4, 8), (count,), (1, GIB)) for count in (3, 6)]
        cases.append((name, one_node, (2, 4, 8), (3, 6), (1, GIB)))
    rows = []
    for name, cluster, fitted, asked, span in cases:
        for model in ("hierarchical" if name == "echo" else "ring", "nccl", "protocols"):
            errors, found = over_workers(cluster, model, fitted, asked, span)
            size = np.abs(errors)
            rows.append({
                "case": name, "model": model, "asked": asked, "n": len(errors),
                "median": float(np.median(size)), "p90": float(np.percentile(size, 90)), "worst": float(size.max()),
                "bias": float(np.median(errors)), "residual": found.median_abs_residual,
                "lines": len(found.parameters.get("protocols", (1,))),
            })  # fmt: skip
    return rows


def forms(data: Path) -> list[dict[str, Any]]:
    """Trees or rings between nodes, told apart on other machines than Echo's 64 GPUs.

    Fitted on one node of A100s (aiconfigurator, or Echo's 2 to 8) and on two nodes (DeepOps); asked: DeepOps' four.
    """
    (two,), (four,) = clusters(data, TABLES[4]), clusters(data, "deepops/dgxa100_4nodes.csv")
    nodes = {"aiconfigurator": clusters(data, TABLES[1])[0], "echo": clusters(data, TABLES[0])[0]}
    asked = samples_of(four.tables)
    rows = []
    for name, node in nodes.items():
        fitted = samples_of([*(table for table in node.tables if table.workers <= 8), *two.tables])
        for form in ("tree", "ring"):

            def regressors(workers: int, size: int, form: str = form) -> tuple[float, ...]:
                once, in_hops, in_bytes, hops, per_byte = loads(workers, 8, 1)
                hops = hops if form == "tree" else 2 * (-(-workers // 8) - 1)
                return once, once * size, in_hops, in_bytes * size, hops, per_byte * size

            pieces = [np.array(piece) for piece in fit_minimum(fitted, regressors).pieces]
            inputs = np.array([regressors(sample.workers, sample.size) for sample in asked])
            errors = predict(pieces, inputs) / np.array([sample.time for sample in asked]) - 1
            rows.append({"node": name, "form": form, "n": len(errors), "median": float(np.median(np.abs(errors)))})
    return rows


def by_source(data: Path) -> None:
    """The largest and the middle of the tables' medians of each source, tabulated beside piecewise."""
    print("Median |error| of held-out sizes by source: middle and largest of its tables, tabulated | piecewise")
    methods = [every_second(data, METHODS[name]) for name in ("tabulated (linear)", "piecewise (min of K)")]
    for source in dict.fromkeys(row.source for row in methods[0]):
        medians = [[row.median for row in held if row.source == source] for held in methods]
        shown = " | ".join(f"{np.median(of_one):5.1%} {max(of_one):6.1%}" for of_one in medians)
        print(f"  {source:22} {len(medians[0]):2} tables  {shown}")


def show(data: Path, with_tables: bool) -> None:
    """All figures, for a person."""
    print("Over sizes: fitted on every second size, tested on the others")
    for name, method in METHODS.items():
        held = every_second(data, method)
        for figures in (over_sizes(held), over_sizes(every_second(data, method, 1))):
            print(
                f"  {name:22} {figures['tables']} tables: median of medians {figures['median_of_medians']:.1%}, "
                f"largest median {figures['largest_median']:.1%} ({figures['largest_median_of']}), "
                f"p95 over powers of two {figures['p95_powers_of_two']:.1%}"
            )
            name = "  the halves exchanged"  # noqa: PLW2901
        for row in held if with_tables else ():
            worst = np.abs(row.errors).max()
            print(f"    {row.name:70} {row.workers:3} n={len(row.errors):3} {row.median:6.1%} worst {worst:6.1%}")
    by_source(data)
    print("Over worker counts: fitted on 2-32 (echo) or 2, 4, 8 (vtrain)")
    for row in extrapolations(data):
        print(
            f"  {row['case']:12} at {', '.join(map(str, row['asked'])):5} {row['model']:13} n={row['n']:4} "
            f"median {row['median']:.1%}, p90 {row['p90']:.1%}, worst {row['worst']:.1%}, bias {row['bias']:+.1%}; "
            f"lines {row['lines']}, median residual of the fit {row['residual']:.1%}"
        )
    print("Form between nodes: fitted on one and two nodes, asked for four (DeepOps)")
    for row in forms(data):
        print(f"  in-node figures of {row['node']:15} {row['form']}: median {row['median']:.1%} (n={row['n']})")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tables", action="store_true", help="a row per table")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    folder = os.environ.get("OSFMODEL_DATA")
    if not folder:
        sys.exit("OSFMODEL_DATA does not name the folder of published figures")
    if arguments.json:
        sizes = {name: over_sizes(every_second(Path(folder), method)) for name, method in METHODS.items()}
        print(
            json.dumps(
                {"over_sizes": sizes, "over_workers": extrapolations(Path(folder)), "forms": forms(Path(folder))},
                indent=1,
            )
        )
    else:
        show(Path(folder), arguments.tables)


if __name__ == "__main__":
    main()
