"""Models counted on the meta device: operations by hand and by PyTorch's own counter, parameters, refusals."""

from __future__ import annotations

import itertools
import os
import sys

import pytest

import osfmodel as osf
from osfmodel.counting.library.counter import Counter
from osfmodel.counting.modules import Product
from osfmodel.counting.stacks import learned
from osfmodel.runtime.profiler.driving import Driving, count
from osfmodel.runtime.training.factories import Training
from tests.commands import invoke

if os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore")]

FACTORIES = """
import torch
from tests.live.test_meta_live import Encoder, convolutional

def images(batch_size=4):
    targets = torch.zeros(batch_size, dtype=torch.long)
    return convolutional(), (torch.randn(batch_size, 3, 8, 8), targets), torch.nn.functional.cross_entropy

def words():
    model, tokens = Encoder(), torch.randint(100, (2, 12))
    optimizer = torch.optim.AdamW(model.parameters())
    return model, {"input_ids": tokens}, lambda output: (output * torch.ones(100)).sum(), optimizer

def frozen():
    model, *others = images()
    model[0].weight.requires_grad_(False)
    return model, *others

def on_the_cpu():
    model, *others = images()
    return model.to("cpu"), *others

def looks():
    model, (batch, targets), loss = images()
    print(batch.sum().item())

def unused():
    return torch.nn.Linear(3, 1), torch.randn(4, 3), lambda output: torch.zeros(1, requires_grad=True).sum()

class Deaf(torch.nn.Linear):
    def forward(self, given):
        return given

def deaf():
    return Deaf(3, 1), torch.randn(4, 3, requires_grad=True), lambda output: output.sum()

def branches():
    return torch.nn.Linear(3, 1), torch.randn(4, 3), lambda output: output.sum() if output.sum() > 0 else -output.sum()
"""


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=2), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip


