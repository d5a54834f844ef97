"""Workloads from counted shapes: how long each layer takes by a small model of FLOPs and bytes.

No layer times are published for most models that papers measure. What can be counted exactly is every parameter tensor,
the order in which gradients become ready, and the FLOPs of each module. Backward time of a module is then

    seconds = direct FLOPs / rate + Winograd FLOPs / rate + bytes moved / bandwidth + normalised bytes / bandwidth

with four constants, fitted by ``calibrate`` to the measured backward pass of ResNet-50 on a V100 and to nothing else.
Convolutions of 3 x 3 without stride have a rate of their own, for cuDNN computes them by Winograd's algorithm with 2.25
times fewer multiplications (Lavin and Gray, CVPR 2016): ResNet-50's run above the nominal peak of the device.

Left out: pooling, attention scores (1.4 % of BERT's FLOPs at 64 tokens), activations other than what normalisation and
the bytes of a module already stand for. Grouped convolutions run at the rate of direct ones, though they are slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

from runs import Published
from scipy.optimize import nnls

from osfmodel import Layer, Source, Workload
from osfmodel.entities.rounding import plain_sum

FLOAT32 = 4
RESNEXT_GROUPS = 32
"""No plain 3 x 3 convolution counted here has 32 times as many outputs as inputs; those of ResNeXt have 32 groups."""


class Module(NamedTuple):
    """A module with parameters, as counted.

    name:    as in the model
    tensors: (order of readiness, name, elements) of each parameter
    shape:   of its first parameter
    flops:   of its forward pass for one sample
    """

    name: str
    tensors: tuple[tuple[int, str, int], ...]
    shape: tuple[int, ...]
    flops: int

    @property
    def is_matrix(self) -> bool:
        """Whether it multiplies by its weight: a convolution or a linear layer."""
        return self.flops > 0

    @property
    def pixels(self) -> float:
        """Places (pixels, tokens) at which it applies its weight, per sample: a multiplication and an addition each."""
        return self.flops / (2 * prod(self.shape))

    @property
    def grouped(self) -> bool:
        return self.shape[2:] == (3, 3) and self.shape[0] >= RESNEXT_GROUPS * self.shape[1] > RESNEXT_GROUPS * 3


class Load(NamedTuple):
    """Work of a module's backward pass: FLOPs of two kinds, bytes of two kinds."""

    direct: float = 0
    winograd: float = 0
    moved: float = 0
    normalised: float = 0


def modules(rows: Iterable[Mapping[str, str]]) -> list[Module]:
    """The modules of a shape table, in registration order; a tensor outside any module is one by itself."""
    found: dict[str, list[Mapping[str, str]]] = {}
    for row in rows:
        found.setdefault(row["module"] or row["tensor"], []).append(row)
    return [
        Module(
            name,
            tuple((int(row["ready_order"]), row["tensor"], int(row["elements"])) for row in members),
            tuple(int(size) for size in members[0]["shape"].split("x")),
            int(members[0]["module_own_forward_flops"]),
        )
        for name, members in found.items()
    ]


def loads(found: Sequence[Module], batch: int) -> list[Load]:
    """Work of each module's backward pass on ``batch`` samples."""
    first = next(index for index, module in enumerate(found) if module.is_matrix)
    built = []
    for index, module in enumerate(found):
        if module.is_matrix:
            built.append(_matrix(found, index, batch, first == index and len(module.shape) == 4))
        elif len(module.shape) == 1 and (tied := _tied(found, module)):
            built.append(_product(tied, batch * max(other.pixels for other in found if other.is_matrix), passes=2))
        elif len(module.shape) == 1:
            built.append(Load(normalised=FLOAT32 * batch * _places(found, index) * module.shape[0]))
        else:
            built.append(Load(moved=FLOAT32 * prod(module.shape)))
    return built


def _matrix(found: Sequence[Module], index: int, batch: int, first: bool) -> Load:
    """Gradient of the weight and of the input, the latter not for images; each as many FLOPs as the forward pass."""
    module, passes = found[index], 1 if first else 2
    if module.shape[2:] == (3, 3) and not module.grouped and not _strided(found, index):
        work = passes * batch * module.flops
        return _product(module.shape, batch * module.pixels, passes)._replace(direct=0, winograd=work)
    return _product(module.shape, batch * module.pixels, passes, RESNEXT_GROUPS if module.grouped else 1)


