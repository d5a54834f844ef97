"""Run a sweep: in this process, on an executor of :mod:`concurrent.futures`, or on a Dask cluster.

The record of a point is its values and what is predicted for it, flat, with units in its keys.
"""

from __future__ import annotations

import gc
import os
import shlex
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Executor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from threading import current_thread, main_thread
from typing import Any

from osfmodel.entities.errors import JobError, OsfError, UsageError
from osfmodel.entities.workload import Workload
from osfmodel.planning.predictions import PricedSubjects
from osfmodel.planning.scaling.curve import ScalePoint, TrainingLength
from osfmodel.planning.scaling.scale import ScaleOptions, ScaleTask
from osfmodel.planning.sweep import DEFAULTS, GIVEN, KEYS, USUAL, Record
from osfmodel.planning.sweep.grid import Batch, Grid, Point, groups_of, load_grid
from osfmodel.planning.sweep.results import Sweep
from osfmodel.planning.sweep.stores import MemoryStore, Store, open_store
from osfmodel.planning.what_if import WhatIf, parse_factor

MILLION = 1e6


def records(batch: Batch) -> list[Record]:
    """The record of each point of a batch. An impossible point has an ``error`` and nothing that is predicted."""
    batch = batch if batch.workload is None else batch._replace(workload=_own(batch.workload))
    subjects = PricedSubjects()
    with _seldom_collected():
        return [_record(batch, subjects, key, point) for key, point in batch.points]


def _own(workload: Workload) -> Workload:
    """A workload of the sweep's own: changed ones, which are kept on it, go with the last batch of an equal one."""
    found = _last.get("workload")
    if found != workload:
        found = _last["workload"] = replace(workload)
    return found