class Encoder(nn.Module):
    """Two layers of attention, with a head that is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 16)
        self.positions = nn.Parameter(torch.zeros(12, 16))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(16, 100, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, input_ids):
        states = self.embedding(input_ids) + self.positions
        for layer in self.layers:
            states = layer(states)
        return self.head(states)


def counted(model: nn.Module, *inputs: torch.Tensor) -> Counter:
    counter = Counter(model)
    with counter.counting():
        model(*inputs)
    return counter


def operations(counter: Counter) -> int:
    return sum(product.operations for visit in counter.visits for product in (*visit.products, *visit.scores))


def on_meta(make, *shape, high=0):
    with torch.device("meta"):
        return make(), torch.randint(high, shape) if high else torch.randn(shape)


def test_operations_of_a_convolutional_net_by_hand():
    model, images = on_meta(convolutional, 4, 3, 8, 8)
    found = {visit.module: visit for visit in counted(model, images).visits}
    assert list(found) == ["0", "1", "3", "5"]
    assert found["0"].products == [Product(4 * 8 * 8, 3 * 3 * 3, 8, taps=9)]
    assert found["3"].products == [Product(4 * 4 * 4, 4 * 3 * 3, 8, times=2, taps=1)]
    assert found["5"].products == [Product(4, 256, 10)]
    assert found["1"].products == found["1"].scores == []
    plane = 4 * 8 * 8 * 8  # elements between the first convolution and the second
    assert found["0"].kept == 4 * 3 * 8 * 8 + plane  # its input and the input of the normalisation
    assert 5 * plane < found["1"].moved < 5 * plane + 100  # the norm reads twice; ReLU; statistics of 8 channels
    assert found["3"].moved == found["5"].moved == 0


def test_operations_of_a_transformer_by_hand():
    model, tokens = on_meta(Encoder, 2, 12, high=100)
    counter = counted(model, tokens)
    rows, layer = 2 * 12, [(16, 48), (16, 16), (16, 32), (32, 16)]
    products = [product for visit in counter.visits for product in visit.products]
    assert products == [Product(rows, *sides) for sides in [*layer, *layer, (16, 100)]]
    scores = [product for visit in counter.visits for product in visit.scores]
    assert scores == [Product(12, 4, 12, 2 * 4), Product(12, 12, 4, 2 * 4)] * 2
    assert counter.visits[-1].module == "embedding"  # the head, by the name of the tensor that it shares
    norm = next(visit for visit in counter.visits if visit.module == "layers.0.norm1")
    assert norm.moved == 2 * rows * 16 + 2 * 16 + 2 * rows  # input and output, its parameters, statistics of each row


@pytest.mark.parametrize(
    ("make", "shape", "high"),
    [
        (convolutional, (4, 3, 8, 8), 0),
        (Encoder, (2, 12), 100),
        (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), (2, 4, 5, 5), 0),
        (lambda: nn.LSTM(5, 7), (3, 2, 5), 0),
        (lambda: nn.MultiheadAttention(8, 2), (3, 2, 8), 0),
    ],
)
def test_as_many_operations_as_the_counter_of_pytorch(make, shape, high):
    model, inputs = on_meta(make, *shape, high=high)
    given = (inputs,) * (3 if isinstance(model, nn.MultiheadAttention) else 1)
    with FlopCounterMode(display=False) as theirs:
        model(*given)
    assert operations(counted(model, *given)) == theirs.get_total_flops() > 0


def test_half_of_causal_attention_is_not_computed():
    class Causal(nn.Linear):
        def forward(self, given):
            states = super().forward(given)
            return nn.functional.scaled_dot_product_attention(states, states, states, is_causal=True)

    model, states = on_meta(lambda: Causal(8, 8), 2, 3, 10, 8)
    counter = counted(model, states)
    assert counter.causal
    assert counter.visits[-1].scores == [Product(10, 8, 5, 6), Product(10, 5, 8, 6)]
    assert nn.functional.scaled_dot_product_attention is torch._C._nn.scaled_dot_product_attention


def test_products_without_parameters_are_those_of_attention():
    class Plain(nn.Linear):
        def forward(self, given):
            states = super().forward(given)
            return nn.functional.dropout(states @ states.transpose(-2, -1), 0.5)

    model, states = on_meta(lambda: Plain(8, 4), 3, 10, 8)
    last = counted(model, states).visits[-1]
    assert last.products == [Product(30, 8, 4)]
    assert last.scores == [Product(10, 4, 10, 3)]
    assert last.moved == 2 * 3 * 10 * 10  # dropout, as one kernel


def test_tensors_with_data_are_left_behind_and_stay_shared():
    with torch.device("cpu"):
        model = Encoder()
    tokens = torch.zeros(2, 12, dtype=torch.long)
    made = Training(model, tokens, lambda output: output.sum(), torch.optim.Adam(model.parameters()))
    workload = count("encoder", lambda _: made, None, Driving(), "h100").workload
    assert workload.gradient_bytes == 4 * sum(tensor.numel() for tensor in Encoder().parameters())
    assert workload.state_bytes == 2 * workload.gradient_bytes


@pytest.fixture
def factories(tmp_path, monkeypatch):
    """A module beside which the command is run, under a name of its own."""
    name = f"meta_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return name


def run(*arguments):
    return invoke(["profile", *arguments])


@pytest.mark.parametrize(("factory", "make"), [("images", convolutional), ("words", Encoder)])
def test_parameters_of_the_file_are_those_of_the_model(factories, factory, make):
    result = run(f"{factories}:{factory}", "--device", "meta", "--gpu", "H100", "-o", "net.json")
    assert result.exit_code == 0, result.output
    workload = osf.load_workload("net.json")
    theirs = {name: tuple(tensor.shape) for name, tensor in make().named_parameters()}
    assert {layer.name: layer.shape for layer in workload.layers if layer.gradient_bytes} == theirs
    assert {layer.dtype for layer in workload.layers} == {"float32"}
    assert workload.batch_size == (4 if factory == "images" else 2)
    assert workload.doubt == learned().doubts["h100"]["eager"]
    assert workload.source.gpu == "H100 SXM"
    assert workload.sample_tokens == (None if factory == "images" else 12)
    assert [segment.name for segment in workload.segments] == ([] if factory == "images" else ["layers.0", "layers.1"])
    moments = 1 if factory == "images" else 2  # SGD with momentum, AdamW
    assert workload.state_bytes == moments * workload.gradient_bytes
    update = (3 + 2 * moments) * workload.gradient_bytes / 3350e9
    assert workload.update_time == pytest.approx(update)
    words = ["predict", "net.json", "--cluster", "ring:50us,10Gbps", "--workers", "8"]
    predicted = invoke(words)
    assert predicted.exit_code == 0, predicted.output


def test_types_of_parameters_and_of_computation(factories):
    options = ("--device", "meta", "--gpu", "h100", "--dtype", "bfloat16", "-o")
    assert run(f"{factories}:images", *options, "half.json").exit_code == 0
    assert run(f"{factories}:images", *options, "mixed.json", "--autocast").exit_code == 0
    half, mixed = osf.load_workload("half.json"), osf.load_workload("mixed.json")
    assert ({layer.dtype for layer in half.layers}, {layer.dtype for layer in mixed.layers}) == (
        {"bfloat16"}, {"float32"},
    )  # fmt: skip
    assert mixed.gradient_bytes == 2 * half.gradient_bytes
    assert (half.forward_time, half.backward_time) == (mixed.forward_time, mixed.backward_time)
    assert mixed.update_time == pytest.approx(2 * half.update_time)


def test_batch_sizes(factories, tmp_path):
    result = run(f"{factories}:images", "--device", "meta", "--gpu", "a100", "--batch-size", "2,8", "-o", ".")
    assert result.exit_code == 0, result.output
    small, large = (osf.load_workload(tmp_path / f"images-b{size}.json") for size in (2, 8))
    assert small.ideal_time is not None
    assert large.ideal_time == pytest.approx(4 * small.ideal_time)


@pytest.mark.parametrize(
    ("factory", "options", "said"),
    [
        ("on_the_cpu", (), "leave out .to(device), .item()"),
        ("looks", (), "leave out .to(device), .item()"),
        ("branches", (), "branches on values"),
        ("deaf", (), "the forward uses no parameter"),
        ("unused", (), "no parameter has a gradient"),
        ("frozen", (), "'0.weight' is frozen"),
        ("images", ("--gpu", "h10"), "unknown GPU 'h10': did you mean h100?"),
        ("images", ("--gpu", "v100", "--dtype", "bfloat16"), "has no matrix products in bfloat16"),
        ("images", ("--steps", "3"), "--steps does not work with --device meta"),
        ("images", ("--warm-up", "3"), "--warm-up does not work with --device meta"),
        ("images", ("--device", "cpu"), "--gpu works only with --device meta"),
    ],
)
def test_refusals_in_one_line(factories, tmp_path, factory, options, said):
    usual = {"--device": "meta", "--gpu": "h100"} | dict(zip(options[::2], options[1::2], strict=True))
    result = run(f"{factories}:{factory}", "-o", "net.json", *itertools.chain(*usual.items()))
    assert result.exit_code != 0
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "net.json").exists()


def test_the_meta_device_needs_a_gpu_to_count_for(factories):
    result = run(f"{factories}:images", "--device", "meta")
    assert result.exit_code != 0
    assert "add --gpu NAME" in result.stderr
