"""Make efficiency.json, the part of a GPU's data sheet that training reaches, from published runs.

    python profiles/make_efficiency.py [OUTPUT_FOLDER]

Runs: those of in_words.py on the fewest GPUs of their series. Fitted: logarithms of predicted over measured step times,
by least squares with a soft loss, each source weighing the same. Exposed communication is that of the engine at the
efficiencies of START, and small. All generations of GPUs share the shape of the roofline (``attention`` over
``matrix``, ``memory``); each has a pace of its own, which is drawn to that of the others where few runs show it. The
doubt of generations that were seen is the 90 % quantile of the errors of the source that was predicted worst when it
was left out; that of any other GPU is found by leaving out whole generations.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from scipy.optimize import least_squares

from osfmodel.counting.modules import Module
from osfmodel.counting.roofline import Efficiency, Roofline
from osfmodel.engine.bands import PART, quantile
from osfmodel.entities.files import profiles
from osfmodel.entities.gpus import GPUS, generation_of

sys.path.insert(0, str(Path(__file__).parent))
from in_words import RunInWords, runs_in_words, step_time, workload_in_words

START = Efficiency(0.7, 0.3, 0.8, 0.0)
"""Begin of the search, to which values are drawn that few runs show."""
DRAWN, OWN_PACE, SOFT = 0.06, 0.1, 0.03
"""Weights with which values are drawn to START and a generation's pace to 1 (against a source's weight of 1), and the
relative error from which the loss grows as the error, not as its square."""
ANY = "any"


class Learned(NamedTuple):
    """The shared efficiency, and the factor on its ``matrix`` and ``attention`` by generation."""

    shared: Efficiency
    paces: Mapping[str, float]

    def of(self, generation: str, doubt: float = 0.0) -> Efficiency:
        """The efficiency of a generation; the shared one for others."""
        pace, shared = self.paces.get(generation, 1.0), self.shared
        return Efficiency(shared.matrix * pace, shared.attention * pace, shared.memory, doubt)


def learning_runs() -> tuple[RunInWords, ...]:
    """The runs on the fewest GPUs of their series."""
    return tuple(one for one in runs_in_words() if one.smallest)


def generation(one: RunInWords) -> str:
    """Generation of a run's GPU."""
    return generation_of(GPUS[one.setting.gpu].called)


def computation(one: RunInWords, efficiency: Efficiency) -> float:
    """Seconds of all micro-batches of a step, by the roofline."""
    clock = Roofline(GPUS[one.setting.gpu], efficiency, one.setting)
    step = 0.0
    for (module, in_block), times in _kinds(one.source, one.run.workload, one.model.tokens).items():
        forward, backward = clock.times(module, in_block)
        step += times * (forward * (1 + one.recomputed * in_block) + backward)
    return step * one.stated.micro_batches


@cache
def _kinds(source: str, name: str, tokens: int) -> Mapping[tuple[Module, bool], int]:
    """Modules of a model that do the same work, with their number."""
    model = next(
        one.model
        for one in runs_in_words()
        if (one.source, one.run.workload, one.model.tokens) == (source, name, tokens)
    )
    return Counter(
        (Module("", (), one.products, one.scores, one.moved), bool(model.block_of(one))) for one in model.modules
    )


@cache
def exposed(place: int) -> float:
    """Seconds of a run's step that are not computation of micro-batches: communication and the update."""
    one = learning_runs()[place]
    return step_time(one, workload_in_words(one, START)) - computation(one, START)


def learn(keep: Callable[[RunInWords], bool]) -> Learned:
    """The efficiencies of the runs that ``keep`` accepts."""
    rows = [(one, exposed(place)) for place, one in enumerate(learning_runs()) if keep(one)]
    shares = Counter(one.source for one, _ in rows)
    kinds = sorted({generation(one) for one, _ in rows})
    start = [math.log(value) for value in (START.matrix, START.attention / START.matrix, START.memory)]

    def decoded(values: Sequence[float]) -> Learned:
        matrix, attention, memory = (math.exp(value) for value in values[:3])
        shared = Efficiency(matrix, attention * matrix, memory, 0.0)
        return Learned(shared, {kind: math.exp(value) for kind, value in zip(kinds, values[3:], strict=True)})

    def misses(values: Sequence[float]) -> list[float]:
        found = decoded(values)
        efficiency = {kind: found.of(kind) for kind in kinds}
        errors = [
            math.log((computation(one, efficiency[generation(one)]) + rest) / one.run.iteration_time)
            / math.sqrt(shares[one.source])
            for one, rest in rows
        ]
        drawn = [DRAWN * (value - begin) for value, begin in zip(values, start, strict=False)]
        return errors + drawn + [OWN_PACE * value for value in values[3:]]

    highest = [0.0, math.inf, 0.0] + [math.inf] * len(kinds)
    result = least_squares(
        misses, start + [0.0] * len(kinds), bounds=(-math.inf, highest), loss="soft_l1", f_scale=SOFT
    )
    return decoded(result.x)


def held_out(group: Callable[[RunInWords], str]) -> dict[str, list[tuple[RunInWords, float]]]:
    """The runs by group, with predicted / measured - 1 of their steps, learned without the group."""
    found: dict[str, list[tuple[RunInWords, float]]] = {}
    for name in dict.fromkeys(map(group, learning_runs())):
        without = learn(lambda one, name=name: group(one) != name)  # type: ignore[misc]
        found[name] = [
            (one, step_time(one, workload_in_words(one, without.of(generation(one)))) / one.run.iteration_time - 1)
            for one in learning_runs()
            if group(one) == name
        ]
    return found


def doubt_of(errors: Iterable[tuple[RunInWords, float]]) -> float:
    """The half width, over or under, that holds PART of the runs of every source."""
    by_source: dict[str, list[float]] = {}
    for one, miss in errors:
        by_source.setdefault(one.source, []).append(abs(math.log1p(miss)))
    return math.expm1(max(quantile(sizes, PART) or 0.0 for sizes in by_source.values()))


def document() -> dict[str, object]:
    """The content of efficiency.json."""
    found, runs = learn(lambda one: True), learning_runs()
    by_source = [row for rows in held_out(lambda one: one.source).values() for row in rows]
    by_generation = [row for rows in held_out(generation).values() for row in rows]
    seen = doubt_of(by_source)
    rows = {ANY: found.of(ANY, doubt_of(by_generation)), **{kind: found.of(kind, seen) for kind in sorted(found.paces)}}
    fields = ("matrix", "attention", "memory", "doubt")
    return {
        "schema_version": 1,
        "kind": "efficiency",
        "source": "published step times on the fewest GPUs of each series (profiles/make_efficiency.py)",
        "sources": dict(Counter(one.source for one in runs)),
        "efficiencies": {
            name: {field: float(f"{getattr(one, field):.3g}") for field in fields} for name, one in rows.items()
        },
    }


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    profiles.write_text(folder / "efficiency.json", json.dumps(document(), indent=2) + "\n")


if __name__ == "__main__":
    main()
