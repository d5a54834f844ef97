"""Caveats of a prediction: error bands, extrapolation, the effects in it, and missing data."""

from __future__ import annotations

import re
from collections.abc import Sequence

from osfmodel.cost import COST_MODELS, network_rates, worker_counts
from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import Cost, TableCost
from osfmodel.counting import in_words
from osfmodel.engine.bands import incomparable, kind_of, wider
from osfmodel.engine.sparse import Sparsity
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import show_bytes, show_share, show_time
from osfmodel.entities.effects import EFFECTS
from osfmodel.entities.errors import UsageError
from osfmodel.entities.files.usual_effects import gpu_unknown
from osfmodel.entities.gpus import generation_of
from osfmodel.entities.modules import FULLY_SHARDED, HYBRID_SHARDED, SHARDED
from osfmodel.entities.plan import Plan
from osfmodel.entities.source import NO_GPU
from osfmodel.entities.workload import Workload


def effect_caveats(pricing: Pricing, cluster: Cluster, workload: Workload) -> tuple[str, ...]:
    """A caveat that names the effects in a prediction, and says that plans are not proven best under some of them."""
    effects = pricing.effects
    if not effects.active:
        return UNKNOWN_GPU if pricing.workers > 1 and gpu_unknown(workload, cluster) else ()
    named = ", ".join(f"{name} {shown(name, value)}" for name, value in effects.active.items())
    if not cluster.effects.active:
        return (f"usual effects on such GPUs applied: {named} (--effect none leaves them out)",)
    unseen = any(effects.apart_from_cost.apart_from_compute.active)
    left_out = "the bound does not count all of them, and `optimal` is the best plan found with them, not proven"
    proof = f"; {left_out}" if unseen else ""
    copies = [name for name in effects.active if "copy" in name]
    verb = "are" if len(copies) > 1 else "is"
    alike = f"; {' and '.join(copies)} {verb} specific to one framework but charged to every plan not tied to another"
    return (f"effects applied: {named}{alike if copies else ''}{proof}",)


def flight_caveats(cluster: Cluster) -> tuple[str, ...]:
    """A caveat for libraries that run several collectives at once: no optimum is proven then."""
    if cluster.in_flight == 1:
        return ()
    return (f"with {cluster.in_flight} collectives in flight at once; `optimal` is then the best found, not proven",)


def shown(effect: str, value: float) -> str:
    """The value of an effect with its unit, for people."""
    unit = EFFECTS[effect].unit
    if unit == "s":
        return show_time(value)
    return show_share(value) if unit == "fraction" else f"{value:.3g} {unit}"


def device_caveats(workload: Workload, cluster: Cluster) -> tuple[str, ...]:
    """A note where the profile is of a CPU or of GPUs of another generation than the cluster's: its times are kept."""
    words = re.match(r"nccl:\s*([^,]+)x[0-9]+", cluster.name)
    mine, theirs = workload.source.gpu, words[1] if words else cluster.source.gpu
    if mine == NO_GPU and generation_of(theirs):
        said = f"the profile is of a CPU, the cluster of {theirs}: times are the CPU's unless --compute xF scales them"
        return (said,)
    if not generation_of(mine) or not generation_of(theirs) or generation_of(mine) == generation_of(theirs):
        return ()
    return (
        f"the profile is of a {mine}, the cluster of {theirs}: times are the {mine}'s unless --compute xF scales them",
    )


def sequence_caveats(workload: Workload) -> tuple[str, ...]:
    """A note on samples of a counted workload that are longer than its model's configuration is for."""
    if not workload.sample_tokens or not in_words(workload.name):
        return ()
    from osfmodel.counting.words import beyond_positions  # not loaded for a profile

    return tuple(filter(None, [beyond_positions(workload.name)]))


UNKNOWN_GPU = (
    "no GPU is named, so that the usual effects of frameworks on GPUs are left out and times are likely too short: "
    'import with --gpu NAME, or write "gpu" into the source of the workload or the cluster',
)


