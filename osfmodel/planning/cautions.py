"""Cautions about a finished result: error bands, extrapolation, the effects in it, and missing data.

CAUTIONS is the table: when a row applies, its sentence, its remedy. They are gathered once, from what is finished. To
add one: a row, and where it needs figures a generator of the words in its sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from osfmodel.cost import COST_MODELS, network_rates, worker_counts
from osfmodel.cost.clusters import cpu_share
from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import Cost, TableCost
from osfmodel.counting import in_words
from osfmodel.engine.bands import incomparable, is_counted, kind_of, too_many, wider
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.compression import INSTEAD, SPARSE
from osfmodel.entities.display import show_bytes, show_share, show_time
from osfmodel.entities.effects import EFFECTS
from osfmodel.entities.files.usual_effects import gpu_unknown
from osfmodel.entities.gpus import GPUS, generation_of, gpu_on_data_sheet
from osfmodel.entities.measurement import NO_GPU
from osfmodel.entities.modules import FULLY_SHARDED, HYBRID_SHARDED, SHARDED, unsharded
from osfmodel.entities.plan import Plan
from osfmodel.entities.workload import Workload

BANDLESS, WIDE = "no error band:", "wide error band:"
NETWORK = "network:"
"""Beginnings of the notes on a prediction without an error band, with a wide one, and on the network."""
MOSTLY_SENDING = 0.6
"""Part of the cores' time, in large messages, at which the many messages of a plan keep all cores busy: between
emulated hosts runs were 4 to 12 % slower than predicted from there on, and 5 % at most below (docs/ledger)."""
SIZED = "record a trace with record_shapes=True, import it with --model, or use osf profile"
"""Ways to get a workload whose gradients have sizes."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished prediction or tuning, as far as cautions look at it.

    workload: as each worker computes it
    stock:    prices for the framework, at each number of workers
    paid:     those that this plan was timed with
    asked:    the strategy that was asked for, which may have become another
    seconds:  of an iteration at the first number of workers
    alone:    seconds of a single worker
    ours:     whether our own engine made it, with all effects
    engine:   caveats of the engine
    """

    workload: Workload
    cluster: Cluster
    plan: Plan
    stock: Sequence[Pricing]
    paid: Sequence[Pricing]
    asked: str
    seconds: float
    alone: float
    ours: bool = True
    engine: tuple[str, ...] = ()

    @property
    def workers(self) -> int:
        """The largest number of workers."""
        return max(pricing.workers for pricing in self.stock)

    def warnings(self) -> tuple[str, ...]:
        """Warnings about workload, cluster, and prices beyond what was measured."""
        return tuple(dict.fromkeys(said for row in CAUTIONS.values() if row.warns for said in row.told(self)))

    def caveats(self) -> tuple[str, ...]:
        """Assumptions of the result."""
        rows = [row for row in CAUTIONS.values() if not row.warns and (self.ours or not row.ours)]
        return tuple(said for row in rows for said in row.told(self))


Words = Mapping[str, object]
"""The words of a sentence, by their names in it."""


class Caution(NamedTuple):
    """A row of CAUTIONS.

    when:     yields the words of the sentence, once for each time that it is to be said
    sentence: with the names of the words in braces
    remedy:   the words to do about it; "" for none
    warns:    whether it is a warning, told on stderr also
    ours:     whether it is about our own engine only
    """

    when: Callable[[Finished], Iterable[Words]]
    sentence: str
    remedy: str = ""
    warns: bool = False
    ours: bool = False

    def told(self, found: Finished) -> Iterator[str]:
        """The sentences with their remedies."""
        for words in self.when(found):
            yield (f"{self.sentence}: {self.remedy}" if self.remedy else self.sentence).format(**words)


def _named(active: Mapping[str, float]) -> str:
    """Effects with their values and units, for people."""
    return ", ".join(f"{name} {_valued(value, EFFECTS[name].unit)}" for name, value in active.items())


def _valued(value: float, unit: str) -> str:
    if unit == "s":
        return show_time(value)
    return show_share(value) if unit == "fraction" else f"{value:.3g} {unit}"


def once(applies: object, **words: object) -> list[Words]:
    """The words of a sentence that is said once, where it applies."""
    return [words] if applies else []


def unpadded(workload: Workload, plan: Plan) -> list[Words]:
    """Whether FSDP2's padding of parameters is left out, since the workload has no shapes."""
    return once(plan.strategy in SHARDED and not all(one.shape for one in workload.layers if one.gradient_bytes))


def apart(cluster: Cluster) -> list[Words]:
    """Whether groups of ranks apart are priced on a cluster that was measured between consecutive ones."""
    return once(worker_counts(cluster), cluster=cluster.name)


def _one_replica(found: Finished) -> Iterator[Words]:
    each, count = found.stock[0].per_host, found.stock[0].workers
    asked = found.asked == HYBRID_SHARDED and found.plan.strategy == FULLY_SHARDED
    if not asked or count == 1 or (1 < each < count and not count % each):
        return
    several = f"do not fill nodes of {each}" if each > 1 else "are on nodes of one GPU"
    yield {"workers": count, "why": "are on one node" if count <= each else several}


