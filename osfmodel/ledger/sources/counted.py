"""Profiles of AdaptDL's other models, counted from their code: every tensor, and each module's share of the time.

Nobody has published times of their layers. A prediction needs the bytes, which can be counted, and when each
gradient is ready as a share of the compute time, which is estimated here. All are labelled ``reconstructed``; times are
in no unit, for recipes bring them to a measured compute time.

The code is that of petuum/adaptdl, benchmark/models, with the settings of its jobs (adaptdljob.yaml).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import NamedTuple

from osfmodel.entities.files import profiles
from osfmodel.entities.measurement import Source
from osfmodel.entities.workload import Layer, Workload

FLOAT32 = 4
SECONDS_PER_FLOP, SECONDS_PER_BYTE, SECONDS_PER_NORMALISED_BYTE = 1 / 10.5e12, 1 / 829e9, 1 / 79e9
"""Constants of the FLOPs-and-bytes model fitted to ResNet-50 on a V100 (profiles/reconstruct.py); only ratios count."""


class TimedModule(NamedTuple):
    """A module of a model: its name, the time of its backward pass, and the shapes of its parameters."""

    name: str
    backward: float
    shapes: Sequence[tuple[int, ...]]


def workload(name: str, modules: Sequence[TimedModule], batch: int | None, conditions: str) -> Workload:
    """A workload of modules from input to output. Gradients of one are ready together; forward is half of backward."""
    layers = [
        Layer(f"{module.name}.{number}", time / 2, time, FLOAT32 * prod(shape))
        for module in modules
        for number, shape in enumerate(module.shapes)
        # Backward runs the other way: the last tensor is ready first, and carries the time of the module.
        for time in [module.backward if number == len(module.shapes) - 1 else 0.0]
    ]
    source = Source("petuum/adaptdl: benchmark/models, counted", f"reconstructed, not measured: {conditions}", "facts")
    return Workload(name, tuple(layers), batch, source=source)


# ------------------------------------------------------------------------------------------------------- ResNet-18

CIFAR10_BYTES = {"conv1.weight": 4 * 64 * 3 * 3 * 3, "fc.weight": 4 * 10 * 512, "fc.bias": 4 * 10}
"""ResNet-18 for CIFAR-10: a first convolution of 3 x 3, 10 classes. All other tensors are as for ImageNet."""


@lru_cache(maxsize=1)
def resnet18_cifar10() -> Workload:
    """ResNet-18 for images of 32 x 32, reconstructed from ResNet-18 for ImageNet.

    Its four stages work on maps of 32, 16, 8 and 4 pixels a side, instead of 56, 28, 14 and 7: in the same proportion.
    The stem, which works on 32 x 32 too, instead of on 112 x 112, takes (56 / 112)^2 as long.
    """
    base = profiles.load_workload("resnet18-reconstructed")
    return replace(base, name="resnet18-cifar10-reconstructed", layers=tuple(_cifar10_layers(base)))


def _cifar10_layers(base: Workload) -> Iterator[Layer]:
    for layer in base.layers:
        share = (56 / 112) ** 2 if layer.name.startswith(("conv1.", "bn1.")) else 1
        yield replace(
            layer,
            forward_time=layer.forward_time * share,
            backward_time=layer.backward_time * share,
            gradient_bytes=CIFAR10_BYTES.get(layer.name, layer.gradient_bytes),
        )


# ----------------------------------------------------------------------------------------------------- DeepSpeech2

HIDDEN, RECURRENT_LAYERS, GATES, DIRECTIONS, CHARACTERS = 800, 5, 3, 2, 29
"""Five bidirectional GRU layers of 800 (train.py), 29 labels."""
CHANNELS, FIRST_KERNEL, SECOND_KERNEL = 32, (41, 11), (21, 11)
BANDS = (81, 41)
"""Frequencies after each of the two convolutions over a spectrogram of 161."""
SPEECH_BATCH = 20
"""The job's batch size. Larger batches read the recurrent weights less often per sample."""