def _product(shape: Sequence[int], places: float, passes: int, groups: int = 1) -> Load:
    """A product with a weight of ``shape`` at so many places: every pass reads or writes inputs, outputs and weight."""
    elements = places * (shape[0] + groups * shape[1]) + prod(shape)
    return Load(direct=passes * 2 * places * prod(shape), moved=passes * FLOAT32 * elements)


def _strided(found: Sequence[Module], index: int) -> bool:
    """Whether the outputs are far fewer than those of the convolution that feeds it through a normalisation.

    Without normalisation in between (VGG) it is a pooling layer that makes them fewer.
    """
    before = next((module for module in reversed(found[:index]) if module.is_matrix), None)
    return before is not None and found[index - 1] is not before and 2 * found[index].pixels < before.pixels


def _places(found: Sequence[Module], index: int) -> float:
    """Places at which a normalisation works: those of the product that feeds it, else of the convolution it feeds."""
    channels = found[index].shape[0]
    before = [module for module in found[:index] if module.is_matrix]
    after = [module for module in found[index:] if module.is_matrix]
    if after and not (before and before[-1] is found[index - 1] and before[-1].shape[0] == channels):
        fed = after[0].shape
        if fed[1] == channels and (len(fed) == 4 or not before or len(before[-1].shape) == 2):
            return after[0].pixels
    return (before or after)[-1 if before else 0].pixels


def _tied(found: Sequence[Module], module: Module) -> tuple[int, ...] | None:
    """The embedding that a bias of its size stands beside: an output projection that shares its weight."""
    for other in found:
        if len(other.shape) == 2 and not other.is_matrix and other.shape[0] == module.shape[0] > other.shape[1]:
            return other.shape
    return None


def calibrate(found: Sequence[Module], seconds: Mapping[str, float], batch: int) -> Load:
    """Seconds per FLOP and per byte of each kind: non-negative least squares over the modules' backward times.

    ``seconds`` maps tensors to measured times. Four significant digits, so that no rounding shows in what is built.
    """
    work = loads(found, batch)
    measured = [plain_sum(seconds[tensor] for _, tensor, _ in module.tensors) for module in found]
    scale = [max(column) or 1 for column in zip(*work, strict=True)]
    fitted, _ = nnls([[value / unit for value, unit in zip(row, scale, strict=True)] for row in work], measured)
    return Load(*(float(f"{value / unit:.4g}") for value, unit in zip(fitted, scale, strict=True)))


def backward(found: Sequence[Module], constants: Load, batch: int) -> list[tuple[str, float, int]]:
    """(tensor, seconds of backward before it is ready, elements) in ready order; a module's time is its first's."""
    items = []
    for module, work in zip(found, loads(found, batch), strict=True):
        time = plain_sum(amount * cost for amount, cost in zip(work, constants, strict=True))
        for place, (order, tensor, elements) in enumerate(sorted(module.tensors)):
            items.append((order, tensor, 0.0 if place else time, elements))
    return [(tensor, time, elements) for _, tensor, time, elements in sorted(items)]


# --------------------------------------------------------------------------------------------------- what is built


class Stated(NamedTuple):
    """A published compute time: the ``column`` of the row of ``path`` that agrees with ``where``.

    seconds: from what stands in that column
    gpu:     the GPU that it is of
    """

    path: str
    where: Mapping[str, str]
    column: str
    seconds: Callable[[float], float] = float
    gpu: str = "V100"


class Wanted(NamedTuple):
    """name:  of the shape table
    batch: samples per worker
    total: the published compute time to which all is scaled; None keeps the seconds of the fitted V100
    """

    name: str
    batch: int
    total: Stated | None


def _paper(model: str) -> Stated:
    where = {"system": "MG-WFBP", "model": model, "network": "10GbE fp32", "metric": "compute_s"}
    return Stated("targets.csv", where, "value")


def _ddp(model: str) -> Stated:
    path = "scaling/pytorch-ddp-readme/ddp_v100_iteration_times.csv"
    return Stated(path, {"model": model, "layout": "no ddp"}, "p50_s")


def _throughput(model: str, batch: int) -> Stated:
    path = "scaling/ddl-benchmarks/results_2020-05-29.csv"
    where = {"model": model, "method": "WFBP-A2A", "n_gpus": "1"}
    return Stated(path, where, "throughput_samples_per_s", lambda samples: batch / samples, "not stated")


