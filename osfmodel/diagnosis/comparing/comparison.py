"""Compare two readings: a verdict on the step, and the differences of its parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from osfmodel.diagnosis.comparing.readings import (
    BY_SIZE,
    EXACT,
    PRICES,
    STEPS,
    CollectiveUse,
    Reading,
    Timed,
    in_band,
    shared_kind,
)
from osfmodel.diagnosis.comparing.statistics import (
    FASTER,
    SAME,
    SLOWER,
    TOLERANCE,
    UNSURE,
    StepChange,
    exact_change,
    paired_change,
    require_tolerance,
    step_change,
)
from osfmodel.entities.display import VIEWED, brief, how_many, listed, show_share, show_time
from osfmodel.entities.errors import UsageError
from osfmodel.entities.trace import places

WORST_FIRST = (SLOWER, FASTER, UNSURE, SAME)
"""The verdicts, from the one that decides where several are compared."""
WORDS = {SLOWER: "Slower", FASTER: "Faster", SAME: "No difference", UNSURE: "Cannot tell"}
"""The verdicts in words."""
HOPELESS = 1.0
"""Noise floor from which times tell nothing."""
TAIL = 0.02
"""Relative change of the mean beyond the interval from which slow steps are mentioned."""
SHOWN = 5
"""Maximum number of names in a message."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A part of a step on both sides, in seconds; None where it has none."""

    name: str
    baseline: float | None
    candidate: float | None

    def __repr__(self) -> str:
        return brief(self, f"{self.name}: {self.change:+.4g} s")

    @property
    def change(self) -> float:
        """Seconds that it takes longer."""
        return (self.candidate or 0.0) - (self.baseline or 0.0)


@dataclass(frozen=True, slots=True)
class CollectiveDifference:
    """Collectives of one kind and process group, or of one size, on both sides; None where there are none."""

    baseline: CollectiveUse | None
    candidate: CollectiveUse | None

    def __repr__(self) -> str:
        return brief(self, f"{self.either.kind}: {self.change:+.4g} s")

    @property
    def either(self) -> CollectiveUse:
        """The one that there is, the baseline's first."""
        found = self.baseline or self.candidate
        if found is None:
            raise ValueError("collectives of neither side")
        return found

    @property
    def change(self) -> float:
        """Seconds that they take longer."""
        return (self.candidate.time if self.candidate else 0.0) - (self.baseline.time if self.baseline else 0.0)


@dataclass(frozen=True, slots=True)
class TimedChange:
    """The change of one subject, and of the parts of its usual step, largest first; the parts add up to the step's."""

    name: str
    how: str
    change: StepChange
    parts: tuple[Difference, ...] = ()

    def __repr__(self) -> str:
        return brief(self, f"{self.name}: {self.change!r}")


@dataclass(frozen=True, slots=True)
class Fact:
    """A condition that differs between the two sides."""

    name: str
    baseline: str
    candidate: str
    __repr__ = brief


@dataclass(frozen=True, slots=True)
class RunComparison:
    """A comparison of the runs of a candidate with those of a baseline.

    baselines, candidates: names of the files
    kind:        of their content, a key of COMPARABLE
    tolerance:   relative change that does not matter
    subjects:    changes of all that both sides have, the worst first
    collectives: largest difference first
    modules:     computation by module, largest difference first; empty if the files do not tell
    facts:       conditions that differ
    remarks:     limits of the comparison, one sentence each
    """

    baselines: tuple[str, ...]
    candidates: tuple[str, ...]
    kind: str
    tolerance: float
    subjects: tuple[TimedChange, ...]
    collectives: tuple[CollectiveDifference, ...]
    modules: tuple[Difference, ...]
    facts: tuple[Fact, ...]
    remarks: tuple[str, ...]
    to_dict, to_records, to_frame, _repr_html_ = VIEWED

    def __repr__(self) -> str:
        return brief(self, f"{' '.join(self.baselines)} -> {' '.join(self.candidates)}: {self.verdict}")

    @property
    def verdict(self) -> str:
        """``slower`` if anything is, else ``faster`` if anything is, else ``cannot-tell``, else ``no-difference``."""
        return self.leading.change.verdict

    @property
    def leading(self) -> TimedChange:
        """The subject that decides the verdict."""
        return self.subjects[0]

    @property
    def regression(self) -> bool:
        """Whether anything is slower, by more than the tolerance as far as is known."""
        return any(one.change.beyond(self.tolerance) for one in self.subjects)

    @property
    def sentence(self) -> str:
        """The verdict in a sentence or two: ``Slower: +5.2% (+3.1% to +7.4%), 40.1 ms -> 42.2 ms.``"""
        change, others = self.leading.change, self.subjects[1:]
        what = f" ({self.leading.name})" if others else ""
        span = f" ({change.interval})" if change.interval else ""
        times = f"{show_time(change.baseline)} -> {show_time(change.candidate)}"
        said = f"{WORDS[change.verdict]}{what}: {show_share(change.median, '+')}{span}, {times}."
        if self.regression:
            said += f" That is a regression beyond the tolerance of {show_share(self.tolerance)}."
        if others:
            counts = Counter(WORDS[one.change.verdict].lower() for one in others)
            rest = listed([f"{count} {verdict}" for verdict, count in sorted(counts.items())])
            said += f" Of {how_many(len(others), 'other')}: {rest}."
        return said


