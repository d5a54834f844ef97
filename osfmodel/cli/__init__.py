"""The osf command: one module per verb; parse, call one function, hand the result to show.

To add one: docs/how-to/add-a-command.md. This module imports next to nothing: the commands are loaded inside
:func:`run`, so that Ctrl-C shows no traceback, however early it comes.
"""

from __future__ import annotations

import os
from importlib import import_module

TYPE_CHECKING = False  # that of typing takes 20 ms to import
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from osfmodel.cli.app import main as main

__all__ = ["main", "run"]
STDERR = 2
INTERRUPTED = 130


def run() -> None:
    """Run the ``osf`` command as a process. Ctrl-C ends it with one line and 130, also while modules are loaded."""
    try:
        import signal

        _on_interrupt(_stop)
        from osfmodel.cli import app

        _on_interrupt(signal.default_int_handler)
        app.main(prog_name="osf")
    except KeyboardInterrupt:
        _stop()
    finally:
        _on_interrupt(_stop)


def _on_interrupt(handler: Any) -> None:
    """Handle Ctrl-C with ``handler``, except in a background job of a shell, which ignores it."""
    import signal

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler)


def _stop(*_: object) -> NoReturn:
    """End the process at once: there is nothing to clean up before a command begins and after it has ended."""
    try:
        os.write(STDERR, b"osf: interrupted\n")
    finally:
        os._exit(INTERRUPTED)


def __getattr__(name: str) -> Any:
    """``main``, loaded when asked for. Raises AttributeError for any other name."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("osfmodel.cli.app"), name)
