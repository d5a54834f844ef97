"""The causes of a step's time and their costs: the step is replayed with one after the other taken away.

The step as traced is replayed (:mod:`osfmodel.diagnosis.replay`); then causes are taken away one after the other, in
the order of CAUSES, and the time by which the replay gets shorter is the gain of that cause. So the gains and the
computation that is left add up to the replayed step. Causes that settings can mend come before those that need other
hardware: a bucket that could have been hidden is not counted as ``bandwidth``, which is only what no plan could hide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from osfmodel.diagnosis import sentences
from osfmodel.diagnosis.explanation import COMPUTE, Explanation, Gains
from osfmodel.diagnosis.replay import Replays
from osfmodel.diagnosis.scene import Scene
from osfmodel.entities.records import dataclass


@dataclass(frozen=True, slots=True)
class Cause:
    """A possible cause of lost time in a step.

    without:         the step without it and without all causes before it in the table
    summary:         the state of the job once it is taken away
    sentence:        about a job that it limits, given the seconds that it costs; the label comes before it
    label:           its name in tables and verdicts, if not its key with spaces
    of_network:      whether it is about communication, not about a rank
    of_rank:         whether it points to one rank, the straggler, which is named if it costs enough
    remedy:          name and description of a setting that alone takes it away, else None
    caution:         what its remedy's figure leaves out, or ""
    by_itself:       the step without it while the causes that may hide it stay, and only launch delay and causes
                     before it are gone; None if no other cause hides it
    needs_all_ranks: whether only the traces of all ranks show it; it costs nothing with one rank's
    stays:           what the gains of other buckets and hooks assume of it, or ""
    sharded:         whether only jobs with sharded parameters can have it
    """

    without: Callable[[Replays], Scene]
    summary: str
    sentence: Callable[[Explanation, float], str]
    label: str = ""
    of_network: bool = False
    of_rank: bool = False
    remedy: tuple[str, str] | None = None
    caution: str = ""
    by_itself: Callable[[Replays], Scene] | None = None
    needs_all_ranks: bool = False
    stays: str = ""
    sharded: bool = False


NETWORKS = (2, 10)
"""Factors of faster networks that are replayed, so that what they save agrees with what causes cost."""

CAUSES: Mapping[str, Cause] = MappingProxyType(
    {
        "input": Cause(
            lambda replays: replays.input_there,
            "no rank waits for its data loader",
            sentences.input_stalls,
            remedy=("input", "a data loader that never keeps a rank waiting"),
        ),
        "uneven-exchange": Cause(
            lambda replays: replays.even_exchanges,
            "all-to-alls balanced over the ranks",
            sentences.uneven_exchange,
            of_network=True,
            label="uneven all-to-all",
            remedy=("even-exchange", "tokens or rows spread evenly in all-to-alls (expert capacity, balanced tables)"),
            caution="communication only: uneven expert computation counts as imbalance",
            needs_all_ranks=True,
        ),
        "imbalance": Cause(
            lambda replays: replays.equal_ranks,
            "every rank does its own work as fast as the median rank",
            sentences.imbalance,
            of_rank=True,
            remedy=("balance", "every rank as fast as the median rank"),
            needs_all_ranks=True,
        ),
        "negotiation": Cause(
            lambda replays: replays.prompt,
            "a collective starts as soon as its gradients are there and the network is free",
            sentences.negotiation,
            of_network=True,
            label="launch delay",
            remedy=("launch", "collectives sent as soon as their gradients are there"),
        ),
        "every-micro-batch": Cause(
            lambda replays: replays.reduced_once,
            "gradients are reduced in the last micro-batch of a step only",
            sentences.every_micro_batch,
            of_network=True,
            label="reduced in every micro-batch",
            remedy=("once", "gradients reduced once a step: no_sync (DDP), set_requires_gradient_sync(False) (FSDP2)"),
            caution="FSDP2 then keeps whole gradients in memory",
        ),
        "blocking": Cause(
            lambda replays: replays.not_blocked,
            "collectives go in the background while the host computes",
            sentences.blocking,
            of_network=True,
            label="blocking collectives",
            remedy=("background", "collectives in the background: NCCL, or _set_unshard_async_op(True) over gloo"),
            caution="upper limit: gloo's reduce-scatters block unless they are replaced too",
            sharded=True,
        ),
        "one-communicator": Cause(
            lambda replays: replays.two_communicators,
            "all-gathers do not queue behind reduce-scatters",
            sentences.one_communicator,
            of_network=True,
            remedy=("two-communicators", "set_separate_reduce_scatter_group(True), in torch 2.13 and later"),
            caution="both share the network",
            by_itself=Replays.only_two_communicators,
            sharded=True,
        ),
        "reduce-scatter-input": Cause(
            lambda replays: replays.more_inputs,
            "backward goes on before the reduce-scatter in flight has ended",
            sentences.reduce_scatter_input,
            of_network=True,
            label="reduce-scatter input",
            remedy=("more-inputs", "set_reduce_scatter_max_input_buffers(2) or more"),
            caution="takes memory for another group of gradients each",
            by_itself=Replays.only_more_inputs,
            sharded=True,
        ),
        "gathered-twice": Cause(
            lambda replays: replays.gathered_once,
            "parameters stay after forward, and backward gathers none",
            sentences.gathered_twice,
            of_network=True,
            remedy=("keep", "reshard_after_forward=False (FSDP1: SHARD_GRAD_OP)"),
            caution="if all parameters fit in memory at once; copies are left out",
            by_itself=Replays.only_gathered_once,
            sharded=True,
        ),
        "first-gather": Cause(
            lambda replays: replays.gathered_before,
            "the parameters of the first block are there when the step begins",
            sentences.first_gather,
            of_network=True,
            remedy=("early-gather", "gathering the first groups while the optimizer runs (set_post_optim_event)"),
            caution="upper limit: all of it hidden",
            sharded=True,
        ),
        "last-reduce-scatter": Cause(
            lambda replays: replays.reduced_before,
            "the gradients that come last are reduced in no time",
            sentences.last_reduce_scatter,
            of_network=True,
            label="last reduce-scatter",
            remedy=(
                "small-last-group",
                "a smaller last group: the embedding and the first block in groups of their own",
            ),
            caution="upper limit: a group of no size",
            sharded=True,
        ),
        "shared-network": Cause(
            lambda replays: replays.own_networks,
            "each process group has a network of its own",
            sentences.shared_network,
            of_network=True,
            remedy=(
                "own-networks",
                "collectives of one process group at a time, or links of its own for each (NCCL_IB_HCA, another NIC)",
            ),
            caution="if the groups do share links: NVLink and NICs are apart",
            by_itself=Replays.only_own_networks,
        ),
        "find-unused": Cause(
            lambda replays: replays.ready_order,
            "buckets are formed in the order in which gradients become ready, and no map of used parameters is sent",
            sentences.find_unused,
            of_network=True,
            label="buckets out of order",
            remedy=("static-graph", "buckets in ready order: static_graph=True, or no find_unused_parameters"),
            stays="buckets stay out of order",
        ),
        "latency": Cause(
            lambda replays: replays.no_startups,
            "no start-up time per message",
            sentences.latency,
            of_network=True,
        ),
        "late-bucket": Cause(
            lambda replays: replays.each_gradient,
            "each gradient is sent as soon as it is ready, at the same bandwidth",
            sentences.late_bucket,
            of_network=True,
        ),
        "bandwidth": Cause(
            lambda replays: replays.no_messages,
            "infinite bandwidth: bytes take no time either",
            sentences.bandwidth,
            of_network=True,
        ),
        "host": Cause(
            lambda replays: replays.never_idle,
            "no unexplained idle time of the device",
            sentences.host,
            remedy=("host", "a host that never keeps the device waiting"),
            caution="upper limit: the profiler slows the host",
        ),
    }
)
"""Causes by name, in the order in which they are taken away. Computation and copies are left at the end."""


def label_of(cause: str) -> str:
    """The name of a cause, or of another part of a step, in tables and verdicts."""
    return CAUSES[cause].label or cause.replace("-", " ") if cause in CAUSES else cause


def gains_of(replays: Replays) -> Gains:
    """The cost of each of CAUSES in one step, never below zero."""
    replayed = left = replays.traced.duration
    gains, alone = {}, {}
    for name, cause in CAUSES.items():
        shown = len(replays.ranks) > 1 or not cause.needs_all_ranks
        after = min(left, cause.without(replays).duration) if shown else left
        gains[name], left = left - after, after
        if cause.by_itself is not None:
            alone[name] = max(0.0, replays.prompt.duration - cause.by_itself(replays).duration)
    networks = {factor: replayed - replays.faster_network(factor).duration for factor in NETWORKS}
    return Gains(replayed, gains, networks, alone)


def verdict(one: Explanation) -> str:
    """A sentence on the costliest cause, then one on the straggler or the network if that is another cause."""
    slow = None if one.straggler is None else costliest(one.gains, lambda cause: cause.of_rank)
    others = dict.fromkeys(cause for cause in (slow, one.network) if cause is not None and cause != one.cause)
    first = _compute_bound(one) if one.cause == COMPUTE else sentence(one, one.cause)
    return " ".join(filter(None, [sentences.replay_error(one), first, *(sentence(one, cause) for cause in others)]))


def costliest(seconds: Mapping[str, float], which: Callable[[Cause], bool]) -> str | None:
    """The costliest cause in ``seconds`` for which ``which`` is true; None if there is none."""
    return max((name for name in seconds if which(CAUSES[name])), key=seconds.__getitem__, default=None)


def sentence(one: Explanation, cause: str) -> str:
    """The sentence on a cause: its label, and what it costs."""
    label = label_of(cause)
    said = f"{label[0].upper()}{label[1:]}: {CAUSES[cause].sentence(one, one.gains[cause])}"
    doubt = CAUSES[cause].of_network and one.workers > 1 and one.parts.waiting is None
    return f"{sentences.network_or_rank(one)} {said}" if doubt else said


def _compute_bound(one: Explanation) -> str:
    largest = max(one.gains, key=one.gains.__getitem__)
    return sentences.compute_bound(one, one.part(largest), label_of(largest))
