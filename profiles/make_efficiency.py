"""Make efficiency.json and counted-bands.json, what software and clocks make of a GPU's kernels, from published runs.

    OSFMODEL_DATA=FOLDER python profiles/make_efficiency.py [OUTPUT_FOLDER]
    python profiles/make_efficiency.py --errors

Runs: those of in_words.py on the fewest GPUs of their series, and those of published/in-words.csv and torchtitan.csv.
Megatron-Bridge overlaps messages of tensor groups (v0.2.0, scripts/performance/configs: tp_comm_overlap).
Those of torchao stand in torchao/float8 and torchao/prototype/mx_formats of pytorch/ao (BSD-3-Clause).
Fitted: logarithms of predicted over measured step times, by least squares with a soft loss, each source weighing the
same, each value drawn to a start that is physical. Exposed communication is that of the engine at START. The doubt of
a generation of GPUs under stacks of which runs taught is the 90 % quantile of the errors of sources when each was left
out. Each source weighs the same, but one on other GPUs ELSEWHERE; all weigh the same for models with experts. That of a
GPU or a stack there of which no run taught is found by leaving out whole generations. ``--errors`` prints the errors by
source, learned from all and from all others.

Bands: each run as a user would ask for it, on any number of GPUs, learned without its source. Nanotron's runs on
several nodes are those of benchmarks/layouts.py, one in EACH_OF, and teach bands alone.
"""

from __future__ import annotations

import csv
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from pathlib import Path
from statistics import mean
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest.mock import patch

from scipy.optimize import brentq, least_squares

from osfmodel.cost.clusters import load_cluster
from osfmodel.counting import load_workload, roofline
from osfmodel.counting import words as counting_words
from osfmodel.counting.groups import Parallelism, stages_of
from osfmodel.counting.modules import Model, Module
from osfmodel.counting.recipes import FLOAT8, RECIPES
from osfmodel.counting.roofline import Roofline, Waits, timed
from osfmodel.counting.stacks import (
    ANY,
    COMPILE,
    CUDNN,
    EAGER,
    EXPERTS,
    FLASH,
    FLASH_1,
    LIKE,
    STACKS,
    Learned,
    Traffic,
    table_of,
)  # fmt: skip
from osfmodel.counting.training import TrainingSetup
from osfmodel.counting.words import model_of, parse_words
from osfmodel.engine import predict_timeline
from osfmodel.engine.band_values import bands_document
from osfmodel.engine.bands import (
    COUNTED,
    PART,
    REPLICAS,
    JudgedRun,
    distances_of,
    extremes,
    quantile,
    weighed,
)  # fmt: skip
from osfmodel.entities.files import documents, profiles
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.entities.gpus import GPUS, generation_of
from osfmodel.planning.scaling.curve import ScalePoint
from osfmodel.planning.scaling.messages import beside_of, prices_of
from osfmodel.planning.scaling.replicas import replica_workload
from osfmodel.planning.scaling.scale import ScaleOptions, scale
from osfmodel.planning.what_if import WhatIf
from osfmodel.solve.solution import MemoryLimit

sys.path.insert(0, str(Path(__file__).parent))
from in_words import RunInWords, asked_for, runs_in_words, step_time, workload_in_words

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from layouts import CLUSTER, FILE, MODELS, TOKENS, read, undisturbed

