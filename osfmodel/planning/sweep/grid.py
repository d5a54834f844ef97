"""A grid: lists of workloads, clusters, worker counts, plans and changes, whose combinations are points.

All that can be checked before anything is predicted is checked here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from hashlib import blake2b
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from osfmodel.cost.clusters import counts_in_words, load_cluster, pricing_of
from osfmodel.counting import load_workload
from osfmodel.counting.groups import OPTIONS, Parallelism
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import brief, how_many
from osfmodel.entities.errors import CostError, DataError, OsfError, UsageError
from osfmodel.entities.files.documents import document_of
from osfmodel.entities.files.profiles import read
from osfmodel.entities.lookup import require
from osfmodel.entities.units import parse_amount, parse_bandwidth, parse_room, parse_time
from osfmodel.entities.workload import Workload
from osfmodel.planning.scaling.replicas import on_gpu_of, replica_workload
from osfmodel.planning.sweep import LISTS, USUAL, GridList, Value
from osfmodel.planning.what_if import WhatIf, parse_change, parse_effects
from osfmodel.solve.solution import MemoryLimit

MOST_POINTS = 10_000_000
"""Largest number of points of a grid."""
TOO_MANY = f"a sweep has at most {MOST_POINTS:,}: leave some values out"
AT_ONCE = 64
"""Largest number of points that are computed together."""


PAIRED = ("workloads", "clusters")
REQUIRED = ("workloads", "clusters", "workers")
SETTINGS = ("memory", "optimizer", "tokens", "samples")
"""Further keys of a grid, one value each: as the options of ``osf scale``."""
Point: TypeAlias = Mapping[str, Value]
"""The value in each of ``columns.GIVEN``."""


class Batch(NamedTuple):
    """Points of one workload on one cluster: what a process needs to compute them.

    limit:   of a GPU's memory; None for that of its data sheet
    samples: of the whole training
    error:   the reason for which none of them can be computed; "" if there is none
    points:  each with its key
    """

    workload: Workload | None
    cluster: Cluster
    limit: MemoryLimit | None
    samples: float | None
    error: str
    points: tuple[tuple[int, Point], ...]


@dataclass(frozen=True)
class Grid:
    """A checked grid.

    values:   of each list, by its key in ``LISTS``
    counts:   worker counts on each cluster
    settings: values of ``SETTINGS``
    remarks:  on points that will have errors
    """

    name: str
    values: Mapping[str, tuple[Value, ...]]
    counts: Mapping[str, tuple[int, ...]]
    settings: Mapping[str, Any]
    remarks: tuple[str, ...] = ()
    __repr__ = brief

    def __len__(self) -> int:
        others = prod(len(self.values[one.key]) for one in LISTS.values() if one.key not in (*PAIRED, "workers"))
        return others * sum(len(self.counts[cluster]) for _, cluster in self._pairs)

    @property
    def _pairs(self) -> list[tuple[str, str]]:
        """Each workload on each cluster, once: words for several GPUs are the same on a cluster in words."""
        pairs = product(map(str, self.values["workloads"]), map(str, self.values["clusters"]))
        return list(dict.fromkeys((on_gpu_of(workload, cluster), cluster) for workload, cluster in pairs))

    def batches(self, done: Callable[[int], bool] = lambda key: False) -> Iterator[Batch]:
        """All points in their order, without those that are ``done``."""
        outer = [one for one in LISTS.values() if one.each and one.key not in PAIRED]
        inner = [one for one in LISTS.values() if not one.each]
        load = lru_cache(maxsize=64)(load_workload)  # of one run only: files may change before the next
        columns = ("workload", "cluster", *(one.column for one in outer))
        for (name, where), chosen in product(self._pairs, product(*(self.values[one.key] for one in outer))):
            fixed: dict[str, Value] = dict(zip(columns, (name, where, *chosen), strict=True))
            workload, cluster, error = _loaded(fixed, load)
            start = self._digest(workload, cluster, fixed)
            counts = {**self.values, "workers": self.counts[where]}
            points = (
                (key, {**fixed, **dict(zip((one.column for one in inner), values, strict=True))})
                for values in product(*(counts[one.key] for one in inner))
                if not done(key := _key(start, values))
            )
            samples = self._samples(workload)
            while some := tuple(islice(points, AT_ONCE)):
                yield Batch(workload, cluster, self._limit, samples, error, some)

    @property
    def _limit(self) -> MemoryLimit | None:
        memory = self.settings.get("memory")
        return None if memory is None else MemoryLimit(memory, self.settings.get("optimizer"))

    def _samples(self, workload: Workload | None) -> float | None:
        tokens, samples = self.settings.get("tokens"), self.settings.get("samples")
        if tokens is not None and workload is not None and workload.sample_tokens:
            return float(tokens / workload.sample_tokens)
        return samples

    def _digest(self, workload: Workload | None, cluster: Cluster, fixed: Mapping[str, Value]) -> bytes:
        """Of all that the points of a batch share, files' contents too."""
        nouns = [document_of(noun) for noun in (workload, cluster) if noun is not None]
        return blake2b(msgspec.json.encode([fixed, self.settings, *nouns]), digest_size=16).digest()


