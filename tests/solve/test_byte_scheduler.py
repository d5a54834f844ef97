"""ByteScheduler's partition, priority and credit on cases worked by hand."""

from __future__ import annotations

import pytest

from osfmodel import Layer, Workload
from osfmodel.cost import AffineCost
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline, without_priority
from osfmodel.entities.errors import OsfError
from osfmodel.solve import SOLVERS, Question
from osfmodel.solve.published import byte_scheduler

NO_START_UP = Pricing.of(AffineCost(((0.0, 1.0),)))


def two_layers():
    """Backward: b is ready at 2, a at 4; forward 1 s each."""
    return Workload("two", (Layer("a", 1, 2, 4), Layer("b", 1, 2, 12)))


def sent(plan, pricing=NO_START_UP, workload=None):
    """(layer, start, end) of every piece."""
    timeline = predict_timeline(workload or two_layers(), plan, pricing)
    return [(span.layers[0], span.start, span.end) for span in timeline.communication]


def test_tensors_are_cut_evenly_into_pieces_no_larger_than_the_partition():
    assert byte_scheduler.cuts(4, 4, 4) == [0, 4]
    assert byte_scheduler.cuts(20, 12, 4) == [0, 8, 20]
    assert byte_scheduler.cuts(24, 10, 4) == [0, 8, 16, 24]
    assert byte_scheduler.cuts(3, 1, 4) == [0, 3]
    pieces = [block for bucket in byte_scheduler.plan(two_layers(), 4, 4).buckets for block in bucket.blocks]
    assert [(block.layer, block.offset, block.bytes) for block in pieces] == [
        ("a", 0, 4), ("b", 0, 4), ("b", 4, 4), ("b", 8, 4),
    ]  # fmt: skip


def test_with_little_credit_the_input_overtakes():
    # One piece in flight: b from 2 to 6; a is ready at 4 and goes next, before the rest of b.
    assert [span[0] for span in sent(byte_scheduler.plan(two_layers(), 4, 4))] == ["b", "a", "b", "b"]
    assert sent(byte_scheduler.plan(two_layers(), 4, 4))[1] == ("a", 6, 10)


def test_a_message_handed_over_cannot_be_overtaken():
    # Credit for all of b: it is in the network's queue when a becomes ready.
    assert [span[0] for span in sent(byte_scheduler.plan(two_layers(), 4, 12))] == ["b", "b", "b", "a"]
    # Credit may fall below 0: with 5 bytes a second piece is handed over, and a comes after that.
    assert [span[0] for span in sent(byte_scheduler.plan(two_layers(), 4, 5))] == ["b", "b", "a", "b"]


def test_the_next_forward_starts_with_the_gradient_of_the_input():
    timeline = predict_timeline(two_layers(), byte_scheduler.plan(two_layers(), 4, 4), NO_START_UP)
    forward = [span for span in timeline.spans if span.kind == "forward"]
    assert [(span.layers, span.start) for span in forward] == [(("a",), 10), (("b",), 18)]
    assert timeline.iteration_time == 19


def test_defaults_are_those_of_the_code():
    assert byte_scheduler.PARTITION == 4_000_000
    assert byte_scheduler.CREDIT == 4 * byte_scheduler.PARTITION
    plan = byte_scheduler.solve(Question(two_layers(), NO_START_UP, SOLVERS["byte-scheduler"].objective)).plan
    assert plan.credit == byte_scheduler.CREDIT
    assert plan.forward_overlap
    assert "starts with" in byte_scheduler.caveats(two_layers())[0]


def test_pieces_of_a_byte_are_whole_elements():
    assert [bucket.size for bucket in byte_scheduler.plan(two_layers(), 1, 4).buckets] == [4] * 4


@pytest.mark.parametrize(("partition", "credit", "said"), [(0, 4, "partition of 0 bytes"), (4, 0, "credit .* is 0")])
def test_less_than_a_byte_is_refused(partition, credit, said):
    with pytest.raises(OsfError, match=said):
        byte_scheduler.plan(two_layers(), partition, credit)


def test_without_priority_the_predicted_order_is_kept():
    """One channel: the same times. Pieces of b go while a is not ready, and after it."""
    for credit in (1, 4, 8, 16):
        plan = byte_scheduler.plan(two_layers(), 4, credit)
        fixed = without_priority(two_layers(), plan, NO_START_UP)
        assert fixed.credit is None
        assert sent(fixed) == sent(plan)
    assert without_priority(two_layers(), fixed, NO_START_UP) is fixed
    first = byte_scheduler.plan(two_layers(), 4, 1)
    assert [bucket.blocks[0].layer for bucket in without_priority(two_layers(), first, NO_START_UP).buckets] == [
        "b", "a", "b", "b",
    ]  # fmt: skip
