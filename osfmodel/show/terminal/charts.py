"""Sizes of charts on a terminal."""

from __future__ import annotations

from typing import Any

LEAST, MOST = 12, 160
"""Minimum and maximum columns of a chart."""
HEIGHT = 9
"""Rows of a curve."""


def chart_width(console: Any, margin: int) -> int:
    """Columns for a chart beside a margin."""
    return int(min(max(console.width - margin - 1, LEAST), MOST))