def _key(start: bytes, values: Sequence[Value]) -> int:
    """A number for a point: equal for equal points in any grid, if their files are the same."""
    text = start + json.dumps(values).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big") >> 1  # fits into a signed integer


def load_grid(given: Mapping[str, Any] | str | os.PathLike[str]) -> Grid:
    """The grid of a YAML file, or of a mapping with its keys. Raises UsageError that says which key is wrong."""
    if isinstance(given, Mapping):
        return _checked(given, "grid")
    found = read(Path(given), _yaml)
    if not isinstance(found, dict):
        raise UsageError(f"{given}: a grid has keys such as workloads, clusters and workers")
    return _checked(found, str(given))


def _yaml(content: bytes) -> Any:
    """The content of a YAML file. Raises DataError that says where it is none."""
    import yaml

    try:
        return yaml.safe_load(content)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        raise DataError(f"{place}this is not YAML: {getattr(error, 'problem', None) or error}: give a grid") from None


def _checked(given: Mapping[str, Any], name: str) -> Grid:
    for key in given:
        require(str(key), {**LISTS, **dict.fromkeys(SETTINGS)}, f"key in {name}:")
    if missing := [key for key in REQUIRED if key not in given]:
        raise UsageError(f"{name}: {', '.join(missing)} missing: a grid has workloads, clusters and workers")
    values: dict[str, tuple[Value, ...]] = {}
    for key, one in LISTS.items():
        if key not in given:
            values[key] = (one.default,)
        elif key != "workers":
            values[key] = tuple(dict.fromkeys(_each(name, one, item) for item in _listed(name, key, given[key])))
    settings = _settings(name, given)
    sizes = [len(found) for found in values.values()]
    asked = _listed(name, "workers", given["workers"])
    if (least := prod(sizes) * len(asked)) > MOST_POINTS:
        raise UsageError(f"{name}: {least:,} points or more: {TOO_MANY}")
    clusters = {str(one): _within(name, "clusters", load_cluster, one) for one in values["clusters"]}
    crossed = [_crossed(name, str(one), clusters) for one in values["workloads"]]
    workloads = [workload for own in crossed for workload, _ in own]
    for effects, own in product(values["effects"], crossed):
        for pair in own:
            _within(name, "effects", _with_effects, effects, *pair)
    _within(name, "batch_sizes", _batches, values, workloads)
    remarks: list[str] = []
    counts = {title: tuple(_counts(name, asked, cluster, remarks)) for title, cluster in clusters.items()}
    values["workers"] = tuple(dict.fromkeys(count for found in counts.values() for count in found))
    grid = Grid(name, values, counts, settings, tuple(remarks))
    if len(grid) > MOST_POINTS:
        raise UsageError(f"{name}: {len(grid):,} points: {TOO_MANY}")
    if "tokens" in settings and any(one.sample_tokens is None for one in workloads):
        raise UsageError(f"{name}: tokens: a workload does not say how many tokens a sample has: give samples")
    return grid


def _crossed(name: str, words: str, clusters: Mapping[str, Cluster]) -> list[tuple[Workload, Cluster]]:
    """A workload as it is on each cluster. Raises what is wrong with it if that is so on all of them."""
    found, problem = [], None
    for title, cluster in clusters.items():
        try:
            found.append((_within(name, "workloads", lambda: load_workload(on_gpu_of(words, title))), cluster))  # noqa: B023
        except OsfError as error:
            problem = problem or error
    if problem and not found:
        raise problem
    return found


