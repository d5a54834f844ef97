"""Traces of inference are called that, in one line, and are not explained as slow training."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import pytest

import osfmodel as osf
from osfmodel.formats import load_trace
from tests.commands import invoke
from tests.formats import traces

SAID = "is of inference (no backward, optimizer step or collective of gradients), not of training"


def inference(rank=0, ranks=1, host=True):
    """A file of torch.profiler: four layers in each of three steps, and with several ranks an all-reduce after each."""
    events, numbers = [], count(1)

    def add(cat, name, start, length, thread, **args):
        times = {"ts": start, "dur": length}
        events.append({"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": thread, **times, "args": args})

    def kernel(name, start, length, stream, **args):
        number = next(numbers)
        add("cuda_runtime", "cudaLaunchKernel", start - 40, 2, 100, correlation=number)
        add("kernel", name, start, length, stream, stream=stream, correlation=number, **args)

    for step in range(3):
        add("user_annotation", f"ProfilerStep#{step + 3}", 950 + 1000 * step, 1000, 100)
        for layer in range(4):
            start = 1000 + 1000 * step + 200 * layer
            if host:
                add("cpu_op", "aten::linear", start - 42, 8, 100)
            kernel("gemm", start, 120, 7)
            if ranks > 1:
                size = 1024 << layer
                told = {"Collective name": "allreduce", "In msg nelems": size, "Out msg nelems": size}
                told |= {"dtype": "BFloat16", "Group size": ranks, "Process Group Name": "0"}
                kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", start + 120, 40 + 5 * layer, 20, **told)
    header = {"deviceProperties": [{"id": 0, "name": "GPU X"}]}
    header["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": ranks}
    return json.dumps({"schemaVersion": 1, **header, "traceEvents": events})


def files(folder, ranks=1, **options):
    for rank in range(ranks):
        (folder / f"rank{rank}.json").write_text(inference(rank, ranks, **options))
    return [str(folder / f"rank{rank}.json") for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("command", ["explain", "compare", "report"])
def test_inference_is_refused_as_training_in_one_line(tmp_path, command, ranks):
    mine = files(tmp_path, ranks)
    (tmp_path / "other").mkdir()
    words = {
        "explain": mine,
        "compare": [mine[0], files(tmp_path / "other", ranks)[0]],
        "report": ["resnet50-v100", "--cluster", "v100-10gbe", "--workers", str(max(ranks, 2)), "--trace", mine[0]],
    }[command]
    done = invoke([command, *words])
    assert done.exit_code == 1, done.output
    (line,) = [line for line in done.stderr.splitlines() if "warning" not in line]
    assert SAID in line
    assert line.endswith("record steps that call loss.backward()")


def test_the_network_of_inference_is_read(tmp_path):
    """Its all-reduces are times of a network like any; a model that is trained is not in it."""
    mine = files(tmp_path, 2)
    done = invoke(["import", *mine, "-o", str(tmp_path / "cluster.json")])
    assert done.exit_code == 0, done.stderr
    assert "is a trace of inference: only the network is read from it" in done.stderr
    assert "of gradients" not in done.stderr
    (table,) = osf.load_cluster(tmp_path / "cluster.json").tables
    assert (table.workers, table.sizes) == (2, (2048, 4096, 8192, 16384))
    done = invoke(["doctor", mine[0], "--against", "nccl:h100x2", "--json"])
    assert done.exit_code == 0, done.stderr
    done = invoke(["import", *mine, "--kind", "workload"])
    assert (done.exit_code, "--kind workload: " in done.stderr) == (1, True)
    alone = files(tmp_path, 1)
    for words in (["import", *alone], ["doctor", *alone, "--against", "nccl:h100x2"]):
        done = invoke(words)
        assert (done.exit_code, SAID in done.stderr) == (1, True)


@pytest.mark.parametrize("found", ["MmBackward0", "AccumulateGrad", "Optimizer.step", "aten::"])
def test_any_part_of_training_is_training(tmp_path, found):
    """A backward, a gradient, an optimizer's step; and where the host is not on the record, nothing is said."""
    content = json.loads(traces.text(traces.Job()))
    operators = {"ph": "X", "cat": "cpu_op", "name": "aten::linear", "pid": 1, "tid": 100, "ts": 1000, "dur": 1}
    parts = ("Backward", "AccumulateGrad", "Optimizer.step")
    kept = [
        one for one in content["traceEvents"] if not any(part in one["name"] for part in parts) or found in one["name"]
    ]
    content["traceEvents"] = kept if found == "aten::" else [operators, *kept]
    (tmp_path / "rank0.json").write_text(json.dumps(content))
    assert not load_trace([tmp_path / "rank0.json"]).inference
    content["traceEvents"] = [operators, *(one for one in kept if found not in one["name"])]
    (tmp_path / "rank0.json").write_text(json.dumps(content))
    assert load_trace([tmp_path / "rank0.json"]).inference


def test_without_the_host_on_the_record_inference_is_not_told_from_training(tmp_path):
    (mine,) = files(tmp_path, host=False)
    assert not load_trace([Path(mine)]).inference


@pytest.mark.parametrize(
    ("cat", "name"),
    [
        ("cuda_runtime", "cudaGraphLaunch"),
        ("kernel", "void at::native::layer_norm_grad_input_kernel_vectorized<float>"),
        ("kernel", "cudnn::bn_bw_1C11_kernel_new<float>"),
        ("kernel", "multi_tensor_apply_kernel<FusedAdamMathFunctor>"),
        ("kernel", "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel"),
        ("kernel", "sm80_xmma_wgrad_implicit_gemm_tf32f32"),
    ],
)
def test_work_that_no_operator_of_the_host_shows_leaves_it_open(tmp_path, cat, name):
    """Training replayed from a CUDA graph has kernels of backward, and no operators of it."""
    (mine,) = files(tmp_path)
    document = json.loads(Path(mine).read_text())
    times = {"ts": 1500, "dur": 5, "pid": 1, "tid": 7, "args": {"correlation": 999, "stream": 7}}
    document["traceEvents"].append({"ph": "X", "cat": cat, "name": name, **times})
    Path(mine).write_text(json.dumps(document))
    assert not load_trace([Path(mine)]).inference
