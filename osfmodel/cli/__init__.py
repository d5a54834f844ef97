"""The ``osf`` command: one module per verb, thin. Data on stdout; progress, warnings and errors on stderr.

To add a command; the tests say which of these is missing:

* a module with a click command; what it shares with others is in ``subject``, ``options`` and ``app``
* a line in COMMANDS of ``osfmodel/cli/app.py``, and one in the help text of ``main`` there
* a line in FLOORS of ``tests/test_architecture.py``, and one more for each ``..._output`` and ``..._screen`` of its own
* its page: ``python -m tests.refresh_docs`` writes it, the navigation in ``mkdocs.yml`` lists it
"""

from __future__ import annotations

from osfmodel.cli.app import main, parse_workers

__all__ = ["main", "parse_workers"]
