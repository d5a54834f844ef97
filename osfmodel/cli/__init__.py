"""The osf command: one module per verb; parse, call one function, hand the result to show.

To add one: docs/how-to/add-a-command.md.
"""

from __future__ import annotations

from osfmodel.cli.app import main, parse_workers

__all__ = ["main", "parse_workers"]
