"""The ``osf`` command: one module per verb, thin. Data on stdout; progress, warnings and errors on stderr.

To add a command: a module that decorates a function with ``@main.command``, and its name in the import below.
"""

from __future__ import annotations

from osfmodel.cli import importing, listing, predict, tune
from osfmodel.cli.app import main, parse_workers

__all__ = ["importing", "listing", "main", "parse_workers", "predict", "tune"]
