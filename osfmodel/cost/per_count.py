"""What cost models share that know each worker count by itself: finding its entry, the counts there are, fitting each.

Entries are those of a cluster (AlphaBeta, Pieces, Table): all have ``workers`` and ``collective``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from osfmodel.cost.fitting import Fit, Sample
from osfmodel.errors import CostError


class Entry(Protocol):
    """What is known of one collective between one number of workers."""

    @property
    def workers(self) -> int:
        """The worker count."""

    @property
    def collective(self) -> str:
        """All-reduce, or another of COLLECTIVES."""


Known = TypeVar("Known", bound=Entry)


def entry(
    entries: Sequence[Known], workers: int, collective: str, cluster: str, kind: str, has: str = "has it for"
) -> Known:
    """The one for ``workers`` and ``collective``. Raises CostError where there is none, naming those that are.

    For the message, ``cluster`` is its name, ``kind`` what an entry is called, ``has`` what goes before those that are.
    """
    for one in entries:
        if (one.workers, one.collective) == (workers, collective):
            return one
    known = sorted(one.workers for one in entries if one.collective == collective)
    other = "osf bench measures others, and words such as ring:50us,10Gbps serve any"
    have = f"{has} {', '.join(map(str, known))}; {other}" if known else f"has no such {kind}"
    raise CostError(f"no {collective} {kind} for {workers} workers: cluster {cluster!r} {have}")


def counts(entries: Iterable[Entry]) -> tuple[int, ...]:
    """The worker counts that have an all-reduce entry, increasing."""
    return tuple(sorted(one.workers for one in entries if one.collective == "all_reduce"))


def fit(
    samples: Sequence[Sample], field: str, one: Callable[[int, Sequence[Sample]], tuple[Any, Sequence[float]]]
) -> Fit:
    """A fit of each worker count by itself: ``one`` gives its entry and the residuals of its samples.

    ``parameters`` = {field: the entries}. Raises CostError without samples.
    """
    if not samples:
        raise CostError("there are no samples to fit")
    entries = []
    residuals: dict[int, float] = {}
    for workers in sorted({sample.workers for sample in samples}):
        chosen = [i for i, sample in enumerate(samples) if sample.workers == workers]
        found, errors = one(workers, [samples[i] for i in chosen])
        entries.append(found)
        residuals.update(zip(chosen, errors, strict=True))
    return Fit.of(samples, {field: tuple(entries)}, [residuals[i] for i in range(len(samples))])
