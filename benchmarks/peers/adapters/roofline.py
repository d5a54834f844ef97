"""Three lines: 6 operations for each parameter and token, over half of the GPUs' peak; 16 bytes for each parameter."""

from rows import PeerRow

from adapters import Answer, Peer

HALF = 0.5
"""Of the peak, which large models usually reach."""


def _ask(row: PeerRow) -> Answer:
    operations = 6 * row.model.active * row.global_batch * row.tokens
    shards = row.groups.tensor * row.groups.pipeline * (row.replicas if row.zero == 3 else 1)
    return Answer(operations / (HALF * row.peak * row.stated.gpus), 16 * row.model.parameters / shards)


PEER = Peer(lambda: "-", _ask, "6 PD / (half of peak); 16 bytes a parameter", "parameters, gradients, optimizer")
