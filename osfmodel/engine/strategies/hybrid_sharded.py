"""Parameters sharded inside each of several replicas (HSDP): the shards of gradients are all-reduced between them."""

from __future__ import annotations

from osfmodel.engine.strategies.fully_sharded import ShardedHoldings, ShardedStep
from osfmodel.engine.strategies.lowering import Strategy

STRATEGY = Strategy(
    ShardedStep.lower,
    "sharded as with fully-sharded inside each replica, shards all-reduced between replicas",
    ShardedHoldings,
    ShardedStep.lower_apart,
)
