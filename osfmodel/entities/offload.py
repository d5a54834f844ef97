"""Offload: the part of a training step that lies in the memory of a GPU's host, and is updated there.

``optimizer``: the state, and what of the parameters is a master copy, are with the host, as under ZeRO-Offload (Ren et
al., ATC'21; DeepSpeed's ``offload_optimizer``, Megatron's ``--optimizer-cpu-offload``): gradients go there, the CPU
updates, and parameters come back. FSDP2 has no such thing: its ``CPUOffloadPolicy`` keeps shards of parameters and
gradients with the host too, and its plans are computed so.

``activations``: what blocks keep for backward goes to the host after the forward of each, and comes back before its
backward, beside the computation of a block (torchtune's ``OffloadActivations``, Transformer Engine's CPU offloading).
"""

from __future__ import annotations

from dataclasses import dataclass

from osfmodel.entities.display import brief

OPTIMIZER, ACTIVATIONS = "optimizer", "activations"
OFFLOADED = (OPTIMIZER, ACTIVATIONS)
"""Kinds of what may lie with the host."""


@dataclass(frozen=True, slots=True)
class Offload:
    """Things of a worker that lie with the host.

    kinds:            of OFFLOADED
    leaving, entering: parts of the update's time in which all gradients go to the host, and all parameters come back
    state_bytes:      that the host holds for all parameters: their master copy, gradients, and the optimizer's state
    activation_bytes: that it holds of a micro-batch
    """

    kinds: tuple[str, ...]
    leaving: float = 0.0
    entering: float = 0.0
    state_bytes: int = 0
    activation_bytes: int = 0
    __repr__ = brief

    @property
    def words(self) -> str:
        """The part of a workload in words: ``offload=optimizer+activations``."""
        return f"offload={'+'.join(self.kinds)}"
