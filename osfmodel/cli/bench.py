"""The command ``osf bench``."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path

import click

from osfmodel.cli.app import WORKLOAD, OneOf, parse_limit, print_text, require_writable, save_or_print, teller, warn
from osfmodel.cli.groups import OUTPUT, WRITTEN, GroupedCommand, OptionGroup, require_inputs_kept
from osfmodel.cost.clusters import load_cluster
from osfmodel.counting import load_workload
from osfmodel.entities.cluster import COLLECTIVES, Cluster
from osfmodel.entities.errors import OsfError, UsageError
from osfmodel.entities.executors import DDP, EXECUTORS, RunSupport
from osfmodel.entities.files import documents, profiles
from osfmodel.entities.gpus import GIGA, TERA
from osfmodel.entities.lookup import suggestion
from osfmodel.entities.units import parse_bytes
from osfmodel.runtime import bench
from osfmodel.runtime.bench import BenchRequest, measured_cluster, powers, sizes_for, surroundings_of, unmet
from osfmodel.runtime.bench.measured_cluster import Findings, Surroundings
from osfmodel.runtime.job import Place, Watchdog, explained, group, place_of, require_torch, together
from osfmodel.runtime.job.measuring import job_of
from osfmodel.show.profiles import summary

MEASURING = {name: row.run for name, row in EXECUTORS.items() if row.run is not None and row.run.bench}
"""Executors that measure through collectives of their own instead of torch's."""
MEASURED = OptionGroup("Measurement")
FLIGHTS = "1,2,4"
ALONE = "kernels are measured in one process, without a network"
KERNELS = OptionGroup(
    "Kernels of a GPU",
    switch="--kernels",
    without={
        MEASURED.heading: ALONE,
        **{f"--{name}": ALONE for name in ("merge", "executor", "backend", "network", "name", "timeout")},
    },
)


