"""Models of timm, diffusers and functions: against PyTorch's counter on real ones; inputs found and from files."""

from __future__ import annotations

import json
import os

import pytest

import osfmodel as osf
from osfmodel.counting import library
from osfmodel.counting.config import Config
from osfmodel.counting.library import inputs
from osfmodel.counting.remarks import remarks
from osfmodel.counting.words import model_of, parse_words

if os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore")]

MODELS = """
import torch
from torch import nn

class Words(nn.Module):
    block_size = 32
    def __init__(self):
        super().__init__()
        self.table, self.places, self.head = nn.Embedding(50, 8), nn.Embedding(32, 8), nn.Linear(8, 50)
    def forward(self, idx, targets=None):
        assert idx.shape[1] <= 32
        return self.head(self.table(idx) + self.places(torch.arange(idx.shape[1]))), None

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4 * 32 * 32, 2)
    def forward(self, x):
        return self.last(self.first(x).relu().flatten(1))

class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.look, self.read = nn.Conv2d(3, 8, 3), nn.Embedding(50, 8)
        self.head = nn.Linear(16, 2)
    def forward(self, image, input_ids):
        return self.head(torch.cat([self.look(image).mean((2, 3)), self.read(input_ids).mean(1)], 1))

class Graph(nn.Linear):
    def forward(self, x, edges, scale=1.0):
        return torch.zeros_like(x).index_add(0, edges[1], super().forward(x)[edges[0]]) * scale

def words(): return Words()
def small(): return Small()
def both(): return Both()
def graph(): return Graph(6, 6)
def attending(): return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
def recurrent(): return nn.GRU(5, 7, batch_first=True)
def sound(): return nn.Sequential(nn.Conv1d(1, 4, 9), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 2))
def frozen():
    made = Small()
    made.first.requires_grad_(False)
    return made
def still():
    return Small().requires_grad_(False)
class Branching(nn.Linear):
    def forward(self, x):
        return x if super().forward(x).sum() > 0 else -x
class Taking(nn.Module):
    def __init__(self, width): pass
def branching(): return Branching(3, 3)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with MODELS, in which nothing is kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"makers_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(MODELS)
    return name


def counted(words):
    return model_of(parse_words(words))


def operations(model):
    return sum(one.operations for module in model.modules for one in (*module.products, *module.scores))


def theirs(module, *given, **named):
    """Operations of a real forward, and parameters."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        module(*given, **named)
    return counter.get_total_flops(), sum(tensor.numel() for tensor in module.parameters())


@pytest.mark.parametrize(
    ("name", "sample"),
    [
        ("words", "idx 1 x 32"), ("small", "x 1 x 3 x 32 x 32"),
        ("both", "image 1 x 3 x 224 x 224, input_ids 1 x 4096"),
        ("attending", "src 1 x 4096 x 8"), ("recurrent,seq9", "input 1 x 9 x 5"), ("sound", "input 1 x 1 x 16000"),
    ],
)  # fmt: skip
def test_inputs_are_found_from_the_forward(folder, name, sample):
    name, comma, rest = name.partition(",")
    assert counted(f"{folder}:{name}:a100{comma}{rest}").sample == sample


def test_operations_of_a_function_are_those_of_its_module(folder):
    from importlib import import_module

    made = import_module(folder)
    model = counted(f"{folder}:words:a100,seq16")
    assert (operations(model), model.parameters) == theirs(made.words(), torch.zeros(1, 16, dtype=torch.long))
    assert model.tokens == 16
    assert (model.modules[-1].kept, model.modules[-1].logits) == (0, 16 * 50), "the input of the head is kept before"
    small = counted(f"{folder}:small:a100")
    assert (operations(small), small.parameters) == theirs(made.small(), torch.zeros(1, 3, 32, 32))


