"""Profiles of real models, on a CPU: order, sizes and sums, not speeds."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import types
from statistics import median

import pytest

import osfmodel as osf
from osfmodel.entities.display import show_time
from osfmodel.runtime.callbacks import lightning_callback, transformers_callback
from osfmodel.runtime.profiler.conditions import AGREEMENT
from osfmodel.runtime.profiler.driving import default_device
from osfmodel.runtime.profiler.steps import INPUT, LOSS, alike
from tests.commands import invoke
from tests.conftest import ROOT
from tests.live.launching import on_a_terminal
from tests.live.warm import Process
from tests.repository.test_docs import blocks

if os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore")]
nn = torch.nn


class Convolutions(nn.Module):
    """Two convolutions with a norm, a branch, a layer that is called twice."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.twice = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.side = nn.Conv2d(8, 8, 1)
        self.output = nn.Linear(8, 10)

    def forward(self, images):
        hidden = self.first(images)
        hidden = self.twice(self.twice(hidden)) + self.side(hidden)
        return self.output(hidden.mean((2, 3)))


class Transformer(nn.Module):
    """Tied embedding and output, a parameter of the model itself, a frozen tensor and unused ones."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(50, 16)
        self.position = nn.Parameter(torch.zeros(12, 16))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.tokens.weight
        self.frozen = nn.Linear(16, 16)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(4, 4)

    def forward(self, tokens):
        hidden = self.tokens(tokens) + self.position
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.frozen(hidden))


def convolutions():
    torch.manual_seed(1)
    batch = torch.randn(4, 3, 16, 16), torch.zeros(4, dtype=torch.long)
    return Convolutions(), batch, nn.functional.cross_entropy


def transformer():
    torch.manual_seed(1)
    tokens = torch.randint(50, (3, 12))

    def loss(output, targets):
        return nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten())

    return Transformer(), (tokens, tokens), loss


class Fails:
    """A loss that cannot be computed after so many times."""

    def __init__(self, times, loss):
        self.left, self.loss = times, loss

    def __call__(self, output, targets):
        self.left -= 1
        return self.loss(output, targets) if self.left >= 0 else 1 / 0


@pytest.fixture(autouse=True)
def one_thread():
    """So that tests beside it on the same cores are not waited for."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def autograd_order(model, batch, loss):
    """Names in the order in which autograd accumulates them, found without osfmodel."""
    order = []
    handles = [
        tensor.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
        for name, tensor in model.named_parameters()
        if tensor.requires_grad
    ]
    loss(model(batch[0]), batch[1]).backward()
    for handle in handles:
        handle.remove()
    return order


def train(made, iterations, watched=None, optimizer=torch.optim.SGD, accumulate=1):
    """The loop of a user; ``watched.step()`` is called where there is no optimizer."""
    model, (inputs, targets), loss = made
    step = optimizer(model.parameters(), lr=1e-3) if optimizer else None
    for _ in range(iterations):
        model.zero_grad()
        for _ in range(accumulate):
            loss(model(inputs), targets).backward()
        if step:
            step.step()
        else:
            watched.step()


def profiled(made, iterations=12, **options):
    """A profile of a loop with an optimizer."""
    with osf.profile(made[0], warm_up=2, **options) as watched:
        train(made, iterations, watched)
    return watched


def hooks_of(model):
    """How many hooks there are on a model and its parameters."""
    modules = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
    return modules + sum(len(tensor._post_accumulate_grad_hooks or ()) for tensor in model.parameters())


@pytest.mark.parametrize("make", [convolutions, transformer])
def test_the_order_is_that_of_autograd_and_sizes_are_exact(make):
    made = make()
    expected = autograd_order(*made)
    workload = profiled(made).workload
    assert list(workload.gradients.names) == expected
    tensors = dict(made[0].named_parameters())
    assert list(workload.gradients.sizes) == [4 * tensors[name].numel() for name in expected]
    assert set(workload.gradients.dtypes) == {"float32"}
    assert workload.layers[0].name == INPUT
    assert workload.layers[-1].name == LOSS


