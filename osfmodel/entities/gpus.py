"""Generations of GPUs, by the names that profilers, data sheets and people give them."""

from __future__ import annotations

import re
from collections.abc import Mapping

GENERATIONS: Mapping[str, str] = {
    "kepler": r"k[248]0",
    "pascal": r"p100|p40|p4|1080( ?ti)?",
    "volta": r"v100|titan v",
    "turing": r"t4|20[678]0( ?ti| super)?|rtx [68]000",
    "ampere": r"a100|a10g?|a16|a30|a40|a[456]000|a800|30[6789]0( ?ti)?",
    "ada": r"l4|l40s?|40[6789]0( ?ti)?|6000 ada",
    "hopper": r"h100|h200|h800|h20|gh200",
    "blackwell": r"b[23]00|gb[23]00|rtx pro [456]000|50[789]0",
    "cdna": r"mi[0-9]{2,3}[ax]?",
}
"""Generation -> pattern of its GPUs' names, in lower case."""


def generation_of(gpu: str) -> str:
    """Generation of the GPU called ``gpu``, such as "NVIDIA A100-SXM4-80GB"; "" for one that is not known."""
    name = re.sub(r"[-_/]", " ", gpu.lower())
    found = [
        key for key, pattern in GENERATIONS.items() if re.search(rf"(?<![0-9a-z])(rtx)?({pattern})(?![0-9a-z])", name)
    ]
    return found[-1] if found else ""
