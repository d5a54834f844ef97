"""Horovod's ranks, naively: each with its message queue and its response cache, cycle by cycle, empty ones included.

Written after horovod 0.28.1, horovod/common (operations.cc: RunLoopOnce; controller.cc: ComputeResponseList,
FuseResponses, IncrementTensorCount; response_cache.cc; group_table.cc), name by name where that helps, and knows
nothing of ``osfmodel.engine.horovod_loop``. All times are rational and absolute.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

Time = Fraction | int


class Tensor(NamedTuple):
    """A tensor of a rank: when it is computed, and when it is submitted unless that is together."""

    name: str
    size: int
    dtype: str
    ready: Time
    submitted: Time


@dataclass(frozen=True)
class Settings:
    """Settings of a job. ``in_step``: whether a tensor is submitted when it is computed, however late that is."""

    threshold: int
    cycle: Time
    negotiation: Time
    miss: Time
    capacity: int
    blocking: bool
    waits: bool
    local_size: int
    latency: Time
    per_byte: Time
    copy: Time
    slowdown: Time
    update: Time
    computed: Time
    in_step: bool
    groups: tuple[tuple[str, ...], ...] = ()
    ranks: int = 2


class ResponseCache:
    """response_cache.cc without erasures: a list from most to least recently used, and a bit for each name."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.names: list[str] = []
        self.name_to_bit: dict[str, int] = {}

    def put(self, name: str) -> None:
        if not self.capacity:
            return
        if name in self.name_to_bit:
            self.names.remove(name)
        elif len(self.names) == self.capacity:
            evicted = self.names.pop()
            self.name_to_bit[name] = self.name_to_bit.pop(evicted)
        else:
            self.name_to_bit[name] = len(self.names)
        self.names.insert(0, name)

    def name_of(self, bit: int) -> str:
        return next(name for name, own in self.name_to_bit.items() if own == bit)

    def get_response(self, bit: int) -> str:
        name = self.name_of(bit)
        self.names.remove(name)
        self.names.insert(0, name)
        return name


@dataclass
class Rank:
    cache: ResponseCache
    message_queue: deque[str] = field(default_factory=deque)


class Iteration(NamedTuple):
    """Names in each batch, when each was performed and how long all took; ``state``: what the next one starts from."""

    batches: tuple[tuple[str, ...], ...]
    releases: tuple[Time, ...]
    time: Time
    state: object


