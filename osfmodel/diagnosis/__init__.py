"""Where the time of a traced step went, what each cause of it costs, and what would help."""

from __future__ import annotations

from osfmodel.diagnosis.causes import CAUSES, verdict
from osfmodel.diagnosis.findings import COMPUTE, Explanation, RankParts, Remedy, StepParts

__all__ = ["CAUSES", "COMPUTE", "Explanation", "RankParts", "Remedy", "StepParts", "verdict"]