def test_inputs_of_a_file(folder, tmp_path):
    path = tmp_path / "graph.json"
    path.write_text('{"x": {"shape": [10, 6]}, "edges": {"shape": [2, 30], "dtype": "int64"}, "scale": 2.0}')
    words = f"{folder}:graph:a100,input={path}"
    model = counted(words)
    assert model.sample == "x 10 x 6, edges 2 x 30"
    assert operations(model) == 2 * 10 * 6 * 6
    assert remarks(words) == (f"no shape in {path} has 'batch': all of it is counted as one sample",)
    assert osf.load_workload(f"{words},batch4").batch_size == 4
    path.write_text('{"idx": {"shape": ["batch", "seq"], "dtype": "int64"}}')
    assert counted(f"{folder}:words:a100,seq16,input={path}").tokens == 16
    with pytest.raises(osf.UsageError, match="its forward takes no 'idx': known are x"):
        counted(f"{folder}:small:a100,input={path}")


def test_parameters_that_a_function_freezes_are_frozen(folder):
    model = counted(f"{folder}:frozen:a100")
    assert model.trained == 2 * 4 * 32 * 32 + 2
    assert [(module.frozen, module.passes) for module in model.modules] == [(True, 0), (False, 1)]
    assert sum(module.kept for module in model.modules) == 4 * 32 * 32
    for words, said in ((f"{folder}:frozen:a100,lora=2:all-linear", "freezes parameters itself"),
                        (f"{folder}:still:a100", "nothing is left to train")):  # fmt: skip
        with pytest.raises(osf.UsageError, match=said):
            counted(words)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("graph", r'add input=FILE, JSON such as \{"x": \{"shape": \["batch", "..."\]'),
        ("branching", "it depends on values, which are not there"),
        ("Taking", r"required .* give a function that needs no arguments"),
    ],
)
def test_forwards_that_cannot_be_counted_get_one_line(folder, name, said):
    with pytest.raises(osf.DataError, match=said) as error:
        counted(f"{folder}:{name}:a100")
    assert "\n" not in str(error.value)


def test_names_that_are_not_there_lead_on(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    for words, said in (
        (f"{folder}:smal", "has no function 'smal': did you mean small?"),
        (f"{folder}.py:small", f"write {folder}:small"),
        ("empty", r"empty has no config.json, nor a transformer/ or unet/ with one: give its folder"),
        ("vit_base_patch16_224", "others are timm/NAME, diffusers/CLASS, module:function"),
        (f"{folder}:words:a100,seq64", "ask for fewer tokens than 64, or describe it in a file"),
    ):
        with pytest.raises(osf.OsfError, match=said):
            counted(words if ":a100" in words else f"{words}:a100")


@pytest.mark.parametrize(
    ("name", "config"),
    [("resnet18", {}), ("vit_tiny_patch16_224", {"num_classes": 7}), ("convnext_atto", {}), ("mixer_s32_224", {})],
)
def test_models_of_timm(tmp_path, name, config):
    """By name, and by the file that timm writes for the hub: in forward of an image as large as it says."""
    timm = pytest.importorskip("timm", exc_type=(ImportError, RuntimeError))
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"architecture": name, "pretrained_cfg": {"input_size": [3, 224, 224]}, **config}))
    module = timm.create_model(name, **config).eval()
    for model in (counted(f"{path}:a100"), *([] if config else [counted(f"timm/{name}:a100")])):
        assert (operations(model), model.parameters) == theirs(module, torch.zeros(1, 3, 224, 224))
        assert model.sample == "x 1 x 3 x 224 x 224"


def test_a_name_that_timm_has_not_gets_near_ones():
    pytest.importorskip("timm", exc_type=(ImportError, RuntimeError))
    with pytest.raises(osf.UsageError, match=r"timm .* has no model 'resnet81': did you mean resnet18"):
        counted("timm/resnet81:a100")


