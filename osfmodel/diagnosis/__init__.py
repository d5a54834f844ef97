"""Diagnosis of traced steps: the parts of their time, and the cost of each cause."""

from __future__ import annotations

from osfmodel.diagnosis.causes import CAUSES, verdict
from osfmodel.diagnosis.explanation import COMPUTE, Explanation, RankParts, Remedy, StepParts

__all__ = ["CAUSES", "COMPUTE", "Explanation", "RankParts", "Remedy", "StepParts", "verdict"]
