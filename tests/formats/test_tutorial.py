"""The tutorial's way from a log to a prediction, executed as it stands there."""

from __future__ import annotations

import shlex

from click.testing import CliRunner

from osfmodel.cli import main
from osfmodel.formats import csv_layers, csv_table
from tests.conftest import ROOT
from tests.test_docs import blocks, commands, matches

PAGE = ROOT / "docs/tutorial.md"


def test_from_my_log_to_a_prediction_for_my_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nccl-tests.log").write_text(blocks(PAGE, "text")[0])
    (tmp_path / "layers.csv").write_text(blocks(PAGE, "csv")[0])
    seen = []
    for block in blocks(PAGE, "shell"):
        for command, expected in commands(block):
            seen.append(shlex.split(command)[1])
            result = CliRunner().invoke(main, shlex.split(command)[1:])
            assert result.exit_code == 0, result.output
            assert matches(expected, result.output), f"$ {command}\n{result.output}"
            assert "warning: nccl-tests" not in result.stderr
    assert seen == ["import", "import", "predict", "tune"]


def test_the_reference_names_every_column():
    text = (ROOT / "docs/reference/formats.md").read_text()
    names = [*csv_table.SIZES, *csv_table.WORKERS, *csv_table.TIMES, *csv_layers.NAMES, *csv_layers.BYTES]
    assert [name for name in names if f"`{name}`" not in text] == []