SMALL = {
    "DiTTransformer2DModel": {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2, "sample_size": 8,
                              "num_embeds_ada_norm": 10, "out_channels": 8},
    "SD3Transformer2DModel": {"sample_size": 8, "num_layers": 2, "attention_head_dim": 8, "num_attention_heads": 2,
                              "joint_attention_dim": 24, "caption_projection_dim": 16, "pooled_projection_dim": 12,
                              "pos_embed_max_size": 8},
    "UNet2DConditionModel": {"sample_size": 8, "block_out_channels": [32, 64], "cross_attention_dim": 24,
                             "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
                             "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"], "layers_per_block": 1},
    "FluxTransformer2DModel": {"in_channels": 4, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16,
                               "num_attention_heads": 2, "joint_attention_dim": 24, "pooled_projection_dim": 12,
                               "axes_dims_rope": [4, 4, 8]},
}  # fmt: skip


@pytest.mark.parametrize("kind", SMALL)
def test_models_of_diffusers(tmp_path, kind):
    """By the configuration in a pipeline's folder, against a real forward with inputs of the sizes that are said."""
    diffusers = pytest.importorskip("diffusers")
    path = tmp_path / "pipeline" / "transformer" / "config.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"_class_name": kind, "_diffusers_version": "0.30.0", **SMALL[kind]}))
    flux = kind.startswith("Flux")
    model = counted(f"{tmp_path}/pipeline:a100{',seq16' * flux}")
    module = getattr(diffusers, kind).from_config(SMALL[kind])
    sizes = [one.split() for one in model.sample.split(", ")]
    given = {name: torch.zeros([int(size) for size in shape if size != "x"]) for name, *shape in sizes}
    if "class_labels" in given:
        given["class_labels"] = given["class_labels"].long()
    assert (operations(model), model.parameters) == theirs(module, **given)
    assert (model.name, model.tokens) == ("pipeline", 16 * flux)


def test_a_class_of_diffusers_by_name():
    pytest.importorskip("diffusers")
    assert counted("diffusers/DiTTransformer2DModel:a100").parameters == 749_808_016
    for name, said in (("DiTTransformer2dModel", "did you mean DiTTransformer2DModel"),
                       ("FluxPipeline", "is no model of diffusers .* give the folder of its transformer")):  # fmt: skip
        with pytest.raises(osf.UsageError, match=said):
            counted(f"diffusers/{name}:a100")


def test_what_was_counted_is_kept(tmp_path, monkeypatch):
    pytest.importorskip("diffusers")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"_class_name": "DiTTransformer2DModel", **SMALL["DiTTransformer2DModel"]}))
    first = counted(f"{path}:a100")
    monkeypatch.setattr(library, "_count", lambda *_: pytest.fail("counted again"))
    assert counted(f"{path}:a100") == first


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"), ("[]", "needs an object of arguments"), ("{}", "needs an object of arguments"),
        ('{"x": {"shape": [1.5]}}', "x: 1.5 in its shape"), ('{"x": {"shape": ["bach"]}}', "x: 'bach' in its shape"),
        ('{"x": {"shape": 3}}', "x: shape 3: write a list of sizes"), ('{"x": {"shape": [true]}}', "x: True in its"),
        ('{"x": {"shape": [1], "dtype": "float"}}', "x: dtype 'float': did you mean float"),
        ('{"x": {"shape": [1], "size": 3}}', "x: 'size' is not known"),
        ('{"x": [{"a": {"shape": [0]}}]}', r"x\[0\].a: 0 in its shape"),
    ],
)  # fmt: skip
def test_files_of_inputs_that_are_none(tmp_path, text, said):
    path = tmp_path / "inputs.json"
    path.write_text(text)
    with pytest.raises(osf.DataError, match=said) as error:
        inputs.from_file(path)
    assert str(path) in str(error.value)


def test_other_models_take_no_inputs(tmp_path):
    for name in ("llama3-8b", "mamba"):
        if name == "mamba":
            (tmp_path / name).mkdir()
            (tmp_path / name / "config.json").write_text('{"model_type": "mamba"}')
        with pytest.raises(
            osf.UsageError, match=r"input=a\.json is for module:function and models of timm and diffusers"
        ):
            counted(f"{name}:a100,input=a.json")
    with pytest.raises(osf.UsageError, match="model of timm needs torch and no-such-package: pip install 'osfmodel"):
        library._versions(Config("x", {"model_type": "timm"}), ("torch", "no-such-package"), "timm")
