"""Usual effects of frameworks on GPUs: what a prediction charges where a cluster states no effects of its own.

``profiles/effects.json`` holds a value for each effect, by generation of GPU where more than one source shows it, with
its evidence and its spread over the sources. ``profiles/make_bands.py`` learns the values from the ledger's sources, as
medians over groups of sources on the same machines, and again without each group, for bands and errors that no group
had a part in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache, partial

from osfmodel.entities.cluster import Cluster
from osfmodel.entities.effects import NO_EFFECTS, Effects
from osfmodel.entities.files import documents, profiles
from osfmodel.entities.gpus import generation_of
from osfmodel.entities.measurement import NO_GPU
from osfmodel.entities.workload import Workload


class UsualValue(documents.Strict):
    """The usual value of an effect.

    generation: of GPU, of ``entities.gpus.GENERATIONS``; "" for any other
    low, high:  least and largest value of a source, or as published
    evidence:   how it was learned, or where it is published
    sources:    of the ledger, from which it was learned
    without:    the group of sources that was left out in learning it; "" for the value that predictions use
    """

    effect: str
    value: float
    low: float
    high: float
    evidence: str
    generation: str = ""
    sources: list[str] = []  # noqa: RUF012
    without: str = ""


class EffectsFile(documents.Strict):
    """The content of ``profiles/effects.json``."""

    schema_version: int
    kind: str
    values: list[UsualValue]


@lru_cache(maxsize=1)
def usual_values() -> tuple[UsualValue, ...]:
    """The values that come with osfmodel. Raises DataError."""
    decode = partial(documents.decode, kind="effects", document=EffectsFile)
    return tuple(profiles.read(profiles.bundled_file("effects.json"), decode).values)


def effects_for(generation: str, values: Iterable[UsualValue], without: str = "") -> Effects:
    """The usual effects on GPUs of ``generation``: its own values, else those of any other.

    ``without``: a group of sources to leave out; the values of all where it had no part.
    """
    found: dict[str, tuple[tuple[bool, bool], float]] = {}
    for one in values:
        if one.generation in ("", generation) and one.without in ("", without):
            rank = one.without == without, bool(one.generation)
            if one.effect not in found or rank > found[one.effect][0]:
                found[one.effect] = rank, one.value
    return Effects(**{name: value for name, (_, value) in found.items()})


def effects_of_any() -> Effects:
    """The usual effects on a GPU of which nothing is known."""
    return effects_for("", usual_values())


def gpu_generation(workload: Workload, cluster: Cluster) -> str | None:
    """Generation of the GPU that computes, "" for one without a name; None if it is a CPU, or nothing says."""
    stated = [workload.source.gpu, cluster.source.gpu]
    if NO_GPU in stated:
        return None
    for gpu in stated:
        if gpu != "not stated":
            return generation_of(gpu)
    if cluster.nccl is None:
        return None
    # The generation of a fit is that of the curve, not of the GPUs.
    return "" if cluster.source.is_import else cluster.nccl.generation


def gpu_unknown(workload: Workload, cluster: Cluster) -> bool:
    """Whether usual effects are left out only because neither says which GPU computes, or that it is a CPU."""
    silent = gpu_generation(workload, cluster) is None and NO_GPU not in (workload.source.gpu, cluster.source.gpu)
    return silent and cluster.usual_effects and not cluster.effects.active and workload.profiled_workers == 1


def usual_effects(
    workload: Workload, cluster: Cluster, without: str = "", values: Sequence[UsualValue] | None = None
) -> Effects:
    """The effects to charge where ``cluster`` states none: none for a CPU, or if several workers were profiled.

    ``without``: a group of sources that has no part in them; ``values``: by default those that come with osfmodel.
    """
    generation = gpu_generation(workload, cluster)
    if cluster.effects.active or not cluster.usual_effects or workload.profiled_workers > 1 or generation is None:
        return NO_EFFECTS
    return effects_for(generation, usual_values() if values is None else values, without)