@pytest.mark.parametrize("make", [convolutions, transformer])
def test_layers_add_up_to_the_steps_of_the_same_run(make):
    """An identity, not a timing: layers and update are the median step with hooks, parts of it its parts."""
    watched = profiled(make(), 22)
    counted, workload = alike(watched.steps), watched.workload
    assert len(counted) == 10
    assert workload.compute_time == pytest.approx(median(step.total for step in counted), rel=1e-9)
    assert workload.forward_time == pytest.approx(median(step.forward_end for step in counted), rel=1e-9)
    assert workload.update_time > 0
    ready = [median(step.ready[i].time for step in counted) for i in range(len(workload.gradients))]
    assert list(workload.gradients.ready_times) == pytest.approx(ready, rel=1e-9)


def test_every_time_of_a_step_lies_inside_it():
    for step in profiled(transformer()).steps:
        times = [end for _, end in step.ends]
        assert times == sorted(times)
        assert all(0 < time <= step.forward_end for time in times)
        assert all(step.forward_end <= ready.time <= step.backward_end for ready in step.ready)
        assert 0 < step.forward_end < step.backward_end < step.total


def test_steps_go_with_hooks_and_without_by_turns_and_the_file_says_by_how_much_they_differ():
    watched = profiled(convolutions())
    assert [step.hooked for step in watched.steps] == [False, True] * 5
    assert all(bool(step.ready) == step.hooked == bool(step.ends) for step in watched.steps)
    bare = median(step.total for step in watched.steps if not step.hooked)
    difference = watched.workload.compute_time / bare - 1
    assert watched.workload.source.gpu == "none (CPU)"
    text = watched.workload.source.conditions
    assert f"with hooks {show_time(watched.workload.compute_time)}, {difference:+.1%}" in text
    told = [one for one in watched.warnings if "something else was running" not in one]  # which is the machine's affair
    assert ("nothing was scaled" in text) == (abs(difference) > AGREEMENT) == bool(told)
    assert "after 2 warm-ups" in text
    assert "no step removed" in text


def test_forward_of_a_module_counts_for_the_last_of_its_tensors():
    layers = {layer.name: layer for layer in profiled(convolutions()).workload.layers}
    assert layers["twice.weight"].forward_time > 0
    assert layers["twice.weight"].activation_bytes >= 2 * 4 * 4 * 8 * 16 * 16  # the inputs of both calls
    assert sorted(layers[f"first.0.{kind}"].forward_time > 0 for kind in ("weight", "bias")) == [False, True]


def test_tied_frozen_and_unused_tensors():
    watched = profiled(transformer())
    names = [layer.name for layer in watched.workload.layers]
    assert "tokens.weight" in names
    assert "head.weight" not in names
    assert not any(name.startswith(("frozen", "unused")) for name in names)
    assert "2 tensors never had a gradient and are left out (unused.weight, unused.bias)" in (
        watched.workload.source.conditions
    )
    tail = watched.workload.layers[-1]
    assert tail.forward_time > 0  # the head's forward: its tensor is the embedding's


def test_a_loop_without_an_optimizer_says_where_iterations_end():
    made = convolutions()
    with osf.profile(made[0], name="mine", warm_up=1) as watched:
        train(made, 7, watched, optimizer=None)
        assert watched.workload.name == "mine"  # also before the context ends
    assert watched.workload.name == "mine"
    assert watched.workload.update_time == 0
    assert len(alike(watched.steps)) == 3
    assert watched.workload.batch_size == 4


def test_step_after_an_optimizer_changes_nothing():
    made = convolutions()
    with osf.profile(made[0], warm_up=2) as watched:
        for _ in range(8):
            train(made, 1)
            watched.step()
    assert [step.hooked for step in watched.steps] == [False, True] * 3


def test_of_accumulated_gradients_the_last_micro_batch_counts():
    made = convolutions()
    with osf.profile(made[0], warm_up=2) as watched:
        train(made, 8, accumulate=3)
    assert {step.micro_batches for step in watched.steps} == {3}
    assert len(watched.workload.gradients) == len(list(made[0].parameters()))
    assert all(len(step.ends) == 6 for step in watched.steps if step.hooked)  # the calls of one forward
    assert "accumulated over 3 micro-batches, times are of the last" in watched.workload.source.conditions


