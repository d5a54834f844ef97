"""Lines for steps of several micro-batches: what is pasted accumulates as the prediction does."""

from __future__ import annotations

import json

import pytest

from osfmodel import CONFIG_TARGETS
from osfmodel.targets.target import NOT_TOLD
from tests.commands import invoke
from tests.targets import golden

SAID = {
    "accelerate": "Accelerator(kwargs_handlers=[handler], gradient_accumulation_steps=4)",
    "byteps": "backward_passes_per_step=4",
    "ddp": "with model.no_sync():",
    "deepspeed": '"gradient_accumulation_steps": 4',
    "fsdp2": "4 micro-batches a step, gathered and reduced in each",
    "hsdp": "4 micro-batches a step, gathered and reduced in each",
    "horovod": "backward_passes_per_step=4",
    "lightning": "Trainer(strategy=strategy, accumulate_grad_batches=4)",
    "megatron": "# 4 times --micro-batch-size times the data-parallel workers",
    "fsdp1": "4 micro-batches a step, gathered and reduced in each",
    "fsdp1-accelerate": "Accelerator(fsdp_plugin=plugin, gradient_accumulation_steps=4)",
    "fsdp1-lightning": "Trainer(strategy=strategy, accumulate_grad_batches=4)",
    "distributed-optimizer": "# 4 times --micro-batch-size times the data-parallel workers",
    "torchtitan": "# 4 times local_batch_size times the data-parallel ranks.",
    "zero-3": '"gradient_accumulation_steps": 4',
    "zero-2": '"gradient_accumulation_steps": 4',
    "runtime": "with executor.no_sync(): around the first 3 of 4 backward passes",
}
TUNE = ["tune", "alexnet-pipedream", "--cluster", "v100-10gbe", "--workers", "16"]


def tuned(*words):
    result = invoke([*TUNE, *words])
    assert result.exit_code == 0, result.output
    return result.output


def test_every_target_is_here():
    assert SAID.keys() == CONFIG_TARGETS.keys()


@pytest.mark.usefixtures("kept_tuning")
@pytest.mark.parametrize("name", SAID)
def test_the_lines_accumulate(name):
    """As printed; without --accumulate they are as they were."""
    style = "table" if name == "runtime" else "code"
    assert SAID[name] in " ".join(tuned("--for", name, "--accumulate", "4", "--format", style).split())
    assert "accumul" not in tuned("--for", name, "--format", style)
    if name in golden.NAMES:
        made = golden.workload()
        knobs = CONFIG_TARGETS[name].convert.default_knobs()
        text = CONFIG_TARGETS[name].text
        assert text.written(knobs, made, micro_batches=1) == text.render(knobs, made)


@pytest.mark.usefixtures("kept_tuning")
@pytest.mark.parametrize("name", ["ddp", "accelerate", "lightning", "fsdp2", "hsdp"])
def test_python_lines_are_python(name):
    assert compile(tuned("--for", name, "--accumulate", "4", "--format", "code"), name, "exec").co_names


def test_settings_are_in_the_documents_too(tmp_path):
    """JSON of DeepSpeed's that it reads, and the settings in the result for programs."""
    target = tmp_path / "deepspeed.json"
    tuned("--for", "deepspeed", "--accumulate", "4", "-o", str(target))
    assert json.loads(target.read_text())["gradient_accumulation_steps"] == 4
    for name, setting in (("deepspeed", "gradient_accumulation_steps"), ("lightning", "accumulate_grad_batches")):
        document = json.loads(tuned("--for", name, "--accumulate", "4", "--format", "json"))
        assert document["config"][setting] == 4
    assert "gradient_accumulation_steps" not in json.loads(tuned("--for", "deepspeed", "--format", "json"))["config"]


@pytest.mark.parametrize("ending", [".env", ".yaml"])
def test_files_for_horovod_say_what_python_has_to(tmp_path, ending):
    target = tmp_path / f"horovod{ending}"
    tuned("--for", "horovod", "--accumulate", "4", "-o", str(target))
    assert "backward_passes_per_step=4" in target.read_text()


def test_a_target_that_does_not_say_how_it_accumulates_has_lines_that_do_not():
    assert NOT_TOLD.text("lines", ".py", 4) == "lines"
    assert "add up the gradients of 4 micro-batches" in NOT_TOLD.note(4)
