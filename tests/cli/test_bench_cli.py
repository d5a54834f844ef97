"""``osf bench`` before any rank is met: every wrong use is one line and exit 2."""

from __future__ import annotations

import io
import json
import math
import sys
from itertools import product

import click
import pytest
from click.testing import CliRunner

import osfmodel as osf
from osfmodel.cli import main
from osfmodel.cli.app import teller
from osfmodel.counting.kernels import kernels_in, product_work
from osfmodel.entities.errors import UsageError
from osfmodel.runtime import bench

RANK = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "LOCAL_RANK": "0"}


def run(*arguments, **environment):
    unset = dict.fromkeys((*RANK, "LOCAL_WORLD_SIZE"))
    return CliRunner(env={**unset, **environment}).invoke(main, ["bench", *arguments])


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        ((), {}, "start this under torchrun, e.g. torchrun --nproc-per-node 2 -m osfmodel bench"),
        ((), {"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR, MASTER_PORT not set"),
        ((), {**RANK, "WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'"),
        ((), {**RANK, "LOCAL_WORLD_SIZE": "few"}, "LOCAL_WORLD_SIZE is 'few'"),
        ((), {**RANK, "RANK": "2"}, "RANK is 2 and WORLD_SIZE 2: ranks go from 0"),
        ((), {**RANK, "WORLD_SIZE": "1"}, "needs at least 2 ranks, WORLD_SIZE is 1"),
        (("-o", "cluster.yaml"), RANK, "name it .json"),
        (("--min-size", "1MiB", "--max-size", "1KiB"), RANK, "the smaller one first"),
        (("--max-size", "64"), RANK, "has no unit"),
        (("--in-flight", "1,two"), RANK, "counts from 1 to 64"),
        (("--in-flight", "0"), RANK, "counts from 1 to 64"),
        (("--quick", "--compute", "none"), RANK, "leave --in-flight, --collective and --compute out"),
        (("--quick", "--in-flight", "1"), RANK, "leave --in-flight, --collective and --compute out"),
        (("--timeout", "10ms"), RANK, "a second or more"),
        (("--seconds", "5"), RANK, "--seconds works only with --kernels"),
        (("--kernels", "--quick"), {}, "--quick does not work with --kernels: kernels are measured in one process"),
        (("--kernels", "--merge", "c.json"), {}, "--merge does not work with --kernels"),
        (("--kernels", "--backend", "gloo"), {}, "--backend does not work with --kernels"),
        (("--kernels", "--seconds", "0"), {}, "not in the range"),
        (("--kernels", "-o", "gpu.yaml"), {}, "name it .json"),
        (("--kernels", "-o", "no/gpu.json"), {}, "there is no folder no"),
        (("--kernels",), RANK, "start it without torchrun"),
        (("--for", "nonsense"), RANK, "no workload named 'nonsense'"),
        (("--backend", "mpi"), RANK, "'mpi' is not one of"),
        (("--collective", "all_gather,reduce_scater"), RANK, "'reduce_scater' is not known: did you mean"),
    ],
)
def test_wrong_uses(arguments, environment, message):
    result = run(*arguments, **environment)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not result.stdout


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        ([], ("all_reduce", "reduce_scatter", "all_gather")),
        (["--collective", "all_reduce"], ("all_reduce",)),
        (["--quick"], ("all_reduce",)),
        (["--collective", "all_gather, Reduce_Scatter"], ("all_reduce", "reduce_scatter", "all_gather")),
        (["--collective", "all_gather", "--collective", "all_reduce"], ("all_reduce", "all_gather")),
    ],
)
def test_collectives_are_measured_beside_all_reduces(monkeypatch, words, chosen):
    asked = []

    def measured(place, limit, work):
        asked.append(work.args[0].request.collectives)
        raise UsageError("enough")

    pytest.importorskip("torch", reason="torch is not installed: pip install torch")
    monkeypatch.setattr("osfmodel.cli.bench.together", measured)
    assert "enough" in run(*words, **RANK).stderr
    assert asked == [chosen]


