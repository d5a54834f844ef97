"""Further lines for a tuned plan besides the framework's settings: SNIPPETS maps a name to its Snippet.

To add one: a Snippet of a function (Tuning) -> text in a module here, and one line in the table. It raises UsageError
with the reason if it does not apply to a tuning. ``osf tune --lines NAME`` prints it; tests/conformance runs over
the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from osfmodel.entities.lookup import LateTable

if TYPE_CHECKING:
    from osfmodel.planning.tuning.launch.snippet import Snippet


SNIPPETS: LateTable[Snippet] = LateTable(
    {
        "torchrun": "planning.tuning.launch.torchrun:TORCHRUN",
        "slurm": "planning.tuning.launch.torchrun:SLURM",
        "nccl-tuner": "planning.tuning.launch.nccl_tuner:NCCL_TUNER",
    }
)