def band_caveats(plan: Plan, pricing: Pricing) -> tuple[str, ...]:
    """A note where a prediction has a wide error band or none, since nothing comparable was measured."""
    reason = incomparable(plan, pricing) if pricing.workers > 1 else ""
    if wider(plan, pricing):
        return (f"{WIDE} nothing comparable was measured ({reason}), runs on {kind_of(plan, pricing)} are nearest",)
    return (f"{BANDLESS} nothing comparable was measured ({reason})",) if reason else ()


BANDLESS, WIDE = "no error band:", "wide error band:"
NETWORK = "network:"
"""Beginnings of the notes on a prediction without an error band, with a wide one, and on the network."""


MOSTLY_SENDING = 0.6
"""Part of the cores' time, in large messages, at which the many messages of a plan keep all cores busy: between
emulated hosts runs were 4 to 12 % slower than predicted from there on, and 5 % at most below (docs/ledger)."""


def cpu_share(cluster: Cluster, plan: Plan, workers: int, seconds: float) -> float | None:
    """The part of the cores' time, in ``seconds``, that sending a plan takes, at that of the largest messages measured.

    None where no processor time was measured for all-reduces of so many workers.
    """
    for table in cluster.tables:
        if table.workers == workers and table.collective == "all_reduce" and table.cpu_share is not None:
            sending = sum(bucket.size for bucket in plan.buckets) * table.times[-1] / table.sizes[-1]
            return table.cpu_share * sending / seconds if seconds else None
    return None


def shape_caveats(workload: Workload, plan: Plan) -> tuple[str, ...]:
    """A note that FSDP2's padding of parameters is left out, where the workload has no shapes."""
    sent = [layer for layer in workload.layers if layer.gradient_bytes]
    if plan.strategy not in SHARDED or all(layer.shape for layer in sent):
        return ()
    return ("FSDP2's padding of dimension 0 is left out: this profile has no shapes of parameters",)


def apart_caveats(cluster: Cluster) -> tuple[str, ...]:
    """A note for groups of ranks that are apart on a cluster that was measured between consecutive ones."""
    if not worker_counts(cluster):
        return ()
    return (
        f"groups of ranks apart are taken to send together what all of them do: {cluster.name} has no other prices",
    )


def replica_caveats(strategy: str, plan: Plan, pricing: Pricing, cluster: Cluster) -> tuple[str, ...]:
    """A note where a plan for HSDP is FSDP2's, with one replica, as its replicas follow the nodes, or on its prices."""
    if plan.strategy == HYBRID_SHARDED:
        return apart_caveats(cluster)
    if strategy != HYBRID_SHARDED or plan.strategy != FULLY_SHARDED or pricing.workers == 1:
        return ()
    each, count = pricing.per_host, pricing.workers
    if 1 < each < count and not count % each:
        return ()
    why = (
        "are on one node"
        if count <= each
        else f"do not fill nodes of {each}"
        if each > 1
        else "are on nodes of one GPU"
    )
    return (f"HSDP has one replica here, as FSDP2: {count} workers {why}",)


def busy_caveats(
    cluster: Cluster, workload: Workload, plan: Plan, workers: int, iteration_time: float
) -> tuple[str, ...]:
    """A note where ranks would keep the cores busy while they send, which stock frameworks do not in forward."""
    seconds = iteration_time - (0 if plan.forward_overlap else workload.forward_time)
    share = cpu_share(cluster, plan, workers, seconds)
    if share is None or share <= MOSTLY_SENDING:
        return ()
    said = f"sending takes {show_share(min(share, 1.0))} of the time of the cores, as `osf bench` measured it"
    return (f"{said}: what computes on them has to wait, and a run may be slower than predicted",)


def require_nouns(workload: object, cluster: object) -> None:
    """Raise UsageError, saying how to get one, if either is not a Workload or not a Cluster."""
    for value, noun, load in ((workload, Workload, "load_workload"), (cluster, Cluster, "load_cluster")):
        if not isinstance(value, noun):
            raise UsageError(f"{value!r} is not a {noun.__name__}: get one with osfmodel.{load}(name or path)")


