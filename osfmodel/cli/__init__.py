"""The ``osf`` command: one module per verb, thin. Data on stdout; progress, warnings and errors on stderr.

To add a command: a module with a click command, and a line in COMMANDS of ``osfmodel/cli/app.py``.
"""

from __future__ import annotations

from osfmodel.cli.app import main, parse_workers

__all__ = ["main", "parse_workers"]