def test_tensors_outside_modules():
    made = convolutions()
    model, (inputs, targets), loss = made
    scale = torch.ones(10, requires_grad=True)
    step = torch.optim.AdamW([*model.parameters(), scale])
    with osf.profile(model, warm_up=0, tensors={"scale": scale}) as watched:
        for _ in range(4):
            loss(model(inputs) * scale, targets).backward()
            step.step()
    assert watched.workload.gradients.names[0] == "scale"
    assert watched.workload.gradients.sizes[0] == 40
    assert watched.workload.layers[0].activation_bytes is None  # there was no warm-up to count them in
    assert "AdamW" in watched.workload.source.conditions


def test_evaluation_between_steps_is_no_iteration():
    made = convolutions()
    with osf.profile(made[0], warm_up=0) as watched:
        for _ in range(4):
            train(made, 1)
            with torch.no_grad():
                made[0](made[1][0])
    assert [step.hooked for step in watched.steps] == [False, True] * 2


def test_steps_of_another_order_are_left_out_and_told():
    made = convolutions()
    with osf.profile(made[0], warm_up=0) as watched:
        train(made, 6)
        made[0].output.requires_grad_(False)
        train(made, 2)
    assert len(alike(watched.steps)) == 3
    assert "1 steps left out" in watched.workload.source.conditions


def test_checkpointed_blocks_are_recomputed_in_backward():
    made = convolutions()
    made[0].first.forward = lambda images, inner=made[0].first.forward: torch.utils.checkpoint.checkpoint(
        inner, images, use_reentrant=False
    )
    watched = profiled(made)
    assert all(len(step.ends) == 6 for step in watched.steps if step.hooked)
    assert len(watched.workload.gradients) == len(list(made[0].parameters()))


def test_nothing_stays_behind():
    made = convolutions()
    plain = torch.autograd.backward
    before = hooks_of(made[0])
    with pytest.raises(ZeroDivisionError, match="division by zero"), osf.profile(made[0], warm_up=1) as watched:
        train((made[0], made[1], Fails(4, made[2])), 9)
    assert hooks_of(made[0]) == before == 0
    assert torch.autograd.backward is plain
    assert len(watched.steps) == 3  # those before the error are kept


def test_hooks_come_off_when_the_steps_wanted_are_done():
    made = convolutions()
    with osf.profile(made[0], warm_up=1, steps=2) as watched:
        train(made, 12)
        assert watched.done
        assert hooks_of(made[0]) == 2  # on the model itself, to see an iteration begin and end
    assert [step.hooked for step in watched.steps] == [False, True] * 2


def test_too_few_iterations_are_an_error_that_says_how_many():
    made = convolutions()
    with osf.profile(made[0]) as watched:
        train(made, 3)
    with pytest.raises(osf.DataError, match="saw 3 iterations with a backward: a profile needs 7 or more"):
        _ = watched.workload
    with osf.profile(made[0]) as watched:
        made[2](made[0](made[1][0]), made[1][1]).backward()
    with pytest.raises(osf.DataError, match="or call"):
        _ = watched.workload


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.ReLU(), "no trainable parameters"),
        ([1], "a list cannot be profiled"),
        (nn.Linear(2, 2).requires_grad_(False), "no trainable parameters"),
    ],
)
def test_models_that_cannot_be_profiled_are_refused(model, words):
    with pytest.raises(osf.UsageError, match=words):
        osf.profile(model)


def test_a_model_that_compiles_itself_is_refused():
    model = nn.Linear(2, 2)
    model.compile()
    with pytest.raises(osf.UsageError, match=r"before torch\.compile"):
        osf.profile(model)


def test_wrapped_models_are_refused_by_name():
    class FullyShardedDataParallel(nn.Linear):
        pass

    class OptimizedModule(nn.Linear):
        pass

    with pytest.raises(osf.UsageError, match="before it is wrapped"):
        osf.profile(FullyShardedDataParallel(2, 2))
    with pytest.raises(osf.UsageError, match=r"before torch\.compile"):
        osf.profile(OptimizedModule(2, 2))