@click.command(name="bench", cls=GroupedCommand)
@OUTPUT.option("-o", "--output", metavar="FILE", type=WRITTEN, help="Write to FILE (.json), atomically.")
@OUTPUT.option(
    "--merge",
    metavar="FILE",
    type=WRITTEN,
    help="Add this worker count to the cluster in FILE, which is overwritten without -o.",
)
@click.option(
    "--executor", type=OneOf([DDP.name, *MEASURING]), default=DDP.name, show_default=True,
    help="Executor whose collectives are measured: torch's (ddp), or Horovod's with the cost of its loop.",
)  # fmt: skip
@click.option("--backend", type=OneOf(["gloo", "nccl"]), help="Backend; default: nccl with GPUs, else gloo.")
@MEASURED.option(
    "--for", "workload", type=WORKLOAD, metavar="WORKLOAD", help="Measure at the sizes that this workload's plans send."
)
@MEASURED.option("--min-size", "smallest", default="1KiB", show_default=True, metavar="SIZE", help="Smallest size.")
@MEASURED.option("--max-size", "largest", default="64MiB", show_default=True, metavar="SIZE", help="Largest size.")
@MEASURED.option(
    "--in-flight", default=FLIGHTS, show_default=True, metavar="K,K...", help="Concurrent collectives to try."
)
@MEASURED.option(
    "--collective", "collectives", multiple=True, metavar="NAME,NAME...",
    help="Collectives to measure beside all_reduce: reduce_scatter, all_gather. Default: all.",
)  # fmt: skip
@MEASURED.option("--repeat", type=click.IntRange(1), default=20, show_default=True, help="Maximum repeats per size.")
@MEASURED.option(
    "--compute", type=OneOf(["busy", "sleep", "none"]), default="busy", show_default=True,
    help="Computation whose slowdown is measured: matrix products, sleeps (as in a replay), or none.",
)  # fmt: skip
@MEASURED.option(
    "--quick", is_flag=True,
    help="All-reduces alone, one at a time: what osf doctor needs, in about a minute. Instead of --in-flight, "
    "--collective and --compute.",
)  # fmt: skip
@KERNELS.option(
    "--kernels", is_flag=True, help="Time matrix products, attention, a copy and a launch of this GPU (or CPU) instead."
)
@KERNELS.option(
    "--seconds", type=click.IntRange(1), default=60, show_default=True, help="Longest time for all kernels."
)
@OUTPUT.option("--network", metavar="WORDS", help="Network description for the file; default: its interface.")
@OUTPUT.option("--name", help="Name of the cluster; default: the file's.")
@click.option("--timeout", default="60s", show_default=True, metavar="TIME", help="Longest wait for another rank.")
def bench_command(
    output: str | None,
    merge: str | None,
    executor: str,
    backend: str | None,
    workload: str | None,
    smallest: str,
    largest: str,
    in_flight: str,
    collectives: tuple[str, ...],
    repeat: int,
    compute: str,
    quick: bool,
    kernels: bool,
    seconds: int,
    network: str | None,
    name: str | None,
    timeout: str,
) -> None:
    """Measure the collectives of this job's ranks: time by size, several in flight, and how much they slow computation.

    Runs on every rank, under torchrun or another launcher that sets the same environment. Rank 0 writes the file.
    Measurements up to an interruption or a failure are kept in FILE.partial.json.

    With --kernels, one process measures its own GPU. The file then stands for a GPU: llama3-8b:my-gpu.json,batch4.

    \b
    Example:
      torchrun --nproc-per-node 8 -m osfmodel bench -o my-cluster.json
      torchrun --nnodes 4 --nproc-per-node 8 ... -m osfmodel bench --for resnet50-v100 -o my-cluster.json
      torchrun --nproc-per-node 4 -m osfmodel bench --merge my-cluster.json
      torchrun --nnodes 4 --nproc-per-node 8 ... -m osfmodel bench --quick -o for-doctor.json
      osf bench --kernels -o my-gpu.json
    """
    target = output or merge
    if target is not None and Path(target).suffix != ".json":
        raise UsageError(f"-o {target}: osf bench writes JSON: name it .json")
    if kernels:
        _measure_kernels(output, seconds)
        return
    limit = parse_limit(timeout)
    place = place_of(os.environ, "bench", least=2)
    writes = place.rank == 0
    if writes and target is not None:
        require_writable(target)
        require_inputs_kept([_partial(target)])
    known = _mergeable(merge) if writes else None
    sizes = _sizes(workload if writes else None, parse_bytes(smallest), parse_bytes(largest))
    # A cluster file prices all-reduces; the others are measured beside them.
    chosen = tuple(kind for kind in COLLECTIVES if kind in ("all_reduce", *_kinds(collectives)))
    flights = _flights(in_flight)
    if quick:
        if collectives or in_flight != FLIGHTS or compute != "busy":
            raise UsageError("--quick measures all-reduces alone: leave --in-flight, --collective and --compute out")
        flights, chosen, compute = (1,), ("all_reduce",), "none"
    label = name or (Path(target).name.partition(".")[0] if target else "measured")
    asked = BenchRequest(
        bench.MeasurementRequest(sizes, flights, repeat, compute, chosen, quick), network, label, target
    )
    require_torch("osf bench")
    support = MEASURING.get(executor)
    if support is not None:
        if merge is not None or workload is not None or backend not in (None, support.backend):
            raise UsageError(
                f"--executor {executor} measures {support.backend} at sizes from --min-size on: leave --merge and "
                "--for out"
            )
        _bench_under(support, asked, limit, place.on(support.backend))
        return
    place = place.on(backend)
    found, surroundings = together(place, limit, partial(_measured, asked, limit, place))
    if writes:
        cluster = measured_cluster.cluster_of(found, surroundings, label)
        _write(cluster if known is None else measured_cluster.updated(known, cluster, found.effects), target)
        for doubt in found.doubts:
            warn(doubt)