@lru_cache(maxsize=1)
def deepspeech2() -> Workload:
    """Two convolutions, five GRU layers, one linear layer: seconds per time step of the sequence.

    A recurrent layer reads its recurrent weights again at every step. All else is proportional to the steps as well, so
    their number does not matter.
    """
    first = (CHANNELS, 1, *FIRST_KERNEL)
    second = (CHANNELS, CHANNELS, *SECOND_KERNEL)
    modules = [
        TimedModule("conv1", _product(BANDS[0] * prod(first), passes=1), [first, (CHANNELS,)]),
        _norm("bn1", CHANNELS, BANDS[0]),
        TimedModule("conv2", _product(BANDS[1] * prod(second)), [second, (CHANNELS,)]),
        _norm("bn2", CHANNELS, BANDS[1]),
        _recurrent(0, CHANNELS * BANDS[1]),
    ]
    for number in range(1, RECURRENT_LAYERS):
        modules += [_norm(f"rnn{number}.bn", HIDDEN, 1), _recurrent(number, HIDDEN)]
    modules += [_norm("fc.bn", HIDDEN, 1), TimedModule("fc", _product(HIDDEN * CHARACTERS), [(CHARACTERS, HIDDEN)])]
    note = f"batch {SPEECH_BATCH}; tensors counted; shares of time from FLOPs, and bytes of weights read at each step"
    return workload("deepspeech2-reconstructed", modules, SPEECH_BATCH, note)


def _product(multiplications: float, passes: int = 2) -> float:
    """Seconds for the gradients of the weight and, except in the first layer, of the input, per step and batch."""
    return passes * 2 * multiplications * SPEECH_BATCH * SECONDS_PER_FLOP


def _norm(name: str, channels: int, places: int) -> TimedModule:
    moved = FLOAT32 * channels * places * SPEECH_BATCH
    return TimedModule(name, moved * SECONDS_PER_NORMALISED_BYTE, [(channels,), (channels,)])


def _recurrent(number: int, inputs: int) -> TimedModule:
    rows = GATES * HIDDEN
    reread = 2 * FLOAT32 * DIRECTIONS * rows * HIDDEN * SECONDS_PER_BYTE
    one_way: list[tuple[int, ...]] = [(rows, inputs), (rows, HIDDEN), (rows,), (rows,)]
    time = _product(DIRECTIONS * rows * (inputs + HIDDEN)) + reread
    return TimedModule(f"rnn{number}", time, DIRECTIONS * one_way)


# ------------------------------------------------------------------------------------------------------------- NCF

USERS, ITEMS, FACTORS, LINEAR_LAYERS = 6040, 3706, 32, 3
"""MovieLens-1M; NeuMF with 32 factors and 3 layers (main.py)."""


@lru_cache(maxsize=1)
def ncf() -> Workload:
    """NeuMF: embeddings are 97 % of the bytes and ready last, so that hardly anything can be hidden.

    Its kernels are too short to keep a GPU busy: every module takes the same time, that of its launches.
    """
    widths = [FACTORS * 2**power for power in range(LINEAR_LAYERS, -1, -1)]
    wide = widths[1]
    modules = [
        TimedModule("embed_user_GMF", 1.0, [(USERS, FACTORS)]),
        TimedModule("embed_item_GMF", 1.0, [(ITEMS, FACTORS)]),
        TimedModule("embed_user_MLP", 1.0, [(USERS, wide)]),
        TimedModule("embed_item_MLP", 1.0, [(ITEMS, wide)]),
    ]
    for number, (inputs, outputs) in enumerate(pairwise(widths)):
        modules.append(TimedModule(f"MLP_layers.{number}", 1.0, [(outputs, inputs), (outputs,)]))
    modules.append(TimedModule("predict_layer", 1.0, [(1, 2 * FACTORS), (1,)]))
    return workload("ncf-reconstructed", modules, None, "tensors counted; every module takes the same time")