PUBLISHED = Path(__file__).parent / "published"
ROOM = MemoryLimit(10**13)
"""No limit: those runs did run."""
CLOCKS = {"a100": ("bfloat16",), "h100": ("bfloat16", "float8"), "b200": ("bfloat16", "float8")}
"""Clocks of GPUs that are learned; all others have that of ANY."""
PASSES = {
    EAGER: Traffic(1.0, 0.5, 0.0),
    COMPILE: Traffic(0.4, 0.3, 1.0),
    "te": Traffic(0.35, 0.2, 0.6),
}
"""Starting values. Eager PyTorch casts nothing to float8: what it would take is that of compiled blocks."""
ATTENTION = {FLASH: {"a100": 0.92, "h100": 0.51}, FLASH_1: {"a100": 0.5, "h100": 0.28}, CUDNN: {ANY: 0.9}}
"""Starting values. The table of A100 is of FlashAttention 2, those of later GPUs of later kernels, and that of H100
stands for all of these: no run of them had FlashAttention. FlashAttention 2 has 0.6 of the table's rate on H100
(arXiv 2407.08608), and FlashAttention 1 in Triton 0.55 of FlashAttention 2's (arXiv 2307.08691: 1.3 to 2.5 times as
slow); both at the clocks of products."""
CLOCK = 0.85
SUSTAINED = {("a100", "bfloat16"): 0.92, ("b200", "bfloat16"): 0.72}
MEASURED = "simumax"
"""Starting values of clocks: CLOCK, but where products of both, measured one after the other as in training, were
published (SimuMax's kernels, not its steps): medians of three kinds are 0.93, 0.93, 0.89 and 0.74, 0.75, 0.69. They
are left out with its steps."""
ELSEWHERE = 0.25
"""Weight of a source's errors for the doubt of GPUs on which it did not run; a source on these has 1. Chosen with all
runs in view: of a source left out 84 to 85 % lie inside for 0.1 to 1, where half widths are 18 to 24 %."""
EACH_OF = 8
"""One in so many of nanotron's 654 layouts on several nodes is judged for bands: each takes half a second."""
PAIRED = ("torchao",)
"""Sources of which the ratios of recipes alone are learned from."""
DRAWN, SOFT = 0.1, 0.05
"""Weight with which logarithms are drawn to their starting values (a source's is 1), and the relative error from
which the loss grows as the error, not as its square."""


class Stated(NamedTuple):
    """A run as ``osf scale`` would be asked for it."""

    source: str
    words: str
    cluster: str
    gpus: int
    plan: str
    groups: Parallelism
    micro_batches: int
    seconds: float


class Part(NamedTuple):
    """Modules of a stage that ``times`` blocks of it have alike, with seconds of collectives beside them by name.

    again: part of the blocks whose forward is repeated in backward
    """

    model: Model
    beside: Mapping[str, Waits]
    times: float
    again: float = 0.0

    def seconds(self, clock: Roofline) -> float:
        """Seconds of forward and backward of all of them."""
        found = timed(self.model, clock, self.beside).values()
        again = self.again * bool(self.model.blocks)
        return self.times * sum(forward * (1 + again) + backward for forward, backward in found)


class Row(NamedTuple):
    """A run as it is learned from.

    stages: of its pipeline
    turns:  times of the slowest stage that a step takes
    rest:   seconds of a step that are not in ``turns``
    """

    source: str
    setting: TrainingSetup
    stages: tuple[tuple[Part, ...], ...]
    turns: float
    rest: float
    seconds: float

    def computing(self, taught: Learned) -> float:
        """Seconds of a step's computation, and of collectives that nothing overlaps."""
        clock = Roofline.of(self.setting, taught)
        return self.turns * max(sum(part.seconds(clock) for part in stage) for stage in self.stages)

    def missed(self, taught: Learned) -> float:
        """ln(predicted / measured)."""
        return math.log((self.computing(taught) + self.rest) / self.seconds)


@lru_cache(maxsize=1)
def stated() -> tuple[Stated, ...]:
    """The runs of published/ that words say whole."""
    found = []
    for row in _rows("in-words.csv"):
        groups = Parallelism(*(int(row[name]) for name in ("tp", "pp", "cp", "ep", "chunks")))
        found.append(
            Stated(
                row["source"], _words(row["workload"]), row["cluster"], int(row["gpus"]), row["plan"], groups,
                int(row["micro_batches"]), float(row["seconds"]),
            )
        )  # fmt: skip
    for row in _rows("torchtitan.csv"):
        words = row["workload"] + ("" if "compile" in row["workload"] else ",stack=eager")
        words += ",overlap=tp" * (row["async_tp"] == "yes")
        groups = Parallelism(int(row["tp"]), int(row["pp"]), int(row["cp"]))
        setting = parse_words(words)
        tokens = int(row["micro_batches"]) * setting.setting.batch * (setting.sequence or 0) / groups.gpus
        found.append(
            Stated(
                "torchtitan", words, "nccl:h100x8,400Gbps", int(row["gpus"]), "fsdp2", groups,
                int(row["micro_batches"]), tokens / float(row["tokens_per_s_per_gpu"]),
            )
        )  # fmt: skip
    return tuple(found)


def _rows(name: str) -> Iterator[dict[str, str]]:
    with (PUBLISHED / name).open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _words(text: str) -> str:
    """The words; of a Llama with fewer layers (``llama3-70b-12``) with the path of its configuration."""
    model, _, rest = text.partition(":")
    path = PUBLISHED / f"{model}.json"
    return f"{path}:{rest}" if path.exists() else text