def _listed(name: str, key: str, given: Any) -> list[Any]:
    """The values of a key, which may be a single one. Raises UsageError without any."""
    found = list(given) if isinstance(given, (list, tuple)) else [given]
    if not found:
        raise UsageError(f"{name}: {key} is an empty list: a grid without points")
    return found


def _within(name: str, key: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function; say which file and key its error is about."""
    try:
        return function(*arguments)
    except OsfError as error:
        raise type(error)(f"{name}: {key}: {error}") from None


def _each(name: str, one: GridList, item: Any) -> Value:
    if item is None and one.default is None and one.key not in REQUIRED:
        return None
    return _within(name, one.key, one.read, item)  # type: ignore[no-any-return]


def _settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The keys with one value. Raises UsageError."""
    found: dict[str, Any] = {}
    for key in (key for key in SETTINGS if given.get(key) is not None):
        text = str(given[key])
        if key == "optimizer":
            found[key] = text
        else:
            read = parse_room if key == "memory" else partial(parse_amount, key)
            found[key] = _within(name, key, read, text)
    if "optimizer" in found:
        if "memory" not in found:
            raise UsageError(f"{name}: optimizer goes with memory: give the memory of a GPU, such as 80GB")
        _within(name, "optimizer", MemoryLimit, found["memory"], found["optimizer"])
    if "tokens" in found and "samples" in found:
        raise UsageError(f"{name}: tokens and samples both say how long the training is: give one of them")
    return found


def _batches(values: Mapping[str, Sequence[Value]], workloads: Sequence[Workload]) -> None:
    """Raise UsageError where sizes of batches contradict one another, or a workload does not say its own."""
    if values["batch_sizes"] != (None,) and values["global_batches"] != (None,):
        raise UsageError("batch_sizes contradict global_batches, which are shared by the workers: give one of them")
    unknown = [one.name for one in workloads if one.batch_size is None]
    if unknown and values["global_batches"] != (None,):
        raise UsageError(f"workload {unknown[0]!r} does not say at which batch size it was profiled")


def _counts(name: str, asked: Sequence[Any], cluster: Cluster, remarks: list[str]) -> Iterator[int]:
    """Worker counts on a cluster; remarks on those without prices. Raises CostError if none has any."""
    found: list[int] = []
    for item in asked:
        counts, remark = _within(name, "workers", counts_in_words, str(item), cluster, "workers")
        found += counts
        remarks += [remark] if remark else []
    missing, reason = [], ""
    for count in dict.fromkeys(found):
        try:
            pricing_of(cluster, count)
        except CostError as error:
            missing.append(count)
            reason = reason or str(error)
    if missing and len(missing) == len(set(found)):
        raise CostError(f"{name}: clusters: {reason}")
    if missing:
        where = f"{how_many(len(missing), 'worker count')} ({', '.join(map(str, missing))})"
        remarks.append(f"cluster {cluster.name!r} has no prices at {where}: those points have an error: {reason}")
    yield from dict.fromkeys(found)


def _with_effects(effects: Value, workload: Workload, cluster: Cluster) -> Cluster:
    if effects == USUAL:
        return cluster
    found = parse_effects(str(effects).split(), workload, cluster)
    return replace(cluster, effects=found, usual_effects=False)


def _loaded(fixed: Mapping[str, Value], load: Callable[[str], Workload]) -> tuple[Workload | None, Cluster, str]:
    """The workload and the cluster of a batch; or the reason for which there is no such workload."""
    cluster = load_cluster(str(fixed["cluster"]))
    groups = groups_of(fixed)
    try:
        workload = load(str(fixed["workload"]))
        cluster = _with_effects(fixed["effects"], workload, cluster)
        cluster = network_of(fixed).of_cluster(cluster)
        if groups != Parallelism():
            workload = replica_workload(str(fixed["workload"]), cluster, groups)
    except OsfError as error:
        return None, cluster, str(error)
    return workload, cluster, ""


def groups_of(point: Point) -> Parallelism:
    """The groups of a replica."""
    return Parallelism(**{kind: point[option] for kind, option in OPTIONS.items()})  # type: ignore[arg-type]


def network_of(point: Point) -> WhatIf:
    """The changes of the network."""
    said = {name: point[name] for name in ("bandwidth", "latency") if point[name] is not None}
    parse = {"bandwidth": parse_bandwidth, "latency": parse_time}
    return WhatIf(**{name: parse_change(name, str(text), parse[name]) for name, text in said.items()})  # type: ignore[arg-type]
