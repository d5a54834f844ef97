"""The columns of strategies that are compared: DDP, ZeRO, FSDP2 and HSDP."""

from __future__ import annotations

from typing import NamedTuple

from osfmodel.entities.display import show_bytes, show_predicted_time, show_share
from osfmodel.planning.scaling.strategies import StrategyChoice, StrategyRow
from osfmodel.show.tables import Column, column
from osfmodel.show.tables.plans import band_text, band_value, half_width

FITS_WORDS = {True: "yes", False: "no"}
"""Words for people on what fits."""


class ChoiceRow(NamedTuple):
    """A strategy, and the choice that it is part of."""

    choice: StrategyChoice
    row: StrategyRow


def choice_rows(choice: StrategyChoice) -> list[ChoiceRow]:
    """A row for each strategy."""
    return [ChoiceRow(choice, row) for row in choice.rows]


STRATEGY: tuple[Column[ChoiceRow], ...] = (
    column("plan", "strategy", lambda one: one.row.name),
    column("iteration_time_s", "iteration", lambda one: one.row.time, show_predicted_time),
    column(
        "against_base",
        "against",
        lambda one: one.choice.against(one.row),
        lambda part: show_share(round(part, 4) + 0.0, "+"),
    ),
    Column(
        "error_band",
        "error band",
        lambda one: band_value(one.row.prediction.band),
        lambda one: band_text(one.row.prediction.band) or "none",
        flat=half_width,
    ),
    column("peak_memory_bytes", "memory", lambda one: None if one.row.peak is None else one.row.peak.bytes, show_bytes),
    column("fits", "fits", lambda one: one.row.fits, FITS_WORDS.__getitem__),
)
"""Columns of a strategy at one worker count."""