def test_importing_osfmodel_does_not_import_torch():
    code = "import sys, osfmodel; osfmodel.profile; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_lightning_callback(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.batch, self.loss = convolutions()

        def training_step(self, batch, _):
            return self.loss(self.model(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    images, labels = torch.randn(48, 3, 16, 16), torch.zeros(48, dtype=torch.long)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=4)
    callback = lightning_callback(tmp_path / "module.json", warm_up=2, steps=4)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "accelerator": "cpu", "max_epochs": 1}
    lightning.Trainer(callbacks=[callback], **quiet).fit(Module(), loader)
    workload = osf.load_workload(tmp_path / "module.json")
    assert workload.batch_size == 4
    assert list(workload.gradients.names) == [f"model.{name}" for name in autograd_order(*convolutions())]
    assert len(alike(callback.watch.profile.steps)) == 4
    assert workload.update_time > 0
    short = lightning_callback(tmp_path / "short.json", warm_up=50)
    module = Module()
    with pytest.warns(UserWarning, match="no profile of this training: saw 12 iterations"):
        lightning.Trainer(callbacks=[short], **quiet).fit(module, loader)
    assert hooks_of(module) == 0
    assert not (tmp_path / "short.json").exists()


def test_a_callback_for_transformers(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    model, (images, labels), loss = convolutions()

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, images, labels):
            return {"loss": loss(self.model(images), labels)}

    callback = transformers_callback(tmp_path / "wrapped.json", warm_up=1, steps=3)
    arguments = transformers.TrainingArguments(
        tmp_path / "out", max_steps=8, per_device_train_batch_size=4, report_to=[], use_cpu=True, save_strategy="no"
    )
    data = [{"images": images[0], "labels": labels[0]}] * 64
    transformers.Trainer(Wrapped(), arguments, train_dataset=data, callbacks=[callback]).train()
    workload = osf.load_workload(tmp_path / "wrapped.json")
    assert workload.batch_size == 4
    assert len(workload.gradients) == len(list(model.parameters()))


