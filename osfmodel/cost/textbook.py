"""Textbook algorithms over one kind of link: the latencies, bytes sent and bytes reduced of each.

A message of M bytes between N workers costs  alpha * rounds + M * (beta * sent + gamma * reduced),  with alpha,
beta, gamma of the slowest link on the way. All-reduce as in MG-WFBP (TPDS'21), Table 2; reduce-scatter and
all-gather, and worker counts that are not powers of two, as in Thakur, Rabenseifner and Gropp, "Optimization of
collective communication operations in MPICH", IJHPCA 19(1), 2005. Trees take ceil(log2 N) rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from osfmodel.cost.fitting import Fit, Sample, fit_nonnegative
from osfmodel.cost.model import LINK, STATED, CostModel, link_from_spec
from osfmodel.cost.shapes import AffineCost
from osfmodel.entities.cluster import Cluster, Link
from osfmodel.entities.errors import CostError, UsageError
from osfmodel.entities.units import show_rate


class Load(NamedTuple):
    """Rounds, and bytes sent and reduced per byte of message, on the busiest worker."""

    rounds: float
    sent: float
    reduced: float


Formula: TypeAlias = Callable[[int], Load]


def _depth(workers: int) -> int:
    """ceil(log2 workers)"""
    return (workers - 1).bit_length()


def _fold(workers: int) -> tuple[int, Load]:
    """Largest power of two within ``workers``, and the load of folding the surplus workers in and out."""
    power = 1 << (workers.bit_length() - 1)
    return power, Load(2, 2, 1) if power < workers else Load(0, 0, 0)


def _doubling(workers: int) -> Load:
    """Recursive doubling: pairs exchange the whole at doubling distance. Surplus workers are folded in and out."""
    power, fold = _fold(workers)
    steps = _depth(power)
    return Load(steps + fold.rounds, steps + fold.sent, steps + fold.reduced)


def _halving_doubling(workers: int) -> Load:
    """Rabenseifner: reduce-scatter by recursive halving, all-gather by recursive doubling."""
    power, fold = _fold(workers)
    part = (power - 1) / power
    return Load(2 * _depth(power) + fold.rounds, 2 * part + fold.sent, part + fold.reduced)


def _half(workers: int, reduces: bool) -> Load:
    """Either half of that: surplus workers first hand over a message or part, and last receive a part or the whole."""
    power, _ = _fold(workers)
    part, surplus = (power - 1) / power, power < workers
    sent = part + surplus * (1 + 1 / workers)
    return Load(_depth(power) + 2 * surplus, sent, part + surplus if reduces else 0)


def _part(workers: int) -> float:
    """The part of a message that a worker sends in either half of a ring: all but its own."""
    return (workers - 1) / workers


FORMULAS: Mapping[str, Mapping[str, Formula]] = {
    "ring": {  # N-1 steps to reduce-scatter, N-1 to all-gather
        "all_reduce": lambda n: Load(2 * (n - 1), 2 * _part(n), _part(n)),
        "reduce_scatter": lambda n: Load(n - 1, _part(n), _part(n)),
        "all_gather": lambda n: Load(n - 1, _part(n), 0),
    },
    "binary-tree": {  # reduce to a root along a tree, then broadcast or scatter; or gather there, then broadcast
        "all_reduce": lambda n: Load(2 * _depth(n), 2 * _depth(n), _depth(n)),
        "reduce_scatter": lambda n: Load(2 * _depth(n), _depth(n) + _part(n), _depth(n)),
        "all_gather": lambda n: Load(2 * _depth(n), _depth(n) + _part(n), 0),
    },
    # Two pipelined trees with half of the message each, as printed in the paper (beta + gamma per byte). NCCL's tree
    # sends 2 beta per byte, like the ring; the printed figure is what full duplex at every node would give. Each half
    # has half of the sending, and all of the adding, beside a scatter or gather.
    "double-binary-tree": {
        "all_reduce": lambda n: Load(2 * _depth(n), 1, 1),
        "reduce_scatter": lambda n: Load(2 * _depth(n), 0.5 + _part(n), 1),
        "all_gather": lambda n: Load(2 * _depth(n), 0.5 + _part(n), 0),
    },
    "recursive-doubling": {  # Thakur et al., sections 4.2 and 4.1: each worker's own part is not sent
        "all_reduce": _doubling,
        "reduce_scatter": lambda n: Load(_depth(n), *[max(_depth(n) - _part(n), _part(n))] * 2),
        "all_gather": lambda n: Load(_depth(n), _part(n), 0),
    },
    "halving-doubling": {
        "all_reduce": _halving_doubling,
        "reduce_scatter": partial(_half, reduces=True),
        "all_gather": partial(_half, reduces=False),
    },
}


def line(formula: Formula, link: Link, workers: int) -> tuple[float, float]:
    """(latency, seconds per byte) of an algorithm over ``link``."""
    load = formula(workers)
    per_byte = link.seconds_per_byte * load.sent + link.reduce_seconds_per_byte * load.reduced
    return link.latency * load.rounds, per_byte


def slowest_link(cluster: Cluster, workers: int) -> Link:
    """The slowest link in use: the one between nodes once the workers leave the first node."""
    within = workers <= cluster.gpus_per_node and cluster.in_node is not None
    link = cluster.in_node if within else cluster.between_nodes
    if link is None:
        missing = "in_node" if within else "between_nodes"
        raise CostError(
            f"cluster {cluster.name!r} has no {missing} link, which this cost model needs for {workers} workers"
        )
    return link


def cost(cluster: Cluster, workers: int, collective: str, algorithm: str) -> AffineCost:
    """The price of ``algorithm`` (a key of FORMULAS). Raises CostError if ``cluster`` lacks the link."""
    return AffineCost((line(FORMULAS[algorithm][collective], slowest_link(cluster, workers), workers),))


def from_spec(name: str, parts: Sequence[str], algorithm: str) -> Cluster:
    """The cluster of ``LATENCY,BANDWIDTH`` of the link that each worker has to the others. Raises UsageError."""
    if len(parts) != 2:
        form = f"write {algorithm}:LATENCY,BANDWIDTH, for example {algorithm}:50us,10Gbps (10 Gbps per GPU)"
        raise UsageError(f"{name!r} is not a cluster: {form}")
    return Cluster(name, algorithm, between_nodes=link_from_spec(*parts))


def rates(cluster: Cluster) -> str:
    """The link of each worker between nodes, in words; "" without one."""
    link = cluster.between_nodes
    return "" if link is None or not link.seconds_per_byte else f"{show_rate(1 / link.seconds_per_byte)} per GPU"


def fit(samples: Sequence[Sample], gpus_per_node: int, algorithm: str) -> Fit:
    """Latency and seconds per byte of the links that explain all-reduce times at every worker count given.

    Counts that fit on one node of several GPUs give the ``in_node`` link, all others ``between_nodes``. Sending and
    reducing grow with the size alike, so they cannot be told apart: all is put down to sending. ``parameters`` =
    {"in_node": Link, "between_nodes": Link}, without the one that the samples say nothing of.
    """
    formula = FORMULAS[algorithm]["all_reduce"]

    def regressors(workers: int, size: int) -> tuple[float, float]:
        load = formula(workers)
        return load.rounds, load.sent * size

    if not samples:
        raise CostError("there are no samples to fit")
    links: dict[str, Link] = {}
    residuals: dict[int, float] = {}
    within = {i for i, sample in enumerate(samples) if 1 < gpus_per_node >= sample.workers}
    for name, chosen in (("in_node", sorted(within)), ("between_nodes", sorted(set(range(len(samples))) - within))):
        if chosen:
            (latency, per_byte), errors = fit_nonnegative([samples[i] for i in chosen], regressors)
            links[name] = Link(latency, per_byte)
            residuals.update(zip(chosen, errors, strict=True))
    return Fit.of(samples, links, [residuals[i] for i in range(len(samples))])


def _model(algorithm: str, summary: str) -> CostModel:
    return CostModel(
        partial(cost, algorithm=algorithm),
        partial(fit, algorithm=algorithm),
        summary,
        link_parameters=LINK,
        uncertainty=lambda cluster, workers: (STATED, STATED),
        rates=rates,
        from_spec=partial(from_spec, algorithm=algorithm),
    )


RING = _model("ring", "ring over one kind of link")
BINARY_TREE = _model("binary-tree", "reduce to a root and broadcast")
DOUBLE_BINARY_TREE = _model("double-binary-tree", "two pipelined trees, optimistic as printed")
RECURSIVE_DOUBLING = _model("recursive-doubling", "pairs exchange everything at doubling distance")
HALVING_DOUBLING = _model("halving-doubling", "Rabenseifner: recursive halving, then doubling")
