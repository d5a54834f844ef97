"""Small real models, as ``osf profile benchmarks.live_models:transformer`` and ``osf run`` take them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn

WIDTH, LAYERS, WORDS, LENGTH = 256, 6, 2048, 128
CHANNELS, CLASSES = (3, 64, 128, 256, 512, 512), 100


def transformer(batch_size: int = 8) -> Any:
    """(model, (inputs, targets), loss): predicts the next word of random text; 5.8 million parameters."""
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(block, LAYERS, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), encoder, nn.Linear(WIDTH, WORDS))
    text = torch.randint(WORDS, (batch_size, LENGTH + 1))

    def loss(output: Any, targets: Any) -> Any:
        return nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten())

    return model, (text[:, :-1], text[:, 1:]), loss


def convolutional(batch_size: int = 16) -> Any:
    """(model, (images, labels), loss): classifies random images; 4.0 million parameters."""
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(8, after), nn.ReLU(), nn.MaxPool2d(2))
        for before, after in pairwise(CHANNELS)
    ]
    model = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(CHANNELS[-1], CLASSES))
    images, labels = torch.randn(batch_size, 3, 32, 32), torch.randint(CLASSES, (batch_size,))
    return model, (images, labels), nn.functional.cross_entropy


class Residual(nn.Module):
    """A block of a stack: a norm and two linear layers around a ReLU, of an inner width, added to its input."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Stack(nn.Module):
    """Blocks of one width, blocks of another behind a projection, and a head; ``words``: behind an embedding, too."""

    def __init__(self, tower: list[tuple[int, int]], layers: list[tuple[int, int]], words: int, classes: int) -> None:
        super().__init__()
        width = (tower or layers)[0][0]
        self.embedding = nn.Embedding(words, width) if words else nn.Linear(48, width)
        self.tower = nn.ModuleList(Residual(*one) for one in tower)
        self.projection = nn.Linear(tower[-1][0], layers[0][0]) if tower else nn.Identity()
        self.layers = nn.ModuleList(Residual(*one) for one in layers)
        self.head = nn.Linear(layers[-1][0], classes)

    def forward(self, x: Any) -> Any:
        x = self.embedding(x)
        for block in self.tower:
            x = block(x)
        x = self.projection(x)
        for block in self.layers:
            x = block(x)
        return self.head(x)


def _stacked(tower: list[tuple[int, int]], layers: list[tuple[int, int]], words: int, classes: int) -> Any:
    torch.manual_seed(0)
    model = Stack(tower, layers, words, classes)
    inputs = torch.randint(words, (16,)) if words else torch.randn(16, 48)
    return model, (inputs, torch.randint(classes, (16,))), nn.functional.cross_entropy


def even() -> Any:
    """(model, (inputs, targets), loss): eight equal blocks; 2.1 million parameters."""
    return _stacked([], [(256, 512)] * 8, 0, 16)


def tower() -> Any:
    """The same of a tower of ten small blocks before four large ones; 2.3 million parameters."""
    return _stacked([(128, 192)] * 10, [(320, 640)] * 4, 0, 16)


def headed() -> Any:
    """The same of an embedding and a large head around six blocks; 2.2 million parameters."""
    return _stacked([], [(192, 384)] * 6, 2048, 4608)