def test_a_lightning_training_that_breaks_off_keeps_what_was_measured(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, _, self.loss = convolutions()

        def training_step(self, batch, number):
            if number == 9:
                raise ZeroDivisionError("in a batch")
            return self.loss(self.model(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    images, labels = torch.randn(48, 3, 16, 16), torch.zeros(48, dtype=torch.long)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=4)
    callback = lightning_callback(tmp_path / "module.json", warm_up=2)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "accelerator": "cpu", "max_epochs": 1}
    module = Module()
    with pytest.raises(ZeroDivisionError, match="in a batch"):
        lightning.Trainer(callbacks=[callback], **quiet).fit(module, loader)
    assert hooks_of(module) == 0
    assert "stopped before the 20 steps" in osf.load_workload(tmp_path / "module.json").source.conditions


BREAKS_OFF = """
import sys, types
import torch
sys.modules["transformers"] = types.SimpleNamespace(TrainerCallback=object)
from osfmodel.runtime.callbacks import transformers_callback

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
callback = transformers_callback(sys.argv[1], warm_up=1)
callback.on_train_begin(None, None, None, model=model)
for number in range(9):
    if number == 8:
        raise ZeroDivisionError
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    callback.on_step_end(None, None, None)
"""


def test_a_trainer_that_tells_nobody_of_its_failure_keeps_what_was_measured(tmp_path):
    """The Trainer of transformers has no callback for it."""
    process = Process(["-c", BREAKS_OFF, str(tmp_path / "broken.json")], ROOT, os.environ)
    _, errors = process.communicate(timeout=90)
    assert errors.rstrip().endswith("ZeroDivisionError")
    assert "stopped before the 20 steps" in osf.load_workload(tmp_path / "broken.json").source.conditions


def test_a_training_that_begins_again_leaves_nothing_of_the_first(tmp_path, monkeypatch):
    """Profiles that end in any order leave backward as it was."""
    plain = torch.autograd.backward
    monkeypatch.setitem(sys.modules, "transformers", types.SimpleNamespace(TrainerCallback=object))
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    callback, other = transformers_callback(tmp_path / "none.json"), transformers_callback()
    callback.on_train_begin(None, None, None, model=first)
    with pytest.warns(UserWarning, match="no profile of this training"):
        callback.on_train_begin(None, None, None, model=second)
    assert hooks_of(first) == 0
    other.on_train_begin(None, None, None, model=first)
    with pytest.warns(UserWarning, match="no profile of this training"):
        callback.on_train_end(None, None, None)
    assert torch.autograd.backward is not plain
    other.on_train_end(None, None, None)
    assert torch.autograd.backward is plain
    assert hooks_of(first) == hooks_of(second) == 0


@pytest.mark.parametrize(
    ("make", "package"), [(lightning_callback, "lightning"), (transformers_callback, "transformers")]
)
def test_a_callback_without_its_framework(monkeypatch, make, package):
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(osf.UsageError, match=f"{package} is not installed"):
        make()


FACTORIES = """
import time

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.b(self.a(x).relu())


LOSS = nn.functional.cross_entropy


def pair():
    return Net(), (torch.randn(4, 6), torch.zeros(4, dtype=torch.long)), LOSS


def one():
    return Net(), torch.randn(4, 6), lambda output: output.sum()


def words():
    model = Net()
    return model, {"x": torch.randn(4, 6)}, lambda output: output.sum(), torch.optim.Adam(model.parameters())


def sized(batch_size=2):
    return Net(), (torch.randn(batch_size, 6), torch.zeros(batch_size, dtype=torch.long)), LOSS


def slow():
    class Slow(Net):
        def forward(self, x):
            time.sleep(0.05)
            return super().forward(x)

    return Slow(), torch.randn(4, 6), lambda output: output.sum()


def nonsense():
    return 42


def two():
    return Net(), torch.randn(4, 6)


def no_module():
    return "net", torch.randn(4, 6), LOSS


def no_loss():
    return Net(), torch.randn(4, 6), 7


def bad_batch():
    return Net(), (1, 2, 3), LOSS


def empty():
    return nn.ReLU(), torch.randn(4, 6), lambda output: output.sum()


def detached():
    return Net(), torch.randn(4, 6), lambda output: output.detach().sum()


def vector():
    return Net(), torch.randn(4, 6), lambda output: output


def wrong_shape():
    return Net(), torch.randn(4, 7), lambda output: output.sum()


def fails():
    raise RuntimeError("out of cheese")


value = 3
"""
SHORT = ("--steps", "2", "--warm-up", "1")


@pytest.fixture
def factories(tmp_path, monkeypatch):
    """A module beside which the command is run, under a name of its own."""
    name = f"factories_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(FACTORIES)
    (tmp_path / f"{name}_broken.py").write_text("import not_to_be_found\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return name


def run(*arguments):
    return invoke(["profile", *map(str, arguments)])


@pytest.mark.parametrize("factory", ["pair", "one", "words", "sized"])
def test_a_factory(factories, factory):
    result = run(f"{factories}:{factory}", *SHORT, "-o", "net.json")
    assert result.exit_code == 0, result.output
    assert "wrote net.json" in result.stderr
    workload = osf.load_workload("net.json")
    assert workload.name == factory
    assert sorted(workload.gradients.names) == ["a.bias", "a.weight", "b.bias", "b.weight"]
    assert workload.gradient_bytes == 4 * (6 * 5 + 5 + 5 * 3 + 3)
    assert workload.batch_size == (2 if factory == "sized" else 4)
    assert ("Adam" if factory == "words" else "SGD") in workload.source.conditions
    predicted = invoke(["predict", "net.json", "--cluster", "ring:50us,10Gbps", "--workers", "8"])
    assert predicted.exit_code == 0, predicted.output


@pytest.mark.parametrize("factory", ["pair", "sized"])
def test_batch_sizes_become_a_profile_each_and_a_fit(factories, tmp_path, factory):
    (tmp_path / "out").mkdir()
    result = run(f"{factories}:{factory}", *SHORT, "--batch-size", "2,8,32", "-o", "out")
    assert result.exit_code == 0, result.output
    found = [osf.load_workload(tmp_path / "out" / f"{factory}-b{size}.json") for size in (2, 8, 32)]
    assert [workload.batch_size for workload in found] == [2, 8, 32]
    for workload, size in zip(found, (2, 8, 32), strict=True):
        assert f"batch of {size}x6" in workload.source.conditions
        assert "forward and backward at batch 2, 8, 32:" in workload.source.conditions
    assert "per sample" in result.stderr


def test_bfloat16_and_autocast(factories):
    text = run(f"{factories}:pair", *SHORT, "--dtype", "bfloat16", "-o", "-").stdout
    sizes = {row["name"]: (row["gradient_bytes"], row.get("dtype")) for row in json.loads(text)["layers"]}
    assert sizes["a.weight"] == (60, "bfloat16")
    text = run(f"{factories}:pair", *SHORT, "--dtype", "bfloat16", "--autocast", "-o", "-").stdout
    document = json.loads(text)
    assert {row["gradient_bytes"] for row in document["layers"]} >= {120}
    assert "autocast to bfloat16" in document["source"]["conditions"]


def test_without_output_it_says_what_was_measured(factories):
    assert "workload pair: 4 tensors, 212 B" in run(f"{factories}:pair", *SHORT).stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nothing_here:make"], 2, "there is no module 'nothing_here'"),
        (["{}.part:make"], 2, "there is no module"),
        (["{}_broken:make"], 1, "No module named 'not_to_be_found'"),
        (["{}"], 2, "write PACKAGE.MODULE:FACTORY"),
        (["{}:absent"], 2, "has no function 'absent'"),
        (["{}:value"], 2, "has no function 'value'"),
        (["{}:nonsense"], 1, "must return (model, batch, loss) or (model, batch, loss, optimizer), not int"),
        (["{}:two"], 1, "not tuple of 2"),
        (["{}:no_module"], 1, "the model is str, not a torch.nn.Module"),
        (["{}:no_loss"], 1, "the loss is int, not a function"),
        (["{}:bad_batch"], 1, "the batch is tuple of 3"),
        (["{}:empty"], 2, "no trainable parameters"),
        (["{}:detached"], 1, "it has no gradient"),
        (["{}:vector"], 1, "not a tensor of one element"),
        (["{}:wrong_shape"], 1, "the forward failed"),
        (["{}:fails"], 1, "RuntimeError: out of cheese"),
        (["{}:pair", "--device", "cuda:77"], 2, "--device cuda:77"),
        (["{}:pair", "--device", "toaster"], 2, "--device toaster"),
        (["{}:pair", "--batch-size", "4,0"], 2, "--batch-size '4,0'"),
        (["{}:pair", "--batch-size", "4,8", "-o", "x.json"], 2, "give a folder that exists"),
        (["{}:pair", "-o", "x.csv"], 2, "writes JSON"),
        (["{}:pair", "-o", "absent/x.json"], 2, "there is no folder absent"),
        (["{}:pair", "--sequence", "4"], 2, "--sequence is for --transformers"),
        (["{}:pair", "--torchvision", "resnet18"], 2, "give one model"),
        ([], 2, "give one model"),
    ],
)
def test_errors_are_one_line(factories, arguments, code, words):
    result = run(*(argument.replace("{}", factories) for argument in arguments), *SHORT)
    assert result.exit_code == code, result.output
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert not result.stdout


