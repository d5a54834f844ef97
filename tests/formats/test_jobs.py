"""Files that state a job: each is read as it was written, or refused in a line; what targets write is read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from osfmodel import load_workload
from osfmodel.entities.errors import DataError
from osfmodel.formats.jobs import JOB_FORMATS, job_at
from osfmodel.formats.jobs.deepspeed import precision
from osfmodel.formats.jobs.job import FileKeys
from osfmodel.formats.jobs.shell import arguments
from osfmodel.planning.scaling.jobs import words_of
from osfmodel.targets import CONFIG_TARGETS
from osfmodel.targets.target import JobSettings

DATA = Path(__file__).with_name("data") / "jobs"
GPT = "gpt2+n_embd=12288+n_inner=49152+n_layer=96+n_head=96+n_positions=2048+vocab_size=50257"
OWN = (
    "llama+vocab_size=32000+hidden_size=2048+num_hidden_layers=24+num_attention_heads=16+num_key_value_heads=16"
    "+intermediate_size=5632"
)
READ = {
    "titan-8b.toml": ("llama3-8b:g,seq8192,fp8,ac=selective,stack=compile,batch1", {}, "fsdp2", None, 1, None, ()),
    "titan-405b.toml": (
        "llama3-405b:g,seq8192,fp8=rowwise,ac=full,stack=eager,batch2", {"tensor": 8, "pipeline": 4}, "hsdp", 256,
        None, 256, ("enable_async_tensor_parallel", "pipeline_parallel_schedule"),
    ),
    "titan-2024.toml": (
        "llama3-70b:g,seq4096,bf16,ac=full:1/2,stack=compile,batch8", {"tensor": 8}, "fsdp2", None, 1, None, (),
    ),
    "titan-experts.toml": (
        "deepseek-v2-lite:g,seq4096,bf16,stack=eager,batch4", {"expert": 8}, "fsdp2:keep", 8, 1, None,
        ("muon is counted as AdamW", "training.dtype = bfloat16", "mixed_precision_reduce = bfloat16",
         "converters that are not counted: quantize.grouped_mm.float8"),
    ),
    "megatron-8b.sh": (
        "llama3-8b:g,seq8192,fp8,stack=te,batch1", {"tensor": 2}, "distributed-optimizer", 32, None, 128,
        ("grad_reduce_in_bf16",),
    ),
    "megatron-gpt.sh": (
        f"{GPT}:g,seq2048,fp16,ac=selective,stack=te,batch1", {"tensor": 8, "pipeline": 16}, "single", None, None, 1536,
        ("--sequence-parallel is not given", "num_layers_per_virtual_pipeline_stage = 3"),
    ),
    "megatron-experts.args": (
        "qwen3-30b-a3b:g,seq4096,bf16,ac=full:12/24,stack=te,batch1", {"pipeline": 2, "expert": 8},
        "distributed-optimizer", None, None, 256, ("are not both given",),
    ),
    "megatron-own.sh": (f"{OWN}:g,seq4096,bf16,stack=te", {}, "megatron", 8, None, None, ("micro_batch_size = $MBS",)),
    "zero-3.json": (":g", {}, "zero-3", None, None, None, ("offload_optimizer.device = cpu",)),
    "zero-2.json": (":g,fp16,batch4", {}, "zero-2:200000000,overlap", 32, 2, 256, ()),
    "accelerate-context.yaml": (":g,bf16,ac=full,stack=eager", {"context": 4}, "fsdp2:keep", 16, None, None, ()),
    "accelerate-hybrid.yaml": (":g,fp8,stack=eager", {}, "hsdp", 16, None, None, ("fsdp_offload_params = True",)),
    "accelerate-zero.yaml": (":g,bf16,stack=compile", {}, "zero-3", 8, 4, None, ()),
    "axolotl-qlora.yaml": (
        "llama3.1-70b:g,seq2048,ac=full,qlora=16:all-linear,stack=eager,batch1", {}, "fsdp1", None, 4, None, (),
    ),
    "axolotl-fp8.yaml": (
        "llama3.2-3b:g,seq512,fp8,ac=full,stack=compile,batch16", {}, "fsdp2:keep", None, 1, None,
        ("fp8_enable_fsdp_float8_all_gather",),
    ),
    "trainer-zero.yaml": (
        "qwen2.5-7b:g,seq4096,bf16,stack=eager,batch2", {}, "zero-2", None, 8, None, ("ds_z2_config.json is not read",),
    ),
}  # fmt: skip
"""By file: words, groups, plan, GPUs, micro-batches, samples of a step, and what notes say."""


@pytest.mark.parametrize("name", READ)
def test_a_file_is_read_as_its_framework_means_it(name):
    words, groups, plan, gpus, accumulate, whole, said = READ[name]
    job = job_at(str(DATA / name))
    assert (words_of(job, "g"), job.groups, job.plan) == (words, groups, plan)
    assert (job.gpus, job.accumulate, job.whole) == (gpus, accumulate, whole)
    notes = " ".join(job.notes)
    assert all(one in notes for one in said), notes
    assert bool(said) == bool(notes), notes


@pytest.mark.parametrize(
    ("said", "dtype"),
    [
        ({"bf16": "auto"}, ""), ({"fp16": "auto"}, ""), ({}, ""), ({"fp16": False}, "float32"),
        ({"fp16": True, "bf16": "auto"}, "float16"),
    ],
)  # fmt: skip
def test_a_type_that_deepspeed_leaves_to_the_trainer_is_none(said, dtype):
    assert precision(FileKeys({f"{name}.enabled": value for name, value in said.items()})) == dtype


@pytest.mark.parametrize(
    ("said", "dtype"),
    [
        ("mixed_precision: bf16", "bfloat16"), ("mixed_precision: 'no'", "float32"), ("mixed_precision: fp8", "float8"),
        ("bf16: true", "bfloat16"), ("tf32: true", "tf32"), ("mixed_precision: fp16\nbf16: true", "float16"),
    ],
)  # fmt: skip
def test_types_of_hugging_face_are_named_as_everywhere(said, dtype, tmp_path):
    (tmp_path / "a.yaml").write_text(f"distributed_type: FSDP\n{said}\n", encoding="utf-8")
    assert job_at(str(tmp_path / "a.yaml")).parts["type"] == dtype


def test_every_format_has_files_here():
    assert {path.name for path in DATA.iterdir()} == set(READ)
    assert {job_at(str(DATA / name)).framework for name in READ} == set(JOB_FORMATS)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.toml", "[training]\nseq_len = 'many'\n[parallelism]\n", "training.seq_len is 'many': it must be a whole"),
        ("a.toml", "[model\n", "is not TOML"),
        ("a.toml", "[tool]\nname = 1\n", "states no job of torchtitan, megatron"),
        ("a.toml", "[parallelism]\ntensor_parallel_degree = 0\n", "tensor_parallel_degree is 0"),
        ("a.sh", "echo hello\n", "states no job"),
        ("a.sh", "echo h\udce9\n", "is not text"),
        ("a.sh", "A=xxxxxxxxxx\n" + "A=$A$A$A$A$A$A$A$A$A$A\n" * 8, "expands to more than"),
        ("a.args", "--num-layers 2.5", "num_layers is '2.5'"),
        ("a.json", '{"zero_optimization": {"stage": 5}}', "zero_optimization.stage is 5: it must be from 0 to 3"),
        ("a.json", '{"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}',
         "train_batch_size is 7: it must be a multiple"),
        ("a.yaml", "base_model: x\nmicro_batch_size: -1\n", "micro_batch_size is -1"),
    ],
)  # fmt: skip
def test_a_file_that_states_no_job_is_refused_in_a_line(name, text, said, tmp_path):
    (tmp_path / name).write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(DataError) as found:
        job_at(str(tmp_path / name))
    assert said in str(found.value)
    assert str(found.value).startswith(str(tmp_path / name))
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("name", ["a.json", "a.yaml", "a.csv", "missing.toml"])
def test_files_of_other_kinds_are_left_to_their_readers(name, tmp_path):
    if name != "missing.toml":
        (tmp_path / name).write_text("[1, 2", encoding="utf-8")
    assert job_at(str(tmp_path / name)) is None


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("python a.py --n $((2 * (3 + 4) / 2)) --m=7 # --n 3", {"n": "7", "m": "7"}),
        ("A=(--a 1)\nA+=(--b '2 3')\nrun x.py ${A[@]} --c", {"a": "1", "b": "2", "c": True}),
        ("N=${1:-${2:-8}}\nrun x.py --n ${N} --rest $3", {"n": "8", "rest": "$3"}),
        ("if [ $X -gt 1 ]; then Y=1; elif [ 2 -ge 2 ]; then Y=2; else Y=3; fi\nrun x.py --y $Y", {"y": "2"}),
        ("if [ 10 -gt 9 ]; then Y=1; fi\nrun x.py --y ${Y:-0}", {"y": "1"}),
        ("if [ -z $X ] && [ a != b ]; then Y=1; fi\nif ! [ a = a ]; then Y=4; fi\nrun x.py --y $Y", {"y": "1"}),
        ("case $1 in a) Y=1;; esac\nfor i in 1 2; do Y=3; done\nrun x.py --y ${Y:=5}", {"y": "5"}),
        ("Y=1\nif grep -q z f; then Y=2; if [ 1 = 1 ]; then Y=3; fi; else Z=4; fi\nrun x.py --y $Y$Z", {"y": "14"}),
        ("O=\"--a 1 \\\n --b 2\"\nO+=' --c 3'\neval run x.py $O \\\n --d $(nproc)",
         {"a": "1", "b": "2", "c": "3", "d": "$COMMAND"}),
        ("cat <<'EOT' > f\n--a 1\nEOT\nrun x.py --b 1 | tee log", {"b": "1"}),
    ],
)  # fmt: skip
def test_scripts_are_followed_as_far_as_texts_and_numbers_say(script, found):
    assert arguments(script) == found


JOBS = [
    JobSettings((("tensor", 4), ("context", 2)), 2, 64, 4, 8192, "selective", "bfloat16", "eager"),
    JobSettings((("pipeline", 4), ("expert", 8)), 1, 32, 8, 4096, "full", "float8", "compile"),
    JobSettings((), 4, 128, 1, 2048, "none", "mxfp8", "eager"),
    JobSettings((("tensor", 2),), 1, 64, 4, 8192, "none", "float8", "compile", overlap="tp"),
]


@pytest.mark.parametrize("target", ["torchtitan", "megatron", "distributed-optimizer"])
@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.dtype)
def test_what_targets_write_of_a_job_is_read_back(target, job, tmp_path):
    text, workload = CONFIG_TARGETS[target].text, load_workload("llama3.2-1b:h100,seq4096")
    knobs = text.in_job(CONFIG_TARGETS[target].convert.default_knobs(), job)
    file = tmp_path / f"job{text.ending}"
    file.write_text(text.written(knobs, workload, micro_batches=job.micro_batches), encoding="utf-8")
    found = job_at(str(file))
    assert found.groups == job.sizes
    assert (found.batch, found.whole) == (job.batch, job.whole)
    how = "" if job.checkpointing == "none" else f"ac={job.checkpointing}"
    kept = {kind: found.parts.get(kind, "") for kind in ("seq", "type", "ac")}
    assert kept == {"seq": f"seq{job.sequence}", "type": job.dtype, "ac": how}
    assert found.parts.get("overlap", "") == f"overlap={job.overlap}" * bool(job.overlap)
    assert found.parts["stack"] == f"stack={job.stack if target == 'torchtitan' else 'te'}"
    assert found.plan == ("fsdp2" if target == "torchtitan" else target)


@pytest.mark.parametrize("target", ["deepspeed", "zero-2", "zero-3"])
@pytest.mark.parametrize("ending", [".json", ".hjson"])
def test_what_targets_write_for_deepspeed_is_read_back(target, ending, tmp_path):
    entry, workload = CONFIG_TARGETS[target], load_workload("llama3.2-1b:h100,seq4096")
    file = tmp_path / f"job{ending}"
    file.write_text(entry.text.written(entry.convert.default_knobs(), workload, ending, 3), encoding="utf-8")
    found = job_at(str(file))
    assert found.plan == {"deepspeed": "zero-1"}.get(target, target)
    assert found.accumulate == 3