def point_of(one: Stated) -> ScalePoint:
    """The run as ``osf scale`` predicts it."""
    counting_words.at_samples.cache_clear()
    cluster = load_cluster(one.cluster)
    workload = (
        load_workload(one.words) if one.groups == Parallelism() else replica_workload(one.words, cluster, one.groups)
    )
    options = ScaleOptions((one.plan,), ROOM, WhatIf(accumulate=one.micro_batches), groups=one.groups, sized=False)
    found = scale(workload, cluster, [one.gpus], options).points[0]
    counting_words.at_samples.cache_clear()
    return found


def predicted(one: Stated, taught: Learned | None = None) -> float:
    """Seconds of a step as ``osf scale`` predicts it, with what was learned elsewhere."""
    with patch.object(roofline, "learned", (lambda: taught) if taught else roofline.learned):
        return point_of(one).time


@lru_cache(maxsize=1)
def learning_runs() -> tuple[RunInWords, ...]:
    """The runs on the fewest GPUs of their series."""
    return tuple(one for one in runs_in_words() if one.smallest)


def generation(gpu: str) -> str:
    """Generation of a GPU by its name in words."""
    return generation_of(GPUS[gpu].called)


def parts_of(model: Model, beside: Mapping[str, Waits]) -> tuple[Part, ...]:
    """A model as blocks that are alike, each once, and what is outside of blocks."""
    inside: dict[str, list[Module]] = {}
    for module in model.modules:
        inside.setdefault(model.block_of(module), []).append(module)
    alike: dict[object, list[str]] = {}
    for block, modules in inside.items():
        form = tuple((replace(one, name=one.name.removeprefix(block)), beside.get(one.name)) for one in modules)
        alike.setdefault(form if block else "", []).append(block)
    return tuple(
        Part(
            replace(model, modules=tuple(inside[names[0]]), blocks=tuple(filter(None, names[:1]))),
            {one.name: beside[one.name] for one in inside[names[0]] if one.name in beside},
            len(names),
        )
        for names in alike.values()
    )


def row_of_stated(one: Stated) -> Row:
    """The row of a run that is said whole."""
    parsed, cluster = parse_words(one.words), load_cluster(one.cluster)
    model, setting = model_of(parsed), parsed.setting
    stages = [(model, {})]
    if one.groups != Parallelism():
        prices = prices_of(cluster, one.groups)
        stages = [
            (shard.model, {name: own for name, own, _ in beside_of(shard, setting, prices, (setting.batch,))})
            for shard in stages_of(model, one.groups)[0]
        ]
    parts = tuple(parts_of(*stage) for stage in stages)
    turns = one.micro_batches + (one.groups.pipeline - 1) / one.groups.chunks
    row = Row(one.source, setting, parts, turns, 0.0, one.seconds)
    return row._replace(rest=predicted(one, START) - row.computing(START))


def row_of_run(one: RunInWords) -> Row:
    """The row of a run of a ledger's source: a part of whose blocks may be recomputed."""
    parts = tuple(part._replace(again=one.recomputed) for part in parts_of(one.model, {}))
    turns = one.stated.micro_batches
    row = Row(one.source, one.setting, (parts,), turns, 0.0, one.run.iteration_time)
    return row._replace(rest=step_time(one, workload_in_words(one, START)) - row.computing(START))


@cache
def rows() -> tuple[Row, ...]:
    """All runs that are predicted from words; the clocks of those of PAIRED are not learned from."""
    return (*map(row_of_run, learning_runs()), *map(row_of_stated, stated()))


VALUES = (
    *(("clocks", gpu, dtype) for gpu, types in CLOCKS.items() for dtype in types),
    *(("attention", library, gpu) for library, gpus in ATTENTION.items() for gpu in gpus),
    *(("passes", name, field) for name in PASSES for field in Traffic._fields if (name, field) != (EAGER, "casts")),
)
"""Values that are learned: kind, GPU or stack, type or field."""


def begin(value: tuple[str, str, str], clocks: Mapping[tuple[str, str], float]) -> float:
    """The value at which the search begins, and to which it is drawn; ``clocks``: SUSTAINED, or none of them."""
    kind, name, field = value
    if kind == "attention":
        return ATTENTION[name][field]
    return clocks.get((name, field), CLOCK) if kind == "clocks" else float(getattr(PASSES[name], field))