@pytest.mark.parametrize("words", [["bench"], ["run", "googlenet-k80", "--plan", "ddp"]])
def test_what_could_not_be_written_is_refused_before_measuring(tmp_path, words):
    (tmp_path / "folder.json").mkdir()
    for output, message in (("no/c.json", f"there is no folder {tmp_path}/no"), ("folder.json", "is a folder")):
        result = CliRunner(env=RANK).invoke(main, [*words, "-o", str(tmp_path / output)])
        assert result.exit_code == 2
        assert message in result.stderr
        assert result.stderr.count("\n") == 1


def test_torchrun_passes_every_option_on():
    """torchrun refuses options that could abbreviate several of its own, even behind the command."""
    torchrun = pytest.importorskip("torch.distributed.run", reason="torch is not installed: pip install torch")
    parser = torchrun.get_args_parser()
    context = click.Context(main)
    for name in ("bench", "run", "tune"):
        command = main.get_command(context, name)
        options = [option for param in command.params if isinstance(param, click.Option) for option in param.opts]
        assert len(options) > 8
        for option in options:
            words = [name, option]
            assert parser.parse_args(["-m", "osfmodel", *words]).training_script_args == words


def test_progress_is_printed_on_terminals_only(monkeypatch, capsys):
    """On a terminal, of the rank that speaks; a process may have no stderr at all."""
    terminal = io.StringIO()
    for terminal.isatty, speaks in ((lambda: False, True), (lambda: True, False), (lambda: True, True)):
        monkeypatch.setattr(sys, "stderr", terminal)
        teller(speaks)("half way")
    assert terminal.getvalue() == "osf: half way\n"
    monkeypatch.setattr(sys, "stderr", None)
    teller()("half way")


def test_a_bench_says_how_far_it_is():
    told = []
    tell = bench._numbered(told.append, 2)
    tell("small")
    tell("large")
    assert told == ["1 of 2: small", "2 of 2: large"]


def test_merging_into_what_takes_no_tables_is_refused_before_measuring(tmp_path):
    (tmp_path / "ring.json").write_text(
        '{"schema_version": 1, "name": "r", "cost_model": "ring", '
        '"between_nodes": {"latency_s": 1, "seconds_per_byte": 1}}'
    )
    result = run("--merge", str(tmp_path / "ring.json"), **RANK)
    assert result.exit_code == 1
    assert "only tabulated clusters take further tables" in result.stderr
    assert "cannot be read" in run("--merge", str(tmp_path / "none.json"), **RANK).stderr


def test_kernels_of_this_machine_are_measured_and_words_use_them(tmp_path):
    """On the CPU, in a short time: what was measured is in the table, and all sizes have a time that words take."""
    pytest.importorskip("torch", reason="torch is not installed: pip install torch")
    path = tmp_path / "mine.json"
    result = run("--kernels", "--seconds", "3", "-o", str(path), CUDA_VISIBLE_DEVICES="")
    assert result.exit_code == 0, result.output
    assert f"osf: wrote {path}: CPU " in result.stderr
    assert not result.stdout
    said, kernels = json.loads(path.read_text()), kernels_in(path)
    gpu = said["gpu"]
    assert set(gpu["operations_per_s"]) == set(said["products"]) >= {"float32"}
    figures = [*gpu["operations_per_s"].values(), gpu["bytes_per_s"], gpu["launch_s"], gpu["host_launch_s"]]
    assert min(figures) > 0
    assert said["source"].startswith("osf bench --kernels on 20")
    assert "torch" in said["source"]
    for dtype, own in said["products"].items():
        for place, (rows, columns, inner) in enumerate(product(*own["nodes"])):
            operations, moved = product_work(rows, inner, columns, dtype)
            for operand, values in enumerate((own["values"], *own["gradients"])):
                law = kernels.law(operations, moved, dtype) * math.exp(values[place] / 100)
                found = kernels.product(rows, inner, columns, dtype, operand)
                assert found == pytest.approx(max(law, operations / gpu["operations_per_s"][dtype]))
    times = [osf.load_workload(f"gpt2:{path},fp32,seq256,batch{batch}").compute_time for batch in (1, 8, 64)]
    assert 0 < times[0] < times[1] < times[2]
    assert times[0] != osf.load_workload("gpt2:h100,fp32,seq256,batch1").compute_time
