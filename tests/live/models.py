"""Small real models for live tests, as factories of osf run: PACKAGE.MODULE:FACTORY."""

from __future__ import annotations

import os

import torch
from torch import nn


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def convolutional():
    """Three convolutions and a classifier; every rank has examples of its own."""
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    examples = torch.Generator().manual_seed(_rank())
    images = torch.randn(8, 3, 16, 16, generator=examples)
    return model, (images, torch.randint(10, (8,), generator=examples)), nn.functional.cross_entropy


class Language(nn.Module):
    """A transformer that predicts its own input."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 64)

    def forward(self, tokens):
        return self.head(self.body(self.embedding(tokens)))


def transformer():
    """A batch that is a dict, so that the loss is one of the output alone."""
    torch.manual_seed(4)
    tokens = torch.randint(64, (4, 12), generator=torch.Generator().manual_seed(_rank()))

    def loss(output):
        return nn.functional.cross_entropy(output.flatten(0, 1), tokens.flatten())

    return Language(), {"tokens": tokens}, loss


class PartlyUsed(nn.Module):
    """A layer that the loss does not depend on."""

    def __init__(self):
        super().__init__()
        self.used = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64))
        self.unused = nn.Linear(64, 64)

    def forward(self, inputs):
        return self.used(inputs)


def partly_used():
    """For find_unused_parameters."""
    return PartlyUsed(), torch.randn(4, 64), lambda output: output.square().mean()


def already_wrapped():
    """A model that communicates by itself, which osf run refuses; without one in torch on a CPU, one of that name."""
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
    except ImportError:

        class FSDPModule(nn.Linear):
            pass

        return FSDPModule(2, 2), torch.zeros(1, 2), lambda output: output.sum()
    model = nn.Sequential(nn.Linear(2, 2))
    fully_shard(model, mesh=init_device_mesh("cpu", (torch.distributed.get_world_size(),)))
    return model, torch.zeros(1, 2), lambda output: output.sum()


def of_another_width():
    """A model of another width on each rank."""
    return nn.Linear(64, 64 + _rank()), torch.zeros(1, 64), lambda output: output.sum()


def failing():
    """A model whose forward raises."""

    class Failing(nn.Linear):
        def forward(self, inputs):
            raise ValueError("shapes do not fit")

    return Failing(2, 2), torch.zeros(1, 2), lambda output: output.sum()


def in_ddp():
    """Wrapped already, by what osf run would wrap it in, or its older relative."""
    return nn.DataParallel(nn.Linear(2, 2)), torch.zeros(1, 2), lambda output: output.sum()


def wrong():
    """No loss."""
    return nn.Linear(2, 2), torch.zeros(1, 2)


def raising():
    """A factory that fails."""
    return 1 / 0


class Diverging(nn.Linear):
    """Not a number from the second iteration of its third start on; it starts whenever its first state is loaded."""

    def __init__(self):
        super().__init__(8, 8)
        self.starts = self.steps = 0

    def load_state_dict(self, *arguments, **named):
        self.starts, self.steps = self.starts + 1, 0
        return super().load_state_dict(*arguments, **named)

    def forward(self, inputs):
        self.steps += 1
        output = super().forward(inputs)
        return output * float("nan") if self.starts == 3 and self.steps > 1 else output


def diverging():
    """The rough profile is the first start, the default's losses are the second, the first plan's the third."""
    torch.manual_seed(5)
    return Diverging(), torch.randn(4, 8), lambda output: output.square().mean()


def compiled():
    """A compiled model; nothing is generated, since that takes a compiler."""
    model, batch, loss = convolutional()
    return torch.compile(model, backend="eager"), batch, loss