def decoded(
    values: Sequence[float],
    recipes: Mapping[str, float] = MappingProxyType({}),
    starts: Mapping[tuple[str, str], float] = SUSTAINED,
) -> Learned:
    """Clocks, attention and passes from values in the order of VALUES: logarithms of factors on starting values."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for value, own in zip(VALUES, values, strict=True):
        kind, name, field = value
        found.setdefault(kind, {}).setdefault(name, {})[field] = begin(value, starts) * math.exp(own)
    clocks, attention, passes = found["clocks"], found["attention"], found["passes"]
    passes[EAGER]["casts"] = passes[COMPILE]["casts"]
    for library in (FLASH, FLASH_1):
        attention[library][ANY] = attention[library]["h100"]
    each = {dtype: [own[dtype] for own in clocks.values() if dtype in own] for dtype in ("bfloat16", "float8")}
    any_of = {dtype: math.prod(own) ** (1 / len(own)) for dtype, own in each.items()}
    clocks |= {name: clocks[like] for name, like in LIKE.items()}
    return Learned(
        {ANY: any_of, **clocks},
        attention,
        {name: Traffic(**own) for name, own in passes.items()},
        {ANY: {ANY: 0.0}},
        recipes,
    )


START = decoded([0.0] * len(VALUES))


def recipes_of(own: Sequence[Row]) -> dict[str, float]:
    """The factor of each recipe on products and casts in float8, from runs that differ in the recipe alone.

    With it the predicted ratio of two steps is the measured one; a mean of logarithms, each source weighing the same.
    """
    plain: dict[Hashable, list[float]] = {}
    for row in own:
        if row.setting.dtype == FLOAT8:  # of any container
            plain.setdefault(_alike(row), []).append(row.missed(START))
    found: dict[str, dict[str, list[float]]] = {}
    for row in own:
        if row.setting.dtype in RECIPES and row.setting.dtype != FLOAT8 and (other := plain.get(_alike(row))):
            apart = partial(_apart, row, mean(other))
            by_source = found.setdefault(row.setting.dtype, {})
            by_source.setdefault(row.source, []).append(float(brentq(apart, -1, 1)))
    return {name: math.exp(mean(map(mean, sources.values()))) for name, sources in found.items()}


def _apart(row: Row, other: float, slower: float) -> float:
    """The miss of the row less ``other``, with this logarithm of its recipe's factor."""
    return row.missed(START._replace(recipes={row.setting.dtype: math.exp(slower)})) - other


def _alike(row: Row) -> Hashable:
    """A key that runs share which differ in type of computation alone."""
    models = tuple((part.model.name, part.times) for stage in row.stages for part in stage)
    return row.source, models, row.stages[0][0].model.tokens, row.turns, replace(row.setting, dtype="bfloat16")


def learn(keep: Callable[[Row], bool]) -> Learned:
    """Clocks, attention, passes and recipes from the runs that ``keep`` accepts."""
    own = [row for row in rows() if keep(row)]
    recipes = recipes_of(own)
    if any(row.source == MEASURED for row in own):
        return decoded(_values(own, recipes, _from_all()), recipes)
    return decoded(_values(own, recipes, [0.0] * len(VALUES), {}), recipes, {})


@cache
def _from_all() -> tuple[float, ...]:
    """The values that all runs teach, from which those of fewer are searched for."""
    return _values(rows(), recipes_of(rows()), [0.0] * len(VALUES))


def _values(
    accepted: Sequence[Row],
    recipes: Mapping[str, float],
    first: Sequence[float],
    starts: Mapping[tuple[str, str], float] = SUSTAINED,
) -> tuple[float, ...]:
    """The values in the order of VALUES that these runs teach, found from ``first``."""
    own = [row for row in accepted if row.source not in PAIRED]
    shares = Counter(row.source for row in own)

    def misses(values: Sequence[float]) -> list[float]:
        taught = decoded(values, recipes, starts)
        errors = [row.missed(taught) / math.sqrt(shares[row.source]) for row in own]
        return errors + [DRAWN * value for value in values]

    highest = [-math.log(begin(value, starts)) if value[0] == "clocks" else math.inf for value in VALUES]
    result = least_squares(misses, first, bounds=(-math.inf, highest), loss="soft_l1", f_scale=SOFT, max_nfev=20)
    return tuple(result.x)


def source_of(row: Row) -> str:
    """The source of a run."""
    return row.source


@cache
def without(group: Callable[[Row], str], name: str) -> Learned:
    """The values that runs of other groups teach."""
    return learn(lambda row: group(row) != name)


