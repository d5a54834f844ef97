"""What a schedule may do: the rules of the game under which plans are compared and bounds hold."""

from __future__ import annotations

from dataclasses import dataclass

from osfmodel.errors import PlanError


@dataclass(frozen=True, slots=True)
class Objective:
    """channels:        collectives in flight at once
    forward_overlap: whether the next forward may start before all communication has ended
    split:           whether each all-reduce is a reduce-scatter in backward and an all-gather before the forward
    """

    channels: int = 1
    forward_overlap: bool = False
    split: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.channels, bool) or not isinstance(self.channels, int) or self.channels < 1:
            raise PlanError(f"the plan has {self.channels!r} channels: it needs a whole number, 1 or more")

    def permits(self, other: Objective) -> bool:
        """Whether a plan under ``other`` keeps these rules: they say what a schedule may do, not what it must."""
        return (
            other.channels <= self.channels
            and other.forward_overlap <= self.forward_overlap
            and other.split <= self.split
        )

    @property
    def collectives(self) -> tuple[str, ...]:
        """What carries a bucket, one after the other."""
        return ("reduce_scatter", "all_gather") if self.split else ("all_reduce",)

    @property
    def plain(self) -> bool:
        """One collective at a time and a barrier before the update: what stock frameworks do."""
        return self == PLAIN


PLAIN = Objective()