def _wide(found: Finished) -> Iterator[Words]:
    pricing = found.paid[-1]
    comparing = too_many if is_counted(found.workload, pricing) else incomparable
    why = comparing(found.plan, pricing) if pricing.workers > 1 else ""
    if why and wider(found.plan, pricing):
        yield {"why": why, "nearest": kind_of(found.plan, pricing)}


def _bandless(found: Finished) -> list[Words]:
    pricing = found.paid[-1]
    why = incomparable(found.plan, pricing) if pricing.workers > 1 else ""
    return once(why and not wider(found.plan, pricing), why=why)


def _unknown_selection(found: Finished) -> list[Words]:
    pricing = found.paid[0]
    known = pricing.effects.select or pricing.effects.select_time
    return once(found.plan.sparse and pricing.workers > 1 and not known)


def _unknown_hosts(found: Finished) -> list[Words]:
    pricing = found.paid[0]
    grouped = found.plan.strategy in SHARDED and pricing.workers > 1 and pricing.blocking
    return once(grouped and not pricing.hosts, cluster=found.cluster.name)


def _busy(found: Finished) -> list[Words]:
    """Whether ranks would keep the cores busy while they send, which stock frameworks do not in forward."""
    seconds = found.seconds - (0 if found.plan.forward_overlap else found.workload.forward_time)
    share = cpu_share(found.cluster, found.plan, found.stock[0].workers, seconds) or 0.0
    return once(share > MOSTLY_SENDING, share=show_share(min(share, 1.0)))


def _slower_than_one(found: Finished) -> list[Words]:
    workers = found.stock[0].workers
    return once(workers > 1 and found.seconds > workers * found.alone, workers=workers)


def _network(found: Finished) -> list[Words]:
    cluster, rates = found.cluster, network_rates(found.cluster)
    used = found.workers > cluster.gpus_per_node and cluster.name.startswith(f"{cluster.cost_model}:")
    return once(rates and used, rates=rates)


def _other_device(found: Finished) -> list[Words]:
    mine, theirs, exactly = found.workload.source.gpu, found.cluster.source.gpu, False
    if found.cluster.nccl is not None:
        from osfmodel.cost.nccl_words import gpu_in_words  # not loaded for other clusters

        if named := gpu_in_words(found.cluster.name):
            theirs, exactly = GPUS[named].called, gpu_on_data_sheet(mine) is not None
    another = mine != theirs if exactly else generation_of(mine) not in ("", generation_of(theirs))
    known = generation_of(theirs) and (another or mine == NO_GPU)
    return once(known, mine="CPU" if mine == NO_GPU else mine, theirs=theirs)


def _in_words(found: Finished) -> Iterator[Words]:
    if in_words(found.workload.name):
        from osfmodel.counting.remarks import remarks  # not loaded for a profile

        yield from ({"said": said} for said in remarks(found.workload.name))


def _no_gpu(found: Finished) -> list[Words]:
    pricing = found.stock[-1]
    named = pricing.effects.active or pricing.workers == 1 or not gpu_unknown(found.workload, found.cluster)
    return once(not named)


def _usual_effects(found: Finished) -> list[Words]:
    active = found.stock[-1].effects.active
    return once(active and not found.cluster.effects.active, named=_named(active))


def _effects(found: Finished) -> Iterator[Words]:
    effects = found.stock[-1].effects
    if not effects.active or not found.cluster.effects.active:
        return
    copies = [name for name in effects.active if "copy" in name]
    verb = "are" if len(copies) > 1 else "is"
    alike = f"; {' and '.join(copies)} {verb} specific to one framework but charged to every plan not tied to another"
    left_out = "the bound does not count all of them, and `optimal` is the best plan found with them, not proven"
    proof = f"; {left_out}" if effects.apart_from_cost.apart_from_compute.active else ""
    yield {"named": _named(effects.active), "further": (alike if copies else "") + proof}


def _sizeless(found: Finished) -> list[Words]:
    return once(not found.workload.gradient_bytes and found.workers > 1, workload=repr(found.workload.name))


def _doubts(found: Finished) -> Iterator[Words]:
    for pricing in found.stock:
        doubts = COST_MODELS[found.cluster.cost_model].doubts(found.cluster, pricing.workers)
        yield from ({"said": doubt} for doubt in doubts)


def _part_of_a_node(found: Finished) -> Iterator[Words]:
    each = found.cluster.gpus_per_node
    for pricing in found.stock:
        if pricing.workers > each and pricing.workers % each:
            yield {"workers": pricing.workers, "each": each, "last": pricing.workers % each}


def _unfitted_count(found: Finished) -> Iterator[Words]:
    fitted = found.cluster.fitted
    for pricing in found.stock:
        if fitted is not None and pricing.workers > 1 and pricing.workers not in fitted.workers:
            yield {"workers": pricing.workers, "fitted": ", ".join(map(str, fitted.workers))}


