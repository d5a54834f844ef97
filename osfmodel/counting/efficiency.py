"""The part of a GPU's data sheet that training reaches, by kind of work, as learned from published runs.

``python profiles/make_efficiency.py profiles`` makes the file from the bundled measurements.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from osfmodel.entities.checks import require_positive
from osfmodel.entities.display import brief
from osfmodel.entities.errors import DataError
from osfmodel.entities.files.profiles import bundled_file
from osfmodel.entities.gpus import generation_of

FILE = "efficiency.json"


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Parts of a data sheet's rates, each above 0.

    matrix:    of matrix products, besides the time to move their matrices
    attention: of products inside attention, of the rate of matrix products
    memory:    of the bandwidth of memory, for all that moves elements, inputs and outputs of products among them
    doubt:     relative half width that covered 90 % of step times of sources that had no part in it
    """

    matrix: float
    attention: float
    memory: float
    doubt: float
    __repr__ = brief

    def __post_init__(self) -> None:
        for name in ("matrix", "attention", "memory"):
            require_positive(getattr(self, name), f"{name} of an efficiency")


def efficiency_of(gpu: str) -> Efficiency:
    """The efficiency that runs on GPUs of this generation reached; that of all others where there were none."""
    learned = _learned()
    return learned.get(generation_of(gpu)) or learned["any"]


@cache
def _learned() -> Mapping[str, Efficiency]:
    """Efficiencies by generation of GPUs, "any" among them. Raises DataError for a damaged file."""
    path = bundled_file(FILE)
    try:
        rows = json.loads(path.read_bytes())["efficiencies"]
        return {name: Efficiency(**row) for name, row in rows.items()}
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path} is damaged ({error}): install osfmodel again") from None
