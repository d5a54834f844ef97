"""Time and memory of what a GPU's host has of a counted workload (``entities.offload``)."""

from __future__ import annotations

from collections.abc import Mapping

from osfmodel.counting.modules import Model
from osfmodel.entities.gpus import HostLink
from osfmodel.entities.offload import OPTIMIZER, Offload

CPU_ADAM = 0.43
"""Part of the rate of a host's memory that an update on the CPU reaches: 10 billion parameters in 2.57 s on a DGX-2 of
256 GB/s (ZeRO-Offload, ATC'21, its CPU-Adam). One machine: assumed for all others."""
MOVED = 4
"""Bytes of a parameter, or its gradient, that cross the link: DeepSpeed, Megatron and FSDP2 move float32."""


def update_on_host(host: HostLink, parameters: int, each: int) -> tuple[float, float]:
    """Seconds of an update on the CPU with all moves, and the part of them in which gradients leave (parameters come).

    each: bytes of a parameter that the CPU reads and writes
    """
    moves = MOVED * parameters / host.link
    whole = each * parameters / (CPU_ADAM * host.memory) + 2 * moves
    return whole, moves / whole if whole else 0.0


def host_share(model: Model, kinds: tuple[str, ...], away: Mapping[str, int], moved: float, state: int) -> Offload:
    """The part of a workload that the host has, with bytes of activations of blocks that are ``away`` there.

    moved: part of the update's time in which gradients leave, or parameters come
    state: bytes of a parameter that the optimizer keeps, beside master copy and gradient
    """
    held = (state + 2 * MOVED) * model.trained * (OPTIMIZER in kinds)
    return Offload(kinds, moved, moved, held, sum(away.values()))


def beside_moves(
    model: Model, away: Mapping[str, int], times: Mapping[str, tuple[float, float]], link: float
) -> dict[str, tuple[float, float]]:
    """``times`` with each block at least as long, in forward and in backward, as its activations take over the link."""
    if not away:
        return dict(times)
    moves = {block: size / link for block, size in away.items()}
    whole = dict.fromkeys(moves, (0.0, 0.0))
    for module in model.modules:
        if (block := model.block_of(module)) in moves:
            whole[block] = whole[block][0] + times[module.name][0], whole[block][1] + times[module.name][1]
    found = dict(times)
    for module in model.modules:
        if (block := model.block_of(module)) in moves:
            longer = [max(1.0, moves[block] / own) if own else 1.0 for own in whole[block]]
            found[module.name] = times[module.name][0] * longer[0], times[module.name][1] * longer[1]
    return found