@cache
def held_out(group: Callable[[Row], str]) -> dict[str, list[tuple[Row, float]]]:
    """The runs by group, with ln(predicted / measured) of their steps, learned without the group."""
    found: dict[str, list[tuple[Row, float]]] = {}
    for name in dict.fromkeys(map(group, rows())):
        taught = without(group, name)
        found[name] = [(row, row.missed(taught)) for row in rows() if group(row) == name]
    return found


def taught_on(row: Row) -> tuple[str, str]:
    """The GPU whose clock a run has, and the stack whose passes."""
    table = table_of(row.setting.gpu)
    return LIKE.get(table, table), STACKS[row.setting.stack].like


def kind_of(row: Row) -> str:
    """A key of doubts: the GPU whose clock it has, "experts" for a model with experts, "any" where nothing taught."""
    recipe = RECIPES.get(row.setting.dtype)
    if (recipe and row.setting.stack not in recipe.stacks) or taught_on(row) not in known_pairs():
        return ANY
    experts = any(module.experts for stage in row.stages for part in stage for module in part.model.modules)
    return EXPERTS if experts else taught_on(row)[0]


def doubted(row: Row, taught: Learned) -> float:
    """The doubt of a run."""
    setting, experts = row.setting, kind_of(row) == EXPERTS
    return taught.doubt(setting.gpu, setting.stack, setting.dtype, experts)


@cache
def known_pairs() -> frozenset[tuple[str, str]]:
    """GPUs and stacks together of which runs taught."""
    return frozenset(taught_on(row) for row in rows() if row.source not in PAIRED)


def doubt_of(errors: Iterable[tuple[Row, float]], kind: str = "", level: float = PART) -> float:
    """The half width, over or under, that holds ``level`` of the runs, each source weighing the same.

    kind: of doubt, whose runs weigh more than those of other GPUs; "" for none
    """
    found = [(row.source, not kind or kind_of(row) == kind, abs(miss)) for row, miss in errors]
    if kind == EXPERTS:
        found = [one for one in found if one[1]]
    shares = Counter(one[:2] for one in found)
    weights = [(1 if near else ELSEWHERE) / shares[source, near] for source, near, _ in found]
    return math.expm1(weighed([size for *_, size in found], [one / sum(weights) for one in weights], level))


def doubts_of(
    apart: Iterable[tuple[Row, float]], elsewhere: Iterable[tuple[Row, float]], level: float = PART
) -> dict[str, dict[str, float]]:
    """The doubts of ``Learned``, from runs whose source was left out, and from runs whose generation of GPUs was.

    One source alone does not tell how others differ: its doubt is at least that of what no run taught.
    """
    taught = [one for one in apart if kind_of(one[0]) != ANY]
    dense, any_of = [one for one in taught if kind_of(one[0]) != EXPERTS], doubt_of(elsewhere, level=level)
    found: dict[str, float] = {}
    for kind in dict.fromkeys(kind_of(row) for row, _ in taught):
        own = doubt_of(taught if kind == EXPERTS else dense, kind, level)
        alone = len({row.source for row, _ in taught if kind_of(row) == kind}) == 1
        found[kind] = max(own, any_of) if alone else own
    by_stack: dict[str, dict[str, float]] = {}
    for gpu, stack in sorted(known_pairs()):
        by_stack.setdefault(gpu, {})[stack] = found.get(gpu, any_of)
    return {**by_stack, EXPERTS: {ANY: found.get(EXPERTS, any_of)}, ANY: {ANY: any_of}}


def by_generation(row: Row) -> str:
    """The generation of the GPU of a run."""
    return generation(row.setting.gpu)


def doubts_without(source: str, level: float = PART) -> dict[str, dict[str, float]]:
    """The doubts that the runs of other sources show; of all sources for ""."""
    groups = held_out(source_of), held_out(by_generation)
    apart, elsewhere = ([one for own in each.values() for one in own if one[0].source != source] for each in groups)
    return doubts_of(apart, elsewhere, level)


def judged(layouts: Sequence[Stated]) -> list[JudgedRun]:
    """All runs as a user would ask for them, with all that was learned and doubted without their source."""
    found = []
    for source in dict.fromkeys([one.source for one in (*runs_in_words(), *stated(), *layouts)]):
        taught = without(source_of, source)._replace(doubts=doubts_without(source))
        mine = [run for run in runs_in_words() if run.source == source and run.run.workers > 1]
        found += [_judged_run(run, taught) for run in mine]
        with patch.object(roofline, "learned", lambda taught=taught: taught):
            own = [one for one in (*stated(), *layouts) if one.source == source and one.gpus > 1]
            found += [_judged_stated(one) for one in own]
    return found


