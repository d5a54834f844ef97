"""Other lines for a tuned plan than those of its framework: SNIPPETS maps a name to its Snippet.

To add one: a function (Tuning) -> text in a module here, and one line in the table. It raises UsageError, saying why,
where it has nothing to say of this tuning. ``osf tune --lines NAME`` prints it; tests/conformance runs over the
table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from osfmodel.planning.launch import nccl_tuner, torchrun
from osfmodel.planning.results import Tuning

__all__ = ["SNIPPETS", "Snippet"]


class Snippet(NamedTuple):
    """meaning: what it is for, in half a line; write: (tuning) -> the whole file."""

    meaning: str
    write: Callable[[Tuning], str]


SNIPPETS: Mapping[str, Snippet] = {
    "torchrun": Snippet("the command that starts the workers on each node", torchrun.torchrun),
    "slurm": Snippet("a batch script for sbatch that starts them", torchrun.slurm),
    "nccl-tuner": Snippet("NCCL's algorithm and protocol for the messages of the plan", nccl_tuner.write),
}
