"""Replays of messages of several process groups: closed forms, and a network that moves in small steps of time."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osfmodel.diagnosis.explain_trace import explain_trace
from osfmodel.diagnosis.scene import RankLane, Scene, SceneMessage
from osfmodel.entities.trace import Collective, RankTrace, Step, Trace
from osfmodel.formats.traces.network import wire_times
from tests.draws import examples
from tests.jobs import BESIDE, HEALTHY, trace_of


def lane(ready, waits, work=10.0):
    """A rank that starts at 0; ``ready`` by name, ``waits`` as (position, name)."""
    return RankLane(
        0.0, work, {(name,): time for name, time in ready.items()}, {}, tuple((at, (k,)) for at, k in waits)
    )


def message(name, seconds, group):
    return SceneMessage((name,), seconds, group)


def ends(scene, name):
    """When a message ends: of a rank that waits for it once all are ready, and ends then."""
    late = max(time for one in scene.lanes for time in one.ready.values()) + 0.5
    lanes = tuple(replace(one, waits=((late, (name,)),), work=late) for one in scene.lanes)
    return replace(scene, lanes=lanes).duration


def test_two_groups_share_the_network_evenly():
    """From 0 on alone, from 2 on together: 3 seconds of b take 6, and a has 1 of its 6 left then."""
    scene = Scene((lane({"a": 0.0, "b": 2.0}, []),), (message("a", 6.0, "x"), message("b", 3.0, "y")))
    assert (ends(scene, "a"), ends(scene, "b")) == (9.0, 8.0)
    own = replace(scene, shared=False)
    assert (ends(own, "a"), ends(own, "b")) == (6.0, 5.0)


def test_one_group_sends_one_after_the_other():
    one = Scene((lane({"a": 0.0, "b": 2.0}, []),), (message("a", 6.0, "x"), message("b", 3.0, "x")))
    for scene in (one, replace(one, shared=False)):
        assert (ends(scene, "a"), ends(scene, "b")) == (6.0, 9.0)
    apart = replace(one, apart=frozenset({("b",)}))
    assert (ends(apart, "a"), ends(apart, "b")) == (9.0, 8.0)
    assert ends(replace(apart, shared=False), "a") == 9.0  # a second communicator is on the same network


def test_several_of_a_group_share_its_part():
    """Two of x were in flight with one of y, which had half of the network."""
    spans = [("x", 0.0, 4.0), ("x", 0.0, 4.0), ("y", 2.0, 5.0), ("x", 4.0, 5.0)]
    found = [Collective("all_reduce", start, end, group=group) for group, start, end in spans]
    assert wire_times(found) == [1.5, 1.5, 1.5, 0.5]


def test_groups_of_other_ranks_do_not_share():
    """Two pairs of ranks at once; a group over all shares with both."""
    pairs = Scene(
        (lane({"a": 0.0}, [(1.0, "a")]), lane({"b": 0.0}, [(1.0, "b")])),
        (message("a", 20.0, "x"), message("b", 40.0, "y")),
    )
    assert pairs.duration == pytest.approx((9 + 20 + 9 + 40) / 2)
    both = tuple(replace(one, ready={**one.ready, ("c",): 0.0}) for one in pairs.lanes)
    third = replace(pairs, lanes=both, messages=(*pairs.messages, message("c", 10.0, "z")))
    assert third.duration == pytest.approx((9 + 30 + 9 + 50) / 2)


def test_a_wait_for_a_short_message_is_not_put_off_by_a_long_one_of_another_group():
    """The rank needs b at 2, which is through at 4; behind a it would be through at 11."""
    scene = Scene(
        (lane({"a": 0.0, "b": 2.0}, [(2.0, "b"), (4.0, "a")], work=5.0),),
        (message("a", 10.0, "x"), message("b", 1.0, "y")),
    )
    assert scene.duration == pytest.approx(11 + 1)  # b until 4, a until 11, then 1 of work
    assert replace(scene, shared=False).duration == pytest.approx(10 + 1)


NAMES = "abcdef"
SCENES = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 6), st.sampled_from("xyz"), st.integers(0, 12)),
    min_size=1, max_size=6,
)  # fmt: skip


@settings(max_examples=examples(30), deadline=None)
@given(SCENES, st.booleans())
def test_a_replay_is_what_a_network_that_moves_in_small_steps_does(rows, shared):
    """(Ready, seconds, group, wait half a second and more after it) of each message."""
    rows = sorted(rows, key=lambda row: row[0])
    ready = {name: float(row[0]) for name, row in zip(NAMES, rows, strict=False)}
    waits = sorted((row[0] + row[3] + 0.5, name) for name, row in zip(NAMES, rows, strict=False))
    messages = tuple(message(name, float(row[1]), row[2]) for name, row in zip(NAMES, rows, strict=False))
    scene = Scene((lane(ready, waits, work=30.0),), messages, shared=shared)
    assert scene.duration == pytest.approx(float(stepped(ready, waits, messages, shared)))


def stepped(ready, waits, messages, shared):
    """Seconds of the step, in fractions: up to the next event the rank works or waits, and messages in flight move."""
    left = {one.key[0]: Fraction(one.seconds) for one in messages}
    queues = [[one.key[0] for one in messages if one.group == group] for group in "xyz"]
    marks = [Fraction(at) for at in (*ready.values(), *(at for at, _ in waits), 30)]
    position = time = Fraction(0)
    while True:
        flying = []
        for queue in queues:
            while queue and ready[queue[0]] <= position and not left[queue[0]]:
                queue.pop(0)
            flying += [name for name in queue[:1] if ready[name] <= position]
        waiting = any(at <= position and any(name in queue for queue in queues) for at, name in waits)
        if position >= 30 and not waiting:
            return time
        share = len(flying) if shared else 1
        moves = [left[name] * share for name in flying]
        moves += [] if waiting else [mark - position for mark in marks if mark > position]
        for name in flying:
            left[name] -= min(moves) / share
        time += min(moves)
        position += 0 if waiting else min(moves)


def test_collectives_of_two_groups_are_replayed_as_they_were():
    found = explain_trace(trace_of(BESIDE))
    assert found.replayed == pytest.approx(found.step_time)
    # All is through when the bytes of both are, but for the pauses in which neither was ready.
    buckets = 10 * (BESIDE.latency + 4_000_000 * BESIDE.per_byte)
    last = buckets / 10  # of buckets alone, the last is exposed
    assert found.gains["shared-network"] == pytest.approx(BESIDE.beside + buckets - 10 * BESIDE.backward - last)


def test_several_buckets_of_one_group_in_flight_are_no_shared_network():
    """Two all-reduces at once, as gloo's threads have them."""

    def step(number, groups):
        start = 10.0 * number
        messages = tuple(
            Collective(
                "all_reduce", start + 1, start + 5, start + 1, 100, "float32", "dims", group, sequence, 2, start + 1
            )
            for sequence, group in enumerate(groups, 2 * number)
        )
        return Step(number, start, start + 6, ((start, start + 2), (start + 5, start + 6)), messages)

    def gain(groups):
        ranks = tuple(RankTrace(rank, tuple(step(n, groups) for n in range(3)), 2) for rank in range(2))
        return explain_trace(Trace("two", ranks)).gains["shared-network"]

    assert gain(("0", "0")) == 0
    assert gain(("0", "1")) == pytest.approx(2.0)  # each would have been through after 2 of 4 seconds


def test_groups_that_take_turns_cost_nothing():
    """The same all-gather before the first bucket is ready."""
    early = replace(HEALTHY, per_byte=1e-9, beside=5e-3)
    assert explain_trace(trace_of(early)).gains["shared-network"] == 0