def _judged_run(one: RunInWords, taught: Learned) -> JudgedRun:
    workload, several = workload_in_words(one, taught), one.stated.micro_batches
    if one.stated.alike:  # of these one is timed, without the update
        workload, several = replace(workload, update_time=0), 1
    workload, plan, pricing = asked_for(one, workload, several)
    timeline = predict_timeline(workload, plan, pricing)
    time = step_time(one, workload_in_words(one, taught))
    fast, slow = (time * end / timeline.iteration_time for end in extremes(workload, plan, timeline, pricing))
    return JudgedRun(one.source, one.source, COUNTED, one.run.iteration_time, time, fast, slow)


def _judged_stated(one: Stated) -> JudgedRun:
    point = point_of(one)
    found, question = point.best.prediction, point.best.prediction.bound.question
    ends = extremes(question.workload, found.plan, found.timeline, question.pricing)
    kind = REPLICAS if point.ranks < point.workers and not point.inside else COUNTED
    return JudgedRun(one.source, one.source, kind, one.seconds, point.time, *ends)


def layouts_of(folder: Path) -> list[Stated]:
    """Runs that teach bands alone: InternEvo's with tensor groups, one in EACH_OF of nanotron's on several nodes."""
    wanted = {"zero_group": "all", "tensor_parallel": "2", "packed": "no"}.items()
    runs = [run for run in load_measurements("internevo") if wanted <= dict(run.conditions).items()]
    found = [
        Stated(
            "internevo", _words(f"internlm-7b:a100,seq2048,batch{run.condition('batch_size')},bf16"), run.cluster,
            run.workers, "zero-1", Parallelism(2), int(run.condition("micro_batches")), run.iteration_time,
        )
        for run in runs
    ]  # fmt: skip
    rows = [row for row in undisturbed(read(folder / FILE, 8)) if row.gpus > 8]
    return found + [
        Stated(
            "nanotron", f"{MODELS[row.model]}:h100,seq{TOKENS},batch{row.layout.batch},bf16,stack=nanotron", CLUSTER,
            row.gpus, row.plan, row.layout.groups, row.layout.accumulated, row.seconds,
        )
        for row in rows[::EACH_OF]
    ]  # fmt: skip


def documents_of(folder: Path) -> dict[str, dict[str, Any]]:
    """The content of efficiency.json and of counted-bands.json, by name."""
    found = learn(lambda row: True)
    rounded = partial(_rounded, digits=3)
    efficiency = {
        "schema_version": 2,
        "kind": "efficiency",
        "source": "published step times (profiles/make_efficiency.py)",
        "sources": dict(Counter(row.source for row in rows())),
        "clocks": rounded(found.clocks),
        "attention": rounded(found.attention),
        "passes": rounded({name: one._asdict() for name, one in found.passes.items()}),
        "recipes": rounded(found.recipes),
        "doubts": rounded(doubts_without("")),
    }
    bands = bands_document(distances_of([one for one in judged(layouts_of(folder)) if one.kind == REPLICAS]), {})
    return {"efficiency.json": efficiency, "counted-bands.json": bands}


def _rounded(value: Any, digits: int) -> Any:
    if isinstance(value, Mapping):
        return {name: _rounded(own, digits) for name, own in value.items()}
    return float(f"{value:.{digits}g}")


def shown(errors: Sequence[float]) -> str:
    """Median and 90 % quantile of the sizes of errors, and their median."""
    sizes = sorted(abs(math.expm1(one)) for one in errors)
    return (
        f"{quantile(sizes, 0.5):6.1%} {quantile(sizes, 0.9):6.1%} {math.expm1(sorted(errors)[len(errors) // 2]):+6.1%}"
    )


def report() -> Iterator[str]:
    """Lines on the learned values, and on errors by source, learned from all and from all others."""
    found = learn(lambda row: True)
    yield str(found)
    apart = held_out(source_of)
    for source, own in apart.items():
        fitted = [row.missed(found) for row, _ in own]
        yield f"{source:20s} {len(own):3d} runs: {shown(fitted)}   left out: {shown([miss for _, miss in own])}"


def main() -> None:
    if "--errors" in sys.argv:
        print("\n".join(report()))
        return
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for name, made in documents_of(Path(os.environ["OSFMODEL_DATA"])).items():
        text = json.dumps(made, indent=2) + "\n" if name == "efficiency.json" else documents.encode(made)
        profiles.write_text(folder / name, text)


if __name__ == "__main__":
    main()
