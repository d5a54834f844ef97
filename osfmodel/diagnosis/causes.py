"""The causes of a step's time and their costs: the step is replayed with one after the other taken away.

The step as traced is replayed (:mod:`osfmodel.diagnosis.replay`); then causes are taken away one after the other, in
the order of CAUSES, and the time by which the replay gets shorter is the gain of that cause. So the gains and the
computation that is left add up to the replayed step. Causes that settings can mend come before those that need other
hardware: a bucket that could have been hidden is not counted as ``bandwidth``, which is only what no plan could hide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from osfmodel.diagnosis import sentences
from osfmodel.diagnosis.explanation import COMPUTE, Explanation, Gains
from osfmodel.diagnosis.replay import Replays


@dataclass(frozen=True, slots=True)
class Cause:
    """A possible cause of lost time in a step.

    without:         seconds of the step without it and all causes before it in the table
    summary:         the state of the job once it is taken away
    label:           its name in tables, if not its key
    sentence:        about a job that it limits, given the seconds that it costs
    of_network:      whether it is about communication, not about a rank
    of_rank:         whether it points to one rank, the straggler, which is named if it costs enough
    remedy:          name and description of a setting that alone takes it away, else None
    caution:         what its remedy's figure leaves out, or ""
    needs_all_ranks: whether only the traces of all ranks show it; it costs nothing with one rank's
    stays:           what of it is left by remedies that the model prices, or ""
    sharded:         whether only jobs with sharded parameters can have it
    """

    without: Callable[[Replays], float]
    summary: str
    sentence: Callable[[Explanation, float], str]
    of_network: bool = False
    of_rank: bool = False
    remedy: tuple[str, str] | None = None
    caution: str = ""
    needs_all_ranks: bool = False
    stays: str = ""
    label: str = ""
    sharded: bool = False


NETWORKS = (2, 10)
"""Factors of faster networks that are replayed, so that what they save agrees with what causes cost."""

CAUSES: Mapping[str, Cause] = MappingProxyType(
    {
        "input": Cause(
            Replays.with_input_there,
            "no rank waits for its data loader",
            sentences.input_stalls,
            remedy=("input", "a data loader that never keeps a rank waiting"),
        ),
        "uneven-exchange": Cause(
            Replays.of_even_exchanges,
            "every rank gets as many bytes in an all-to-all as in the mean of the ranks",
            sentences.uneven_exchange,
            of_network=True,
            label="uneven all-to-all",
            remedy=("even-exchange", "tokens or rows spread evenly in all-to-alls (expert capacity, balanced tables)"),
            caution="of the collectives; computation is imbalance",
            needs_all_ranks=True,
        ),
        "imbalance": Cause(
            Replays.of_equal_ranks,
            "every rank does its own work as fast as the median rank",
            sentences.imbalance,
            of_rank=True,
            remedy=("balance", "every rank as fast as the median rank"),
            needs_all_ranks=True,
        ),
        "negotiation": Cause(
            Replays.prompt,
            "a collective starts as soon as its gradients are there and the network is free",
            sentences.negotiation,
            of_network=True,
            label="launch delay",
            remedy=("launch", "collectives sent as soon as their gradients are there"),
        ),
        "every-micro-batch": Cause(
            Replays.reduced_once,
            "gradients are reduced in the last micro-batch of a step only",
            sentences.every_micro_batch,
            of_network=True,
            label="reduced in every micro-batch",
            remedy=("once", "gradients reduced once a step: no_sync (DDP), set_requires_gradient_sync(False) (FSDP2)"),
            caution="FSDP2 then keeps whole gradients in memory",
        ),
        "blocking": Cause(
            Replays.not_blocked,
            "collectives go in the background while the host computes",
            sentences.blocking,
            of_network=True,
            label="blocking collectives",
            remedy=("background", "collectives in the background: NCCL, or _set_unshard_async_op(True) over gloo"),
            caution="upper limit: gloo's reduce-scatters block unless they are replaced too",
            sharded=True,
        ),
        "one-communicator": Cause(
            Replays.of_two_communicators,
            "all-gathers do not queue behind reduce-scatters",
            sentences.one_communicator,
            of_network=True,
            label="one communicator",
            remedy=("two-communicators", "set_separate_reduce_scatter_group(True), in torch 2.13 and later"),
            caution="both share the network",
            sharded=True,
        ),
        "reduce-scatter-input": Cause(
            Replays.with_more_inputs,
            "backward goes on before the reduce-scatter in flight has ended",
            sentences.reduce_scatter_input,
            of_network=True,
            label="waits for reduce-scatter input",
            remedy=("more-inputs", "set_reduce_scatter_max_input_buffers(2) or more"),
            caution="takes memory for another group of gradients each",
            sharded=True,
        ),
        "gathered-twice": Cause(
            Replays.gathered_once,
            "parameters stay after forward, and backward gathers none",
            sentences.gathered_twice,
            of_network=True,
            label="gathered twice",
            remedy=("keep", "reshard_after_forward=False (FSDP1: SHARD_GRAD_OP)"),
            caution="if all parameters fit in memory at once; copies are left out",
            sharded=True,
        ),
        "first-gather": Cause(
            Replays.gathered_before,
            "the parameters of the first block are there when the step begins",
            sentences.first_gather,
            of_network=True,
            label="first gather",
            remedy=("early-gather", "gathering the first groups while the optimizer runs (set_post_optim_event)"),
            caution="upper limit: all of it hidden",
            sharded=True,
        ),
        "last-reduce-scatter": Cause(
            Replays.reduced_before,
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
            Replays.of_own_networks,
            "each process group has a network of its own",
            sentences.shared_network,
            of_network=True,
            label="groups share a network",
            remedy=(
                "own-networks",
                "collectives of one process group at a time, or links of its own for each (NCCL_IB_HCA, another NIC)",
            ),
            caution="if the groups do share links: NVLink and NICs are apart",
        ),
        "find-unused": Cause(
            Replays.in_ready_order,
            "buckets are formed in the order in which gradients become ready, and no map of used parameters is sent",
            sentences.find_unused,
            of_network=True,
            remedy=("static-graph", "buckets in ready order: static_graph=True, or no find_unused_parameters"),
            stays="buckets out of order",
        ),
        "latency": Cause(
            Replays.without_startups,
            "a message costs its bytes only, no start-up",
            sentences.latency,
            of_network=True,
        ),
        "late-bucket": Cause(
            Replays.flowing,
            "every gradient is sent by itself as soon as it is there, at the same time per byte",
            sentences.late_bucket,
            of_network=True,
            label="waits for bucket to fill",
        ),
        "bandwidth": Cause(
            Replays.without_messages,
            "infinite bandwidth: bytes take no time either",
            sentences.bandwidth,
            of_network=True,
        ),
        "host": Cause(
            Replays.never_idle,
            "no unexplained idle time of the device",
            sentences.host,
            remedy=("host", "a host that never keeps the device waiting"),
            caution="upper limit: the profiler slows the host",
        ),
    }
)
"""Causes by name, in the order in which they are taken away. Computation and copies are left at the end."""


def gains_of(replays: Replays) -> Gains:
    """The cost of each of CAUSES in one step, never below zero."""
    replayed = left = replays.as_traced()
    gains = {}
    for name, cause in CAUSES.items():
        shown = len(replays.ranks) > 1 or not cause.needs_all_ranks
        after = min(left, cause.without(replays)) if shown else left
        gains[name], left = left - after, after
    networks = {factor: replayed - replays.on_faster_network(factor) for factor in NETWORKS}
    return Gains(replayed, gains, networks, {name: max(0.0, saved) for name, saved in replays.alone.items()})


def verdict(one: Explanation) -> str:
    """A sentence on the costliest cause, then one on the straggler or the network if that is another cause."""
    slow = None if one.straggler is None else costliest(one.gains, lambda cause: cause.of_rank)
    others = dict.fromkeys(cause for cause in (slow, one.network) if cause is not None and cause != one.cause)
    first = sentences.compute_bound(one) if one.cause == COMPUTE else _sentence(one, one.cause)
    return " ".join(filter(None, [sentences.replay_error(one), first, *(_sentence(one, cause) for cause in others)]))


def costliest(seconds: Mapping[str, float], which: Callable[[Cause], bool]) -> str | None:
    """The costliest cause in ``seconds`` for which ``which`` is true; None if there is none."""
    return max((name for name in seconds if which(CAUSES[name])), key=seconds.__getitem__, default=None)


def _sentence(one: Explanation, cause: str) -> str:
    said = CAUSES[cause].sentence(one, one.gains[cause])
    doubt = CAUSES[cause].of_network and one.workers > 1 and one.parts.waiting is None
    return f"{sentences.network_or_rank(one)} {said}" if doubt else said
