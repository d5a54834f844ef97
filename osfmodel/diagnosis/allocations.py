"""Allocations of a memory snapshot: when each was there, and its owner, told from the frames of its stack.

The innermost frame that a rule knows decides. In backward a stack has no frame of Python, as autograd runs in a thread
of its own; an allocation of backward is a gradient if it outlives the record or zero_grad frees it, else scratch. Ones
of an optimizer that it does not free itself are its state.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from osfmodel.engine.strategies.holdings import ACTIVATIONS, BUCKETS, GRADIENTS, STATE, UPDATE, WEIGHTS
from osfmodel.engine.strategies.issued import GATHERED, REDUCED, WHOLE
from osfmodel.entities.snapshot import ALLOCATED, MemorySnapshot, Stack, StackFrame

OTHER, UNKNOWN = "other", "no stack"
BACKWARD = "backward"
RULES = tuple(
    (re.compile(pattern), owner)
    for pattern, owner in (
        (r":(foreach_all_gather_copy_out|(init|alloc)_all_gather_outputs|_alloc_padded_unsharded_flat_param)$", WHOLE),
        (r":\w*all_?gather\w*$|fsdp::all_gather", GATHERED),
        (r":foreach_reduce$|:\w*reduce_scatter\w*$|fsdp::chunk_cat", REDUCED),
        (r"nn/parallel/distributed\.py:(__init__|_ddp_init_helper|_rebuild_buckets)|c10d::Reducer", BUCKETS),
        (r"/param_and_grad_buffer\.py:", BUCKETS),
        (r"optim\w*[/\w]*\.py:(_init_group|__init__|load_state_dict|init_state\w*|_init_state\w*)$", STATE),
        (r"/optim(izers?)?/\w+\.py:|/\w*optimizer\w*\.py:|multi_tensor_appl", UPDATE),
        (
            r"torch/autograd/(__init__|graph)\.py:|autograd::(Engine|Node)|:_?backward$|_aot_autograd/.*backward",
            BACKWARD,
        ),
        (r"/nn/(modules/\w+|parameter)\.py:(__init__|_apply|convert|to|to_empty|reset_parameters|_load\w+)$", WEIGHTS),
        (r"/nn/init\.py:|/_fsdp_param\.py:_init|/modeling_utils\.py:|:set_module_tensor_to_device$", WEIGHTS),
        (
            r"/nn/(modules/\w+|functional)\.py:|:forward$|/utils/checkpoint\.py:|/_inductor/|/_aot_autograd/",
            ACTIVATIONS,
        ),
    )
)
"""Owners by ``file:function`` of a frame, the first that fits."""
LIBRARY = re.compile(
    r"(site|dist)-packages/|/lib/python\d|/torch/(_\w+|nn|optim|autograd|utils|distributed|cuda|fx|functional)\b"
    r"|torchinductor|^(<|\?\?|none$|$)|\.(c|cc|cpp|cu|cuh|h|so)\b"
)
"""Files of frames that are no user's."""
BEFORE = -1
"""Number of the event of allocations that were there before the record."""
ROUND = 512
"""PyTorch rounds sizes to that; a record has those that were asked for."""


class Allocation(NamedTuple):
    """Bytes that were there from one event until another; ``freed`` is the stack of that."""

    since: int
    until: int
    size: int
    stack: Stack
    freed: Stack = ()

    def at(self, moment: int) -> bool:
        """Whether it is there after so many events."""
        return self.since < moment <= self.until


def allocations(snapshot: MemorySnapshot) -> Iterator[Allocation]:
    """Each allocation of a snapshot; ``until`` is the number of events if it is there at the end."""
    there: dict[int, Allocation] = {}
    end = len(snapshot.events)
    for number, event in enumerate(snapshot.events):
        size = -(-event.size // ROUND) * ROUND
        if event.action == "alloc":
            if event.address in there:  # its end was not recorded
                yield there[event.address]._replace(until=number)
            there[event.address] = Allocation(number, end, size, event.stack)
        elif event.action == "free_requested":
            found = there.pop(event.address, Allocation(BEFORE, end, size, ()))
            yield found._replace(until=number, freed=event.stack)
    for block in snapshot.blocks:
        if block.state == ALLOCATED:
            made = there.pop(block.address, Allocation(BEFORE, end, 0, ()))
            yield made._replace(size=block.size, stack=made.stack or block.stack)
    yield from there.values()


@lru_cache(maxsize=2**14)
def _known(frame: StackFrame) -> str | None:
    """The owner, or BACKWARD, that a frame tells."""
    words = f"{frame.file}:{frame.function}"
    return next((owner for pattern, owner in RULES if pattern.search(words)), None)


def owner_of(one: Allocation, end: int, recorded: bool) -> str:
    """The owner of an allocation; ``recorded``: whether stacks are there at all, ``end``: the number of events."""
    told = next(filter(None, map(_known, one.stack)), None)
    if told is None and not one.stack:
        if not recorded or one.since == BEFORE:
            return UNKNOWN
        told = BACKWARD
    kept = one.until == end or any(frame.function == "zero_grad" for frame in one.freed)
    if told == BACKWARD:
        return GRADIENTS if kept else ACTIVATIONS
    if told == REDUCED and kept:
        return GRADIENTS
    if told == UPDATE and (one.until == end or UPDATE not in map(_known, one.freed)):
        return STATE
    return told or OTHER


def user_frame(stack: Stack) -> StackFrame | None:
    """The innermost frame of the user's own code; None without any."""
    return next((frame for frame in stack if not LIBRARY.search(frame.file)), None)