def compare_readings(
    baselines: Sequence[Reading], candidates: Sequence[Reading], tolerance: float = TOLERANCE
) -> RunComparison:
    """Compare one run of a candidate or several with those of a baseline; several show how far runs of one job differ.

    Raises UsageError if kinds differ or the two sides have nothing in common.
    """
    require_tolerance(tolerance)
    kind = shared_kind((*baselines, *candidates))
    pairs = _paired(baselines, candidates)
    changes = [_changed(old, new, tolerance, len(pairs)) for old, new in pairs]
    changes.sort(key=lambda one: (WORST_FIRST.index(one.change.verdict), -abs(one.change.median)))
    return RunComparison(
        tuple(one.name for one in baselines),
        tuple(one.name for one in candidates),
        kind,
        tolerance,
        tuple(changes),
        tuple(_collectives(baselines, candidates)),
        tuple(_modules(baselines, candidates)),
        tuple(_facts(baselines, candidates)),
        tuple(_remarks(changes[0], baselines, candidates)),
    )


def _paired(baselines: Sequence[Reading], candidates: Sequence[Reading]) -> list[tuple[list[Timed], list[Timed]]]:
    """Pairs of things in both sides, with their runs: of the same name, or the only one in every file."""
    sides = [[timed for one in readings for timed in one.subjects] for readings in (baselines, candidates)]
    if all(len(one.subjects) == 1 for one in (*baselines, *candidates)):
        return [(sides[0], sides[1])]
    found = []
    for name in dict.fromkeys(timed.name for timed in sides[1]):
        old, new = ([timed for timed in side if timed.name == name] for side in sides)
        if old:
            found.append((old, new))
    if not found:
        names = [listed(list(dict.fromkeys(timed.name for timed in side))[:SHOWN]) for side in sides]
        raise UsageError(
            f"{baselines[0].name} and {candidates[0].name} share nothing: one has {names[0]}, the other {names[1]}"
        )
    return found


def _changed(old: Sequence[Timed], new: Sequence[Timed], tolerance: float, comparisons: int) -> TimedChange:
    parts = tuple(_differences([one.parts for one in old], [one.parts for one in new]))
    hows = {one.how for one in (*old, *new)}
    name, how = new[0].name, STEPS if STEPS in hows else new[0].how
    before, after = ([run for one in side for run in one.runs] for side in (old, new))
    if how == EXACT:
        change = exact_change(*(fmean(run.median for run in runs) for runs in (before, after)))
    elif how in BY_SIZE:
        change = _by_size(old, new, tolerance, comparisons)
    else:
        change = step_change(before, after, tolerance, comparisons)
    return TimedChange(name, how, change, parts)


def _by_size(old: Sequence[Timed], new: Sequence[Timed], tolerance: float, comparisons: int) -> StepChange:
    """The change over the sizes that all have; of several runs the mean of each size."""
    sides = [[dict(zip(one.sizes, one.runs[0].times, strict=True)) for one in side] for side in (old, new)]
    shared = [size for size in new[0].sizes if all(size in table for side in sides for table in side)]
    if not shared:
        raise UsageError(f"{new[0].name}: no size was measured on both sides")
    before, after = ([fmean(table[size] for table in side) for size in shared] for side in sides)
    exact = all(one.how == PRICES for one in (*old, *new))
    return paired_change(before, after, tolerance, comparisons, exact)


def _differences(old: Sequence[Mapping[str, float]], new: Sequence[Mapping[str, float]]) -> Iterator[Difference]:
    """Differences by name, largest first; means of the runs of each side. None unless both sides tell."""
    sides = [[one for one in side if one] for side in (old, new)]
    if not all(sides):
        return
    names = dict.fromkeys(name for side in sides for one in side for name in one)
    rows = [Difference(name, *(_mean_of(side, name) for side in sides)) for name in names]
    yield from sorted(rows, key=lambda row: -abs(row.change))


