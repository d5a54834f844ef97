"""``osf bench`` before any rank is met: every wrong use is one line and exit 2."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from osfmodel.cli import main
from osfmodel.errors import JobError
from osfmodel.runtime.job import job_error

RANK = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "LOCAL_RANK": "0"}


def run(*arguments, **environment):
    unset = dict.fromkeys((*RANK, "LOCAL_WORLD_SIZE"))
    return CliRunner(env={**unset, **environment}).invoke(main, ["bench", *arguments])


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        ((), {}, "start it as torchrun --nproc-per-node 2 -m osfmodel bench"),
        ((), {"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR, MASTER_PORT not set"),
        ((), {**RANK, "WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'"),
        ((), {**RANK, "RANK": "2"}, "RANK 2 does not exist among 2 ranks"),
        ((), {**RANK, "WORLD_SIZE": "1"}, "needs 2 ranks or more: there is 1"),
        (("-o", "cluster.yaml"), RANK, "name it .json"),
        (("--min-size", "1MiB", "--max-size", "1KiB"), RANK, "the smaller one first"),
        (("--max-size", "64"), RANK, "has no unit"),
        (("--in-flight", "1,two"), RANK, "counts from 1 to 64"),
        (("--in-flight", "0"), RANK, "counts from 1 to 64"),
        (("--timeout", "10ms"), RANK, "a second or more"),
        (("--for", "nonsense"), RANK, "no workload named 'nonsense'"),
        (("--backend", "mpi"), RANK, "'mpi' is not one of"),
    ],
)
def test_wrong_uses(arguments, environment, message):
    result = run(*arguments, **environment)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not result.stdout


def test_merging_into_what_takes_no_tables_is_refused_before_measuring(tmp_path):
    (tmp_path / "ring.json").write_text(
        '{"schema_version": 1, "name": "r", "cost_model": "ring", '
        '"between_nodes": {"latency_s": 1, "seconds_per_byte": 1}}'
    )
    result = run("--merge", str(tmp_path / "ring.json"), **RANK)
    assert result.exit_code == 1
    assert "only tabulated clusters take further tables" in result.stderr
    assert "cannot be read" in run("--merge", str(tmp_path / "none.json"), **RANK).stderr


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("The server socket has failed ... code: -98, name: EADDRINUSE", "port 29500 is in use"),
        ("[/a/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:1", "another rank is gone"),
        (
            "Timed out after 11 seconds waiting for clients. 1/2 clients joined.",
            "not all of the 2 ranks answered within 3 s",
        ),
        ("wait timeout after 3000ms, keys: /default_pg/0", "not all of the 2 ranks answered"),
        ("something\nelse", "rank 0: something else"),
    ],
)
def test_torch_in_one_line(text, meaning):
    error = job_error(RuntimeError(text), RANK, 3)
    assert isinstance(error, JobError)
    assert meaning in str(error)
    assert "\n" not in str(error)
    assert "pair.cc" not in str(error)
