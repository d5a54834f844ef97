"""Run a sweep: in this process, on an executor of :mod:`concurrent.futures`, or on a Dask cluster."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Executor
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any

from osfmodel.entities.errors import JobError, UsageError
from osfmodel.planning.sweep.columns import Record
from osfmodel.planning.sweep.grid import Batch, Grid, load_grid
from osfmodel.planning.sweep.records import records
from osfmodel.planning.sweep.results import Sweep
from osfmodel.planning.sweep.stores import MemoryStore, Store, open_store

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