def _modules(baselines: Sequence[Reading], candidates: Sequence[Reading]) -> Iterator[Difference]:
    """Differences by module; none where most names of the two sides differ, as made-up ones of traces may."""
    old, new = ([one.modules for one in side] for side in (baselines, candidates))
    mine, theirs = ({name for one in side for name in one} for side in (old, new))
    if 2 * len(mine & theirs) >= len(mine | theirs):
        yield from _differences(old, new)


def _mean_of(side: Sequence[Mapping[str, float]], name: str) -> float | None:
    """The mean under a name, 0 in those that lack it; None if all do."""
    return fmean(one.get(name, 0.0) for one in side) if any(name in one for one in side) else None


def _collectives(baselines: Sequence[Reading], candidates: Sequence[Reading]) -> Iterator[CollectiveDifference]:
    sides = [[_by_key(one) for one in side] for side in (baselines, candidates)]
    keys = dict.fromkeys(key for side in sides for one in side for key in one)
    means = ([_mean([one[key] for one in side if key in one]) for side in sides] for key in keys)
    found = [CollectiveDifference(*pair) for pair in means]
    if baselines[0].kind == "cluster":  # of which one side may have sizes and worker counts that the other never had
        found = [row for row in found if row.baseline is not None and row.candidate is not None]
    yield from sorted(found, key=lambda row: -abs(row.change))


Key = tuple[str, int, float, int]


def _by_key(reading: Reading) -> dict[Key, CollectiveUse]:
    """Collectives by kind and workers, those of a cluster by size too, and place among equals.

    Names of process groups are no keys: they may differ between two runs of one job.
    """
    keys = [
        (use.kind, use.workers, use.bytes or 0.0 if reading.kind == "cluster" else 0.0) for use in reading.collectives
    ]
    return {(*key, place): use for key, place, use in zip(keys, places(keys), reading.collectives, strict=True)}


def _mean(uses: Sequence[CollectiveUse]) -> CollectiveUse | None:
    """The mean of the same collectives in several baselines; None without any."""
    if len(uses) < 2:
        return uses[0] if uses else None
    first = uses[0]
    sizes = [use.bytes for use in uses if use.bytes is not None]
    speeds = [use.bandwidth for use in uses if use.bandwidth is not None]
    return CollectiveUse(
        first.kind, first.group, first.workers, fmean(use.count for use in uses),
        fmean(sizes) if len(sizes) == len(uses) else None, fmean(use.time for use in uses),
        fmean(speeds) if len(speeds) == len(uses) else None,
    )  # fmt: skip


def _facts(baselines: Sequence[Reading], candidates: Sequence[Reading]) -> Iterator[Fact]:
    kinds = len({one.kind for one in (*baselines, *candidates)})
    for name in dict.fromkeys(name for one in (*baselines, *candidates) for name in one.facts):
        old, new = (
            list(dict.fromkeys(one.facts.get(name, "not stated") for one in side)) for side in (baselines, candidates)
        )
        if old != new and (kinds == 1 or "not stated" not in (*old, *new)):
            yield Fact(name, " or ".join(old), " or ".join(new))


def _remarks(one: TimedChange, baselines: Sequence[Reading], candidates: Sequence[Reading]) -> Iterator[str]:
    """Limits of the comparison: the noise floor, single runs, slow steps, and things on one side only."""
    change = one.change
    for side, time in ((baselines, change.candidate), (candidates, change.baseline)):
        if one.how == STEPS and (said := in_band([timed for file in side for timed in file.subjects], time)):
            yield f"{show_time(time)} is {said}"
    if change.noise:
        yield (
            f"a change of less than {show_share(change.noise)} would not show in these times"
            if change.noise < HOPELESS
            else "steps vary so much, as on a disturbed machine, that not even a factor of two would show: repeat both "
            "sides when nothing else runs"
        )
    if one.how == STEPS and max(change.runs) == 1:
        yield (
            "with one run a side, the difference between two starts of a job is assumed from published runs: repeat "
            "the baseline (--baseline FILE) to measure it"
        )
    if change.noise and not change.low - TAIL <= change.tails <= change.high + TAIL:
        yield (
            f"the mean of all steps changed by {show_share(change.tails, '+')}: slow steps became more or fewer, which "
            "the verdict leaves out"
        )
    old, new = ({timed.name for one in side for timed in one.subjects} for side in (baselines, candidates))
    if max(len(old), len(new)) > 1:
        for names, where in ((old - new, "the baseline"), (new - old, "the candidate")):
            if names:
                shown = listed(sorted(names)[:SHOWN])
                yield f"only in {where}: {shown}{' and others' if len(names) > SHOWN else ''}"