def _unmeasured_sizes(found: Finished) -> Iterator[Words]:
    whole = [bucket.size for bucket in found.plan.buckets if bucket.density is None]
    for pricing in found.paid:
        from osfmodel.engine.sparse import Sparsity  # not loaded for other plans

        sparsity = Sparsity(found.workload, pricing.effects, pricing.workers)
        gathered = [sparsity.gathered_bytes(bucket) for bucket in found.plan.buckets if bucket.density is not None]
        for sizes, collective in ((whole, "all_reduce"), (gathered, "all_gather")):
            yield from _beyond(sizes, pricing.cost(collective)) if sizes else ()


def _beyond(sizes: Sequence[int], cost: Cost) -> Iterator[Words]:
    measured = cost.measured_range
    if measured is None:
        return
    if max(sizes) > measured[1]:
        yield {"side": "over", "size": show_bytes(measured[1]), "how": "their times are extrapolated"}
    if min(sizes) < measured[0]:
        flat = isinstance(cost, TableCost) and cost.sizes[0] >= measured[0]
        least = show_bytes(measured[0])
        how = f"they are assumed to take as long as {least}" if flat else "their times are extrapolated"
        yield {"side": "under", "size": least, "how": how}


UNCOMPARED = " nothing comparable was measured ({why})"
UNPADDED = "FSDP2's padding of dimension 0 is left out: this profile has no shapes of parameters"
APART = "groups of ranks that are not neighbours are priced as neighbours: {cluster} has no other prices"
SLOWER = "{workers} workers train more slowly than one alone"
CAUTIONS: Mapping[str, Caution] = {
    "padding": Caution(lambda found: unpadded(found.workload, found.plan), UNPADDED),
    "apart": Caution(lambda found: apart(found.cluster) if found.plan.strategy == HYBRID_SHARDED else (), APART),
    "one-replica": Caution(_one_replica, "HSDP has one replica here, as FSDP2: {workers} workers {why}"),
    "wide-band": Caution(_wide, WIDE + UNCOMPARED + ", runs on {nearest} are nearest", ours=True),
    "no-band": Caution(_bandless, BANDLESS + UNCOMPARED, ours=True),
    "busy-cores": Caution(
        _busy,
        "sending takes {share} of the time of the cores, as `osf bench` measured it: what computes on them has to "
        "wait, and a run may be slower than predicted",
        ours=True,
    ),
    "slower-than-one": Caution(
        _slower_than_one, SLOWER, "send less (--accumulate, --compression) or use a faster network", ours=True
    ),
    "network": Caution(_network, NETWORK + " {rates}"),
    "other-device": Caution(
        _other_device,
        "times, and limits of memory unless given, are those of {mine}, the cluster has {theirs}",
        "--compute xF scales the times",
    ),
    "in-words": Caution(_in_words, "{said}"),
    "unsharded": Caution(lambda found: ({"said": one} for one in unsharded(found.workload, found.plan)), "{said}"),
    "engine": Caution(lambda found: ({"said": one} for one in found.engine), "{said}"),
    "no-gpu": Caution(
        _no_gpu,
        "no GPU is named, so that the usual effects of frameworks on GPUs are left out and times are likely too short",
        'import with --gpu NAME, or write "gpu" into the source of the workload or the cluster',
        ours=True,
    ),
    "usual-effects": Caution(
        _usual_effects, "usual effects on such GPUs applied: {named} (--effect none leaves them out)", ours=True
    ),
    "effects": Caution(_effects, "effects applied: {named}{further}", ours=True),
    "in-flight": Caution(
        lambda found: once(found.cluster.in_flight > 1, count=found.cluster.in_flight),
        "with {count} collectives in flight at once; `optimal` is then the best found, not proven",
        ours=True,
    ),
    "sizeless": Caution(
        _sizeless,
        "no gradient of {workload} has a size, so that nothing is sent and scaling looks perfect",
        SIZED,
        warns=True,
    ),
    "cluster": Caution(_doubts, "{said}", warns=True),
    "part-of-a-node": Caution(
        _part_of_a_node,
        "{workers} workers fill nodes of {each} unevenly: the last node has {last}",
        warns=True,
    ),
    "unfitted-count": Caution(
        _unfitted_count, "prices for {workers} workers are extrapolated from a fit to {fitted} workers", warns=True
    ),
    "unmeasured-sizes": Caution(_unmeasured_sizes, "messages {side} {size} were not measured; {how}", warns=True),
    "unknown-selection": Caution(
        _unknown_selection,
        "the time to select entries is not known here and left out",
        "measure it with `osf bench`",
        warns=True,
    ),
    "unknown-hosts": Caution(
        _unknown_hosts,
        "what the host takes for each collective was not measured on {cluster} and is left out: steps may take longer",
        "run `osf bench` on all ranks",
        warns=True,
    ),
    "sparse-loss": Caution(lambda found: once(found.plan.sparse), SPARSE, INSTEAD),
    "guessed-gathers": Caution(
        lambda found: once(found.plan.sparse and "all_gather" in found.paid[0].assumed),
        "all-gathers are priced at half an all-reduce",
        "measure them with `osf bench --collective all_gather`",
        warns=True,
    ),
}
"""By name, in the order in which they are told."""
