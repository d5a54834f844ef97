"""FSDP2: a model under ``fully_shard``, by the rules of a plan."""