WANTED = (
    Wanted("bert_base_seq64", 64, _throughput("BERT-Base", 64)),
    Wanted("bert_large_seq64", 8, _throughput("BERT-Large", 8)),
    Wanted("densenet161", 64, _paper("DenseNet-161")),
    Wanted("densenet201", 64, _paper("DenseNet-201")),
    Wanted("inception_v4", 128, _paper("Inception-v4")),
    Wanted("resnet18", 32, None),
    Wanted("resnet50", 32, _ddp("resnet50")),
    Wanted("resnet101", 32, _ddp("resnet101")),
    Wanted("resnet152", 128, _paper("ResNet-152")),
    Wanted("resnext50_32x4d", 32, _ddp("resnext50_32x4d")),
    Wanted("resnext101_32x8d", 32, _ddp("resnext101_32x8d")),
    Wanted(
        "vgg16",
        32,
        Stated(
            "scaling/horovod/lowbandwidth_4node_v100.csv",
            {"model": "VGG-16", "setup": "1 node 1 GPU"},
            "batch_ms",
            lambda milliseconds: milliseconds / 1000,
        ),
    ),
)


def table(name: str) -> str:
    return f"layer_profiles/shapes/{name}.csv"


def fitted_constants(data: Published, reference: Workload) -> Load:
    """The four constants, from the measured ResNet-50."""
    seconds = {layer.name: layer.backward_time for layer in reference.layers}
    return calibrate(modules(data.rows(table("resnet50"))), seconds, reference.batch_size or 1)


def reconstructed(data: Published, reference: Workload) -> Iterator[Workload]:
    """Every wanted workload, with constants fitted to ``reference``, the measured ResNet-50."""
    constants = fitted_constants(data, reference)
    for wanted in WANTED:
        yield build(data, constants, wanted)


def build(data: Published, constants: Load, wanted: Wanted) -> Workload:
    """Forward is half of backward, layer by layer, and the total is the published compute time."""
    items = backward(modules(data.rows(table(wanted.name))), constants, wanted.batch)
    modelled = sum(time for _, time, _ in items)
    total = _stated_seconds(data, wanted.total) if wanted.total else 1.5 * modelled
    scale = total / (1.5 * modelled)
    layers = [
        Layer(tensor, data.exact(time * scale / 2), data.exact(time * scale), FLOAT32 * elements)
        for tensor, time, elements in reversed(items)
    ]
    name = f"{wanted.name.replace('_', '-')}-reconstructed"
    return Workload(name, tuple(layers), wanted.batch, 0.0, _source(data, wanted, total))


def _stated_seconds(data: Published, stated: Stated) -> float:
    row = next(row for row in data.rows(stated.path) if all(row[key] == value for key, value in stated.where.items()))
    return stated.seconds(float(row[stated.column]))


def _source(data: Published, wanted: Wanted, total: float) -> Source:
    counted = data.source(table(wanted.name), "")
    scaled = f"scaled to the published compute time of {total:.4g} s"
    if wanted.total:
        scaled += f" ({wanted.total.path}: {', '.join(wanted.total.where.values())})"
    else:
        scaled = "not scaled: seconds of a V100-SXM2"
    return Source(
        origin=f"{counted.origin}: {wanted.name}",
        conditions=f"reconstructed, not measured: batch {wanted.batch}; tensors, gradient-ready order and FLOPs "
        "counted; backward time per module from a FLOPs-and-bytes model fitted to resnet50-v100 alone, "
        f"forward as half of backward, update as 0; {scaled}",
        licence=counted.licence,
        gpu=wanted.total.gpu if wanted.total else "V100-SXM2",
    )


def deviation(ours: Workload, measured: Workload) -> float:
    """The largest gap between two backward passes: share of the time by which the same share of bytes is ready."""
    points = dict(_curve(ours))
    shares = sorted(points)
    gaps = []
    for share, time in _curve(measured):
        reached = next((other for other in shares if other >= share - 1e-9), shares[-1])
        gaps.append(points[reached] - time)
    return max(gaps, key=abs)


def _curve(workload: Workload) -> Iterator[tuple[float, float]]:
    """(share of gradient bytes, share of backward time) at each gradient, in ready order."""
    gradients, done = workload.gradients, 0
    for time, size in zip(gradients.ready_times, gradients.sizes, strict=True):
        done += size
        yield done / workload.gradient_bytes, (time - workload.forward_time) / workload.backward_time