def _measure_kernels(output: str | None, seconds: int) -> None:
    """Measure the device at hand, and write the file that words name."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UsageError("--kernels measures one GPU in one process: start it without torchrun, or on one rank")
    if output is not None:
        require_writable(output)
    require_torch("osf bench --kernels")
    from osfmodel.runtime.bench.surface import measured_surface  # not loaded for a cluster

    try:
        found = measured_surface(seconds, teller(), warn)
    except (RuntimeError, TypeError) as error:
        raise explained(error, "kernels were measured") from None
    text = json.dumps(found, separators=(",", ":")) + "\n"
    if output is None:
        print_text(text)
        return
    profiles.write_text(output, text)
    rates = ", ".join(f"{dtype} {rate / TERA:.3g}" for dtype, rate in found["gpu"]["operations_per_s"].items())
    said = f"{found['gpu']['called']}: {rates} TFLOP/s, {found['gpu']['bytes_per_s'] / GIGA:.3g} GB/s"
    click.echo(f"osf: wrote {output}: {said}", err=True)


def _bench_under(support: RunSupport, asked: BenchRequest, limit: float, place: Place) -> None:
    """Measure through the executor's own collectives."""
    import_module(support.module).require_installed("osf bench")
    measure = import_module(support.bench).measure_cluster
    cluster = together(place, limit, partial(measure, asked, limit, place, teller(place.rank == 0)))
    if place.rank == 0:
        _write(cluster, asked.target)


def _measured(asked: BenchRequest, limit: float, place: Place, watch: Watchdog) -> tuple[Findings, Surroundings]:
    """Measure with the other ranks; rank 0 saves its samples if that breaks off."""
    beat = partial(watch.beat, "measuring the cluster")
    beat()
    job = job_of(place, limit, group(limit), beat)
    found, surroundings = Findings(), surroundings_of(job, unmet(asked.network))
    if place.rank == 0 and asked.target is not None:
        watch.saving = partial(_keep, watch, found, surroundings, asked)
    (agreed, *_) = job.gather(asked.request)
    bench.measure(job, agreed, found, teller(place.rank == 0))
    return found, surroundings


def _mergeable(merge: str | None) -> Cluster | None:
    if merge is None:
        return None
    known = load_cluster(Path(merge))
    measured_cluster.require_mergeable(known)
    return known


def _sizes(workload: str | None, smallest: int, largest: int) -> tuple[int, ...]:
    if workload is not None:
        return sizes_for(load_workload(workload))
    if not bench.FLOAT <= smallest < largest:
        raise UsageError(f"--min-size and --max-size: sizes go from {bench.FLOAT} B up, the smaller one first")
    return powers(smallest, largest)


def _kinds(given: Sequence[str]) -> tuple[str, ...]:
    """The collectives in lists with commas; all without any. Raises UsageError for an unknown one."""
    names = [name.strip().lower() for words in given for name in words.split(",")]
    for name in names:
        if name not in COLLECTIVES:
            raise UsageError(f"--collective {name!r} is not known: {suggestion(name, COLLECTIVES)}")
    return tuple(names) or COLLECTIVES


def _flights(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= 64 for part in parts):
        raise UsageError(f"--in-flight {text!r}: write counts from 1 to 64 such as 1,2,4")
    return tuple(sorted({1, *map(int, parts)}))


def _partial(target: str) -> Path:
    """The file for measurements of an interrupted run."""
    return Path(target).with_suffix(".partial.json")


def _keep(watch: Watchdog, found: Findings, surroundings: Surroundings, asked: BenchRequest) -> None:
    if not found.usable or asked.target is None:
        return
    path = _partial(asked.target)
    try:
        profiles.save(measured_cluster.unfinished(found, surroundings, asked.label), path)
    except OsfError as error:
        watch.kept = f"; what was measured could not be kept: {error}"
    else:
        watch.kept = f"; what was measured until then is in {path}"


def _write(cluster: Cluster, target: str | None) -> None:
    if target is None:
        print_text(documents.encode(documents.document_of(cluster)))
        return
    save_or_print(cluster, target)
    with suppress(OSError):
        _partial(target).unlink(missing_ok=True)  # of an earlier run, which this one replaces
    click.echo(f"osf: wrote {target}: {summary(cluster)}", err=True)