_last: dict[str, Workload] = {}


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Let Python look less often for objects in circles: points make many objects, and hardly any circles.

    The threshold is the whole process's: threads leave it as it is.
    """
    if current_thread() is not main_thread():
        yield
        return
    usual = gc.get_threshold()
    gc.set_threshold(max(usual[0], 100_000) if usual[0] else 0, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _record(batch: Batch, subjects: PricedSubjects, key: int, point: Point) -> Record:
    found: Record = {**dict.fromkeys(KEYS), **point, "point": key, "command": _command(batch, point)}
    if batch.workload is None:
        return found | {"error": batch.error}
    try:
        made = _predicted(batch, subjects, point)
    except OsfError as error:
        return found | {"error": " ".join(str(error).split())}
    return found | _values(made)


def _predicted(batch: Batch, subjects: PricedSubjects, point: Point) -> ScalePoint:
    assert batch.workload is not None
    price = point["price"]
    compute = point["compute"]
    what_if = WhatIf(
        compute=1.0 if compute is None else parse_factor("compute", str(compute)),
        **{name: point[name] for name in ("batch_size", "global_batch", "accumulate", "compression")},  # type: ignore[arg-type]
    )
    options = ScaleOptions(
        plans=(str(point["plan"]),),
        limit=batch.limit,
        what_if=what_if,
        training=TrainingLength(batch.samples, None if price is None else float(price)),
        groups=groups_of(point),
    )
    task = ScaleTask.of(batch.workload, batch.cluster, options, subjects)
    return task.point(batch.workload, int(point["workers"] or 1))


def _values(made: ScalePoint) -> Record:
    """The predicted values, by column."""
    band = made.band
    cost, what = made.cost, "training"
    if cost is None and made.cost_per_hour is not None:
        tokens = made.tokens_per_s
        rate, what = (made.samples_per_s, "million samples") if tokens is None else (tokens, "million tokens")
        cost = None if rate is None else made.cost_per_hour / 3600 * MILLION / rate
    return {
        "batch_size": made.workload.batch_size,
        "step_time_s": made.time,
        "low_s": None if band is None else band.low,
        "high_s": None if band is None else band.high,
        "samples_per_s": made.samples_per_s,
        "tokens_per_s": made.tokens_per_s,
        "scaling_factor": made.scaling_factor,
        "mfu": made.mfu,
        "peak_memory_bytes": None if made.best.peak is None else made.best.peak.bytes,
        "reserved_memory_bytes": made.best.reserved,
        "fits": made.fits,
        "fits_chance": made.best.chance,
        "cost_per_hour": made.cost_per_hour,
        "training_hours": made.hours,
        "cost": cost,
        "cost_of": None if cost is None else what,
    }


OPTION_NAMES = {"batch_size": "batch-size", "global_batch": "global-batch"}
SAID = ("workload", "effects")
"""Columns that a command has in another form."""


def _command(batch: Batch, point: Point) -> str:
    """The command for a point alone."""
    words = ["osf", "scale", str(point["workload"])]
    for name in GIVEN:
        value = point[name]
        if name in SAID or (name != "plan" and value == DEFAULTS[name]):
            continue
        words += [f"--{OPTION_NAMES.get(name, name)}", f"{value:g}" if isinstance(value, float) else str(value)]
    if point["effects"] != USUAL:
        words += [part for one in str(point["effects"]).split() for part in ("--effect", one)]
    if batch.limit is not None:
        words += ["--memory", f"{batch.limit.bytes}B", *_option("optimizer", batch.limit.optimizer)]
    return shlex.join([*words, *_option("samples", batch.samples)])


def _option(name: str, value: str | float | None) -> list[str]:
    return [] if value is None else [f"--{name}", str(value)]


AHEAD = 4
"""Batches in flight for each worker: memory of a sweep does not grow with its size."""
LOSSES = 5
"""Number of pools of processes after which a sweep is given up."""
LOCAL = "local"
"""Address of a Dask cluster on this machine, made for the sweep."""
CONNECT = "10s"
GO_ON = "What was written is kept: the same command goes on from there"
Told = Callable[[int, int, int], None]


def sweep(
    grid: Mapping[str, Any] | str | os.PathLike[str] | Grid,
    output: str | os.PathLike[str] | None = None,
    *,
    executor: Executor | None = None,
    jobs: int = 1,
    dask: str | None = None,
    progress: Told | None = None,
) -> Sweep:
    """Predict every point of a grid; ``docs/how-to/sweep.md`` lists its keys and the columns of the result.

    output:   .csv, .jsonl, .parquet (a folder) or .duckdb, to which records are appended as they come, and whose points
              are not computed again; None keeps them in memory
    executor: computes batches of points; ``jobs`` processes of this machine, or ``dask`` (address of a scheduler, or
              "local") do without one
    progress: called after each batch with (points there, those that were there before, points in all)

    Records come in the order of the grid, whatever computes them. A point that fails has its reason in ``error``.
    Raises UsageError and DataError before anything is computed, and JobError where workers are lost again and again.
    """
    made = grid if isinstance(grid, Grid) else load_grid(grid)
    if sum(chosen for chosen in (executor is not None, dask is not None, jobs != 1)) > 1:
        raise UsageError("executor, dask and jobs exclude one another: give one of them")
    if jobs < 1:
        raise UsageError(f"jobs {jobs}: give 1 or more")
    with ExitStack() as opened:
        store = MemoryStore() if output is None else open_store(output)
        opened.callback(store.close)
        compute = opened.enter_context(_engine(executor, jobs, dask))
        _run(made, store, compute, progress or (lambda there, before, whole: None))
    return Sweep(made.name, None if output is None else str(output), getattr(store, "held", ()), made.remarks)


Compute = Callable[[Iterator[Batch]], Iterator[list[Record]]]
"""Computes the records of each batch, in the same order."""


def _run(grid: Grid, store: Store, compute: Compute, progress: Told) -> None:
    known = {record["point"] for record in store.records()}
    before = computed = 0

    def done(key: int) -> bool:
        nonlocal before
        before += key in known
        return key in known

    for found in compute(grid.batches(done)):
        store.append(found)
        computed += len(found)
        progress(before + computed, before, len(grid))
    if not computed:
        progress(before, before, len(grid))


@contextmanager
def _engine(executor: Executor | None, jobs: int, dask: str | None) -> Iterator[Compute]:
    if executor is not None:
        yield lambda batches: _in_flight(batches, deque(), executor, lambda: AHEAD * (os.cpu_count() or 1))
    elif dask is not None:
        with _dask_client(dask) as client:
            yield partial(_on_dask, client)
    elif jobs > 1:
        yield lambda batches: _in_processes(batches, jobs)
    else:
        yield lambda batches: map(records, batches)


def _in_flight(
    batches: Iterator[Batch], waiting: deque[Batch], executor: Executor, most: Callable[[], int]
) -> Iterator[list[Record]]:
    """The records of ``waiting`` and of further batches, of which a bounded number is in flight.

    ``waiting`` holds those that were begun: where the executor breaks, they are left in it for the next one.
    """
    futures = deque(executor.submit(records, batch) for batch in waiting)
    try:
        while True:
            while len(waiting) < most() and (batch := next(batches, None)) is not None:
                waiting.append(batch)
                futures.append(executor.submit(records, batch))
            if not waiting:
                return
            found = futures[0].result()
            futures.popleft()
            waiting.popleft()
            yield found
    finally:
        for future in futures:
            future.cancel()


def _in_processes(batches: Iterator[Batch], jobs: int) -> Iterator[list[Record]]:
    """The records of batches, computed by processes of this machine; those that are lost are replaced, a few times."""
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    waiting: deque[Batch] = deque()
    for _ in range(LOSSES):
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            try:
                yield from _in_flight(batches, waiting, pool, lambda: AHEAD * jobs)
            except BrokenProcessPool:
                continue
            return
    raise JobError(
        f"processes of the sweep were lost {LOSSES} times: is there too little memory? Give fewer jobs. {GO_ON}"
    )


@contextmanager
def _dask_client(address: str) -> Iterator[Any]:
    """A client of a scheduler, or of a new cluster with a worker for each core of this machine."""
    try:
        import distributed
    except ImportError:
        raise UsageError("Dask is not installed: pip install 'osfmodel[dask]'") from None
    with ExitStack() as opened:
        if address == LOCAL:
            cores = os.cpu_count() or 1
            where = opened.enter_context(
                distributed.LocalCluster(n_workers=cores, threads_per_worker=1, dashboard_address=None)
            )
        else:
            where = _required_address(address)
        try:
            yield opened.enter_context(distributed.Client(where, timeout=CONNECT, set_as_default=False))
        except (OSError, TimeoutError) as error:
            raise UsageError(f"--dask {address}: no scheduler answers there: {error}") from None


def _required_address(address: str) -> str:
    """``address``, if it can be the address of a scheduler. Raises UsageError."""
    from distributed.comm import get_address_host_port

    try:
        get_address_host_port(address)
    except ValueError:
        raise UsageError(f"--dask {address}: no address of a scheduler: give tcp://HOST:PORT, or local") from None
    return address


def _on_dask(client: Any, batches: Iterator[Batch]) -> Iterator[list[Record]]:
    """The records of batches, computed by the workers of a Dask cluster: as many as there are at each moment."""
    from distributed import KilledWorker

    def most() -> int:
        return AHEAD * max(1, int(sum(client.nthreads().values())))

    try:
        yield from _in_flight(batches, deque(), client.get_executor(pure=False), most)
    except KilledWorker as error:
        raise JobError(f"a batch of points killed several Dask workers: {error}. {GO_ON}") from None
    except (CancelledError, OSError) as error:
        raise JobError(f"the Dask scheduler was lost: {error or type(error).__name__}. {GO_ON}") from None
    except ModuleNotFoundError as error:
        raise JobError(f"a Dask worker cannot import osfmodel: {error}: install it there too. {GO_ON}") from None
