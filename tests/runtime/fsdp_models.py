"""Small models to shard, and the collectives that FSDP2 issues for them in one process."""

from __future__ import annotations

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from osfmodel import Layer, Workload


class Block(nn.Module):
    """A block with a residual, its inner width as asked for."""

    def __init__(self, width, inner):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, inner)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Language(nn.Module):
    """An embedding, uneven blocks, and a head, which may be the embedding once more."""

    def __init__(self, tied, width=9, inner=(10, 22, 7, 16), words=31):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList([Block(width, one) for one in inner])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, x):
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Vision(nn.Module):
    """Convolutions and a linear layer."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 5, 3, padding=1), nn.Linear(11, 10)
        for name, (a, b) in {"layer1": (5, 7), "layer2": (7, 11)}.items():
            setattr(self, name, nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(1, b), nn.ReLU()))

    def forward(self, x):
        return self.head(self.layer2(self.layer1(self.stem(x))).mean((2, 3)))


@contextmanager
def pretended(world):
    """A process group in which this process is rank 0 of ``world``, and nobody else is there."""
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def workload_of(model, batch):
    """The parameters in the order in which forward first uses them; no times are of interest."""
    names, used = {tensor: name for name, tensor in model.named_parameters()}, {}

    def note(module, _):
        for tensor in module.parameters(recurse=False):
            used.setdefault(tensor, tuple(tensor.shape))

    handles = [module.register_forward_pre_hook(note) for module in model.modules()]
    model(batch)
    for handle in handles:
        handle.remove()
    layers = [Layer(names[one], 1.0, 2.0, one.nbytes, str(one.dtype)[6:], shape=shape) for one, shape in used.items()]
    return Workload("model", tuple(layers))


def sharded(model, groups, rules, shape):
    """The model under ``fully_shard`` with these groups and rules, on a mesh of this shape."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards")[-len(shape) :])
    dtypes = [getattr(torch, name) if name else None for name in (rules.gather_dtype, rules.reduce_dtype)]
    policy = MixedPrecisionPolicy(*dtypes)
    modules = [[model.get_submodule(name) for name in group.modules] for group in groups]
    inner_first = sorted(zip(groups, modules, strict=True), key=lambda pair: -pair[0].modules[0].count("."))
    for group, those in inner_first:
        wrap = those if len(those) > 1 else those[0]
        fully_shard(wrap, mesh=mesh, mp_policy=policy, reshard_after_forward=group.reshard)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    first = [those[0] for those in modules]
    for place, (group, module) in enumerate(zip(groups, first, strict=True)):
        if group.forward_prefetch:
            module.set_modules_to_forward_prefetch(first[place + 1 : place + 1 + group.forward_prefetch])
        if group.backward_prefetch != 1:
            module.set_modules_to_backward_prefetch(first[max(0, place - group.backward_prefetch) : place][::-1])
    model.set_reduce_scatter_max_input_buffers(rules.reduce_inputs)
    return model


@contextmanager
def noted(found):
    """A context that adds (kind, bytes, dtype) of each collective to ``found``."""
    names = {"all_gather_single": "all_gather", "reduce_scatter_single": "reduce_scatter", "all_reduce": "all_reduce"}
    before = {name: getattr(dist, name) for name in names}

    def spied(name):
        def spy(*given, **named):
            place, key = (1, "input") if name == "reduce_scatter_single" else (0, "output_tensor")
            whole = given[place] if len(given) > place else named[key]
            found.append((names[name], whole.nbytes, str(whole.dtype)[6:]))
            return before[name](*given, **named)

        return spy

    for name in names:
        setattr(dist, name, spied(name))
    try:
        yield
    finally:
        for name, original in before.items():
            setattr(dist, name, original)
