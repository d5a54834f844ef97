"""What charts on a terminal share."""

from __future__ import annotations

from typing import Any

LEAST, MOST = 12, 160
"""Columns of a chart."""
HEIGHT = 9
"""Rows of a curve."""


def chart_width(console: Any, margin: int) -> int:
    """Columns beside a margin."""
    return int(min(max(console.width - margin - 1, LEAST), MOST))