@pytest.mark.parametrize("package", ["torchvision", "transformers"])
def test_a_package_that_is_not_there(monkeypatch, package):
    for name in (package, f"{package}.models"):
        monkeypatch.setitem(sys.modules, name, None)
    result = run(f"--{package}", "resnet18", *SHORT)
    assert result.exit_code == 2
    assert f"{package} is not installed: pip install {package}" in result.stderr


def test_a_model_of_torchvision():
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    result = run("--torchvision", "squeezenet1_1", *SHORT, "--batch-size", "1", "-o", "-")
    assert result.exit_code == 0, result.output
    assert sum(row["gradient_bytes"] for row in json.loads(result.stdout)["layers"]) == 4 * 1_235_496


def test_a_model_of_transformers(tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 99}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes}))
    result = run("--transformers", tmp_path, *SHORT, "--sequence", "16", "--batch-size", "2", "-o", "-")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert "batch of 2x16" in document["source"]["conditions"]
    assert "transformer.wte.weight" in [row["name"] for row in document["layers"]]


def slow_run(factories, folder):
    """``osf profile`` of the slow factory, begun."""
    words = ["-m", "osfmodel", "profile", f"{factories}:slow", "--steps", "500", "-o", "slow.json"]
    return Process(words, folder, {**os.environ, "PYTHONPATH": str(ROOT)})


