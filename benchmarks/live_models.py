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