def extrapolation(plan: Plan, cost: Cost) -> tuple[str, ...]:
    """A warning if a message is larger or smaller than any that was measured."""
    return _beyond([bucket.size for bucket in plan.buckets if bucket.density is None], cost)


def plan_extrapolation(workload: Workload, plan: Plan, pricing: Pricing) -> tuple[str, ...]:
    """Warnings about every message of ``plan``, those of sparse buckets at the price of an all-gather."""
    sparsity = Sparsity(workload, pricing.effects, pricing.workers)
    gathered = [sparsity.gathered_bytes(bucket) for bucket in plan.buckets if bucket.density is not None]
    notes = extrapolation(plan, pricing.cost()) + _beyond(gathered, pricing.cost("all_gather"))
    unmeasured = plan.sparse and pricing.workers > 1 and not (pricing.effects.select or pricing.effects.select_time)
    said = "what selecting entries computes is not known here and left out: measure it with `osf bench`"
    guessed = plan.sparse and "all_gather" in pricing.assumed
    assumed = "all-gathers are priced at half an all-reduce: measure them with `osf bench --collective all_gather`"
    return tuple(dict.fromkeys(notes)) + ((said,) if unmeasured else ()) + ((assumed,) if guessed else ())


def _beyond(sizes: Sequence[int], cost: Cost) -> tuple[str, ...]:
    measured = cost.measured_range
    if measured is None or not sizes:
        return ()
    smallest, largest = min(sizes), max(sizes)
    notes = []
    if largest > measured[1]:
        notes.append(f"messages over {show_bytes(measured[1])} were not measured; their times are extrapolated")
    if smallest < measured[0]:
        flat = isinstance(cost, TableCost) and cost.sizes[0] >= measured[0]
        least = show_bytes(measured[0])
        how = f"they are assumed to take as long as {least}" if flat else "their times are extrapolated"
        notes.append(f"messages under {least} were not measured; {how}")
    return tuple(notes)


def cluster_warnings(cluster: Cluster, workers: int) -> tuple[str, ...]:
    """Warnings of a bandwidth that no usual machine has, of a node in part, and of a worker count not in a fit."""
    doubts = COST_MODELS[cluster.cost_model].doubts(cluster, workers)
    return doubts + _part_of_a_node(cluster, workers) + _count_warnings(cluster, workers)


def _part_of_a_node(cluster: Cluster, workers: int) -> tuple[str, ...]:
    each = cluster.gpus_per_node
    if workers <= each or not workers % each:
        return ()
    return (f"{workers} workers fill nodes of {each} unevenly: the last node has {workers % each}",)


def slower_than_one(alone: float, workers: int, iteration_time: float) -> tuple[str, ...]:
    """A note where the workers together train more slowly than one of them, which takes ``alone`` seconds."""
    if workers == 1 or iteration_time <= workers * alone:
        return ()
    remedies = "send less (--accumulate, --compression) or use a faster network"
    return (f"{workers} workers train more slowly than one alone: {remedies}",)


def network_caveats(cluster: Cluster, workers: int) -> tuple[str, ...]:
    """A note on the bandwidth per GPU and per node, for a cluster in words whose network is used."""
    rates = network_rates(cluster)
    used = workers > cluster.gpus_per_node and cluster.name.startswith(f"{cluster.cost_model}:")
    return (f"{NETWORK} {rates}",) if rates and used else ()


def _count_warnings(cluster: Cluster, workers: int) -> tuple[str, ...]:
    if cluster.fitted is None or workers == 1 or workers in cluster.fitted.workers:
        return ()
    fitted = ", ".join(map(str, cluster.fitted.workers))
    return (f"prices for {workers} workers are extrapolated from a fit to {fitted} workers",)


SIZED = "record a trace with record_shapes=True, import it with --model, or use osf profile"
"""Ways to get a workload whose gradients have sizes."""


def size_warnings(workload: Workload, workers: int) -> tuple[str, ...]:
    """A warning if several workers have nothing to send, unlike any real training."""
    if workload.gradient_bytes or workers == 1:
        return ()
    return (f"no gradient of {workload.name!r} has a size, so that nothing is sent and scaling looks perfect: {SIZED}",)