HEARD = "\nimport signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
"""Makes a module hear Ctrl-C, which shells let what runs in the background ignore."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_its_results(factories, tmp_path, number):
    """In the middle of the steps: a profile of those there are, whole, and exit 130."""
    started = tmp_path / "started"
    source = (tmp_path / f"{factories}.py").read_text()
    counted = source.replace("time.sleep(0.05)", f"open({str(started)!r}, 'a').write('x'); time.sleep(0.05)")
    (tmp_path / f"{factories}.py").write_text(counted + HEARD)
    process = slow_run(factories, tmp_path)
    try:
        while process.poll() is None and not (started.exists() and started.stat().st_size > 12):
            with pytest.raises(subprocess.TimeoutExpired, match="timed out after"):
                process.wait(0.1)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "interrupted" in errors
    assert "stopped before the 500 steps" in osf.load_workload(tmp_path / "slow.json").source.conditions


def test_interrupted_where_nothing_can_be_raised_it_ends_before_the_next_step(factories, tmp_path):
    """Ctrl-C in the callback of a weak reference, whose KeyboardInterrupt the interpreter only prints."""
    source = (tmp_path / f"{factories}.py").read_text()
    lost = "came.append(1); one = {1}; watched = weakref.ref(one, kill if len(came) == 30 else None); del one"
    made = """
import os, weakref
came = []
def kill(_):
    os.kill(os.getpid(), signal.SIGINT)
"""
    (tmp_path / f"{factories}.py").write_text(source.replace("time.sleep(0.05)", lost) + HEARD + made)
    process = slow_run(factories, tmp_path)
    _, errors = process.communicate(timeout=200)
    assert "Exception ignored" in errors
    assert process.returncode == 130, errors
    assert "stopped before the 500 steps" in osf.load_workload(tmp_path / "slow.json").source.conditions


@pytest.mark.parametrize(("found", "device"), [(True, "cuda"), (False, "cpu")])
def test_without_a_device_it_is_the_gpu_if_there_is_one(monkeypatch, found, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: found)
    assert default_device() == device


def test_steps_are_counted_on_a_terminal(factories, tmp_path):
    ended = on_a_terminal(["profile", f"{factories}:pair", *SHORT, "-o", "-"], tmp_path)
    assert ended.code == 0, ended
    assert re.search(r"pair: step 1 of (\d+)\rpair: .*\rpair: step \1 of \1\n", ended.stderr)


def test_the_page_runs(tmp_path, monkeypatch):
    """Its example module, command and loops, as they stand in docs/how-to/profile-a-model.md."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    page = ROOT / "docs/how-to/profile-a-model.md"
    factory, loop, *_ = blocks(page, "py")
    (tmp_path / "my_training.py").write_text(factory)
    result = run("my_training:make", *SHORT, "-o", "my-model.json")
    assert result.exit_code == 0, result.output
    exec(compile(loop, str(page), "exec"), {"__name__": "pasted"})
    assert (tmp_path / "from-my-loop.json").is_file()
    assert osf.load_workload("from-my-loop.json").gradients.names == osf.load_workload("my-model.json").gradients.names
    sys.modules.pop("my_training", None)
