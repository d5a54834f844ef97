"""Where the time of a traced step went, what each cause of it costs, and what would help."""

from __future__ import annotations

from osfmodel.diagnosis.causes import CAUSES
from osfmodel.diagnosis.findings import Explanation, RankParts, Remedy, StepParts
from osfmodel.diagnosis.words import verdict

__all__ = ["CAUSES", "Explanation", "RankParts", "Remedy", "StepParts", "verdict"]
