"""accelerate estimate-memory (PyPI): estimate_training_usage of a model's bytes in float32, with Adam in bfloat16.

The command loads a model from the hub to count its bytes; here they are those that osfmodel counts.
"""

from rows import PeerRow

from adapters import Answer, Peer, installed, need


def _open() -> str:
    found = installed("accelerate")
    import accelerate.commands.estimate  # noqa: F401

    return found


def _ask(row: PeerRow) -> Answer:
    from accelerate.commands.estimate import estimate_training_usage

    need(row.groups.gpus == 1 and row.zero == 0, "it knows one GPU, whose states are not sharded")
    found = estimate_training_usage(4 * row.model.parameters, "bfloat16")
    return Answer(memory=max(found.values()))


PEER = Peer(_open, _ask, "`estimate-memory`, Adam, bfloat16", "the largest of its four figures, for a batch of 1")