class Job:
    """All ranks in lock-step: a cycle begins on all at once, since each ends with what all have agreed on."""

    def __init__(self, settings: Settings, tensors: Sequence[Tensor]) -> None:
        self.settings, self.tensors = settings, {tensor.name: tensor for tensor in tensors}
        self.ranks = [Rank(ResponseCache(settings.capacity)) for _ in range(settings.ranks)]
        self.message_table: dict[str, int] = {}
        self.group_of = {name: group for group in settings.groups for name in group}
        self.cycle_start: Time = 0
        self.now: Time = 0
        self.stream_free: Time = 0
        self.busy: list[tuple[Time, Time]] = []

    def iteration(self, start: Time) -> Iteration:
        self.busy = []
        waiting = list(self.tensors)
        batches: list[tuple[str, ...]] = []
        releases: list[Time] = []
        last: Time = start
        state: tuple[Time, Time] = (0, 0)
        while len([name for batch in batches for name in batch]) < len(self.tensors):
            self.cycle_start = max(self.cycle_start + self.settings.cycle, self.now)
            self.now = self.cycle_start
            here = self.submit(waiting, start)
            if not here and not self.settings.cycle and not self.agreeing(uncached=False):
                # Cycles that take no time at all: nothing happens until the next tensor is submitted.
                self.cycle_start = self.now = min(start + self.submission(name, start) for name in waiting)
                here = self.submit(waiting, start)
            for name in here:
                waiting.remove(name)
            responses, cost = self.compute_response_list()
            self.now += cost
            for response in responses:
                release, last = self.perform(response, start)
                releases.append(release - start)
                batches.append(tuple(response))
            if responses:
                state = self.cycle_start, self.now
        end = max(last, start + self.clock(self.settings.computed, start)) + self.settings.update
        crowded = len(self.tensors) > self.settings.capacity
        cache = self.ranks[0].cache
        found = (state[0] - end, state[1] - end, crowded and (tuple(cache.names), sorted(cache.name_to_bit.items())))
        return Iteration(tuple(batches), tuple(releases), end - start, found)

    def submit(self, waiting: Sequence[str], start: Time) -> list[str]:
        """Put due tensors into the queues in the order of the hooks, groups with their last one's."""
        due = [name for name in waiting if start + self.submission(name, start) <= self.now]
        due.sort(key=self.hook)
        for rank in self.ranks:
            rank.message_queue.extend(due)
        return due

    def submission(self, name: str, start: Time) -> Time:
        members = self.group_of.get(name, (name,))
        times = [self.tensors[member].submitted for member in members]
        return max(self.clock(time, start) if self.settings.in_step else time for time in times)

    def hook(self, name: str) -> tuple[Time, int]:
        """Hooks are called one after the other, those of the same time in the order of the computation."""
        place = {other: number for number, other in enumerate(self.tensors)}
        return max((self.tensors[member].submitted, place[member]) for member in self.group_of.get(name, (name,)))

    def clock(self, work: Time, start: Time) -> Time:
        """Time at which so much is computed, at 1 / (1 + slowdown) of the speed beside a collective."""
        now: Time = 0
        for begin, end in self.busy:
            if work <= begin - start - now:
                break
            work -= begin - start - now
            slowed = (end - begin) / (1 + Fraction(self.settings.slowdown))
            if work <= slowed:
                return begin - start + work * (1 + Fraction(self.settings.slowdown))
            work, now = work - slowed, end - start
        return now + work

    def compute_response_list(self) -> tuple[list[list[str]], Time]:
        """The fused responses of this cycle, and what agreeing on them took."""
        settings = self.settings
        queues = []
        hits_of_all: list[set[int]] = []
        uncached = False
        for rank in self.ranks:
            messages, rank.message_queue = rank.message_queue, deque()
            hits = {rank.cache.name_to_bit[name] for name in messages if name in rank.cache.name_to_bit}
            uncached |= any(name not in rank.cache.name_to_bit for name in messages)
            hits_of_all.append(hits)
            queues.append(messages)
        hits = sorted(set.intersection(*hits_of_all))
        if settings.capacity and not uncached:
            return (self.from_cache(hits) if hits else []), self.agreeing(uncached=False)
        ready_to_reduce = []
        for rank, messages in zip(self.ranks, queues, strict=True):
            for name in messages:
                if name in rank.cache.name_to_bit:
                    if rank.cache.name_to_bit[name] not in hits:
                        rank.message_queue.append(name)
                    continue
                self.message_table[name] = self.message_table.get(name, 0) + 1
                if self.message_table[name] == len(self.ranks):
                    ready_to_reduce.append(name)
        fused = self.from_coordinator(hits, ready_to_reduce)
        for response in fused:
            for name in response:
                for rank in self.ranks:
                    rank.cache.put(name)
        return fused, self.agreeing(uncached=True)

    def agreeing(self, uncached: bool) -> Time:
        """Seconds of agreement in a cycle: a bit vector with a cache, messages for tensors that are not in it."""
        bits = self.settings.negotiation if self.settings.capacity else 0
        return bits + (self.settings.miss if uncached or not self.settings.capacity else 0)

    def from_cache(self, hits: list[int]) -> list[list[str]]:
        """The fast path: by bit, or group by group in the order of their first bits."""
        fused: list[list[str]] = []
        cache = self.ranks[0].cache
        for group in dict.fromkeys(self.group_of[name] for name in map(cache.name_of, hits) if name in self.group_of):
            for rank in self.ranks:
                for name in group:
                    rank.cache.get_response(rank.cache.name_to_bit[name])
            fused += self.fuse_responses(group)
            hits = [bit for bit in hits if cache.name_of(bit) not in group]
        names = [[rank.cache.get_response(bit) for bit in hits] for rank in self.ranks]
        return fused + self.fuse_responses(names[0])

    def from_coordinator(self, hits: list[int], ready_to_reduce: list[str]) -> list[list[str]]:
        """The slow path of rank zero: groups, then what is cached by bit, then the rest in order of completion."""
        fused: list[list[str]] = []
        cache = self.ranks[0].cache
        cached = [cache.name_of(bit) for bit in hits]
        for group in dict.fromkeys(self.group_of[n] for n in [*ready_to_reduce, *cached] if n in self.group_of):
            fused += self.fuse_responses(group)
            for name in group:
                self.message_table.pop(name, None)
        alone = [name for name in [*cached, *ready_to_reduce] if name not in self.group_of]
        for name in alone:
            self.message_table.pop(name, None)
        return fused + self.fuse_responses(alone)

    def padded(self, name: str) -> int:
        size = self.tensors[name].size
        return size if self.settings.blocking else 16 * ((size + 15) // 16)

    def fuse_responses(self, names: Sequence[str]) -> list[list[str]]:
        div = self.settings.local_size * 8 * 64
        threshold = (self.settings.threshold + div - 1) // div * div
        responses, fused = deque(names), []
        while responses:
            response = [responses.popleft()]
            dtype = self.tensors[response[0]].dtype
            tensor_size, skipped_size = self.padded(response[0]), 0
            skipped: deque[str] = deque()
            while responses:
                new = self.padded(responses[0])
                if self.tensors[responses[0]].dtype == dtype and tensor_size + new <= threshold:
                    tensor_size += new
                    response.append(responses.popleft())
                    continue
                skipped_size += new
                if tensor_size + skipped_size > threshold:
                    break
                skipped.append(responses.popleft())
            while skipped:
                responses.appendleft(skipped.pop())
            fused.append(response)
        return fused

    def perform(self, response: Sequence[str], start: Time) -> tuple[Time, Time]:
        """Time at which the loop performs the operation, and the end of the collective."""
        settings = self.settings
        computed = start + max(self.clock(self.tensors[name].ready, start) for name in response)
        if settings.blocking or settings.waits:
            self.now = max(self.now, computed)  # WaitForData
        release = self.now
        size = sum(self.tensors[name].size for name in response)
        begin = max(self.stream_free, self.now, computed)
        end = begin + settings.latency + settings.per_byte * size
        if len(response) > 1:
            end += settings.copy * size
        self.stream_free = end
        self.busy.append((begin, end))
        if settings.blocking:
            self.now = end
        return release, end


def follow_job(settings: Settings, tensors: Sequence[Tensor], iterations: int) -> list[Iteration]:
    job, start, found = Job(settings, tensors), Fraction(0), []
    for _ in range(iterations):
        found.append(job.iteration(start))
        start += found[-1].time
    return found


def chosen(found: Sequence[Iteration]) -> Iteration:
    """The first that starts as it ends, or else the middle one by time of the last two thirds."""
    for before, after in pairwise(found):
        if before.state == after.state:
            return after
    settled = sorted(found[len(found) // 3 :], key=lambda one: one.time)
    return settled[len(settled) // 2]
