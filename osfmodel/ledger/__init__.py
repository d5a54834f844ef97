"""The ledger: LEDGER maps each source of measured runs to the recipe that holds predictions against it.

To add a source: its runs as ``profiles/measurements/NAME.json``, a module with ``judge(measurements)``, and one line
here. The tests run over the table.
"""

from __future__ import annotations

from collections.abc import Mapping

from osfmodel.ledger.recipe import Recipe, Row, Verdict

__all__ = ["LEDGER", "Recipe", "Row", "Verdict"]

LEDGER: Mapping[str, Recipe] = {}
