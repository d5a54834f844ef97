"""Commands of osf in this process."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

from click.testing import CliRunner, Result

from osfmodel.cli import main


def invoke(words: str | Iterable[object], **options: Any) -> Result:
    """Run ``osf`` with these words, or a line of them; ``options`` are those of ``CliRunner.invoke``."""
    given = shlex.split(words) if isinstance(words, str) else [str(word) for word in words]
    return CliRunner().invoke(main, given, **options)
