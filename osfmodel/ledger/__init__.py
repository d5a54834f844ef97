"""The ledger: LEDGER maps each source of measured runs to the recipe that holds predictions against it.

To add a source: its runs as ``profiles/measurements/NAME.json``, a module with ``judge(measurements)``, and one line
here. The tests run over the table.
"""

from __future__ import annotations

from collections.abc import Mapping

from osfmodel.ledger import bcaffe, ddl_benchmarks, papers
from osfmodel.ledger.recipe import Recipe, Row, Verdict

__all__ = ["LEDGER", "Recipe", "Row", "Verdict"]

LEDGER: Mapping[str, Recipe] = {
    "bcaffe": Recipe(bcaffe.judge, 0.05, "GoogLeNet on K80 nodes over 10 GbE, with the runs' own all-reduce times"),
    "ddl-benchmarks": Recipe(
        ddl_benchmarks.judge, 0.025, "MG-WFBP from one-shot and per-tensor runs, ResNet-50 and BERT, 2 networks"
    ),
    "papers": Recipe(papers.judge, 0.10, "speed-ups as published: MG-WFBP on 16 and ASC-WFBP on 32 GPUs, by replay"),
}
