"""Units: strict both ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osfmodel import UsageError
from osfmodel.entities.display import how_many, show_bytes, show_predicted, show_predicted_time, show_share, show_time
from osfmodel.entities.units import (
    MIB,
    format_bandwidth,
    format_time,
    parse_bandwidth,
    parse_bytes,
    parse_time,
    show_rate,
    show_sizes,
)


def test_binary_and_decimal_sizes_differ():
    assert parse_bytes("25MiB") == 26_214_400
    assert parse_bytes("25MB") == 25_000_000
    assert parse_bytes("1.5 KiB") == 1536
    assert parse_bytes("0B") == 0


def test_times_and_bandwidths():
    assert parse_time("3.2ms") == 0.0032
    assert [parse_time(text) for text in ("3ns", "2s", "2min", "1.5h")] == [3e-9, 2, 120, 5400]
    assert parse_time("10us") == parse_time("10µs") == 1e-5
    assert parse_bandwidth("10Gbps") == 1.25e9
    assert parse_bandwidth("10Gbit/s") == 1.25e9
    assert parse_bandwidth("10Gb/s") == 1.25e9
    assert parse_bandwidth("10GB/s") == parse_bandwidth("10GBps") == 1e10
    assert parse_bandwidth("1GiB/s") == 2**30


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_bytes, "128M", 2**27),
        (parse_bytes, "8G", 2**33),
        (parse_bytes, "512K", 2**19),
        (parse_bytes, "25mb", 25e6),
        (parse_bytes, "80gib", 80 * 2**30),
        (parse_bytes, "25MIB", 25 * 2**20),
        (parse_bytes, "5e8B", 5e8),
        (parse_bandwidth, "400G", 5e10),
        (parse_bandwidth, "400Gbit", 5e10),
        (parse_bandwidth, "100gbps", 1.25e10),
        (parse_bandwidth, "3.2Tbps", 4e11),
        (parse_time, "36h", 129600),
        (parse_time, "10d", 864000),
        (parse_time, "2w", 1209600),
        (parse_time, "90min", 5400),
        (parse_time, "1d12h", 129600),
        (parse_time, "1h 30min", 5400),
        (parse_time, "2.5 hours", 9000),
    ],
)
def test_units_as_people_and_tools_write_them(parse, text, value):
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "hint"),
    [
        (parse_bytes, "25", "no unit"),
        (parse_bytes, "0.3B", "whole number of bytes"),
        (parse_bytes, "-1MiB", "non-negative"),
        (parse_bytes, "", "not a size"),
        (parse_bytes, "nanMiB", "not a size"),
        (parse_bytes, "1e400MiBs", "unknown size unit"),
        (parse_bytes, "10Gbps", "unknown size unit"),
        (parse_time, "5", "no unit"),
        (parse_time, "5MS", "did you mean 5ms"),
        (parse_time, "5MiB", "unknown time unit"),
        (parse_bandwidth, "10", "no unit"),
        (parse_bandwidth, "1e400Gbps", "too large for a bandwidth"),
        (parse_bandwidth, "1e999999999Gbps", "not a bandwidth"),
        (parse_bytes, "64Gb", r"unknown size unit 'Gb': did you mean 64GB or 64GiB\?$"),
        (parse_time, "10u", "did you mean 10us"),
        (parse_time, "1h30parsec", "unknown time unit"),
        (parse_bandwidth, "10Gbis", "did you mean 10Gbit/s or 10Gbps"),
        (parse_bandwidth, "10GBis", "did you mean 10GBps or 10GB/s"),
        (parse_bandwidth, "10parsec", r"write as in 10Gbps or 1.25GB/s$"),
    ],
)
def test_bad_quantities_say_how_to_write_them(parse, text, hint):
    with pytest.raises(UsageError, match=hint):
        parse(text)


@given(st.floats(0, 1e12, allow_nan=False))
def test_times_survive_the_round_trip(seconds):
    assert parse_time(format_time(seconds)) == seconds


@given(st.floats(0, 1e15, allow_nan=False))
def test_bandwidths_survive_the_round_trip(rate):
    assert parse_bandwidth(format_bandwidth(rate)) == rate


def test_no_suggestion_turns_bits_into_bytes():
    with pytest.raises(UsageError, match="did you mean 25GBps") as caught:
        parse_bandwidth("25GBPS")
    assert "Gbps" not in str(caught.value).partition("did you mean")[2]


def test_what_a_person_reads():
    assert format_time(0.0032) == "3.2ms"
    assert format_bandwidth(1.25e9) == "10Gbps"
    assert show_bytes(26_214_401) == "25.00 MiB"
    assert show_time(0.0956) == "95.60 ms"
    assert show_time(0) == "0 s"
    assert show_time(1.735e-18) == show_time(-1.735e-18) == "0 s", "what is left of sums of times"
    assert show_time(1e-9) == "1.000 ns"


def test_one_is_no_plural():
    assert [how_many(number, "step") for number in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.7259, "726 ms"),
        (1.2346, "1.23 s"),
        (0.0956, "95.6 ms"),
        (0.00645, "6.45 ms"),
        (0.9996, "1.00 s"),
        (0.0009999, "1.00 ms"),
        (1234.5, "1,230 s"),
        (4e-7, "400 ns"),
        (0, "0 s"),
        (1e-12, "0 s"),
    ],
)
def test_predicted_times_have_three_digits(seconds, text):
    assert show_predicted_time(seconds) == text


def test_predicted_numbers_have_three_digits():
    numbers = {
        11454: "11,500",
        2648: "2,650",
        999.6: "1,000",
        998.4: "998",
        7.912: "7.91",
        0.06115: "0.0612",
        0: "0.00",
    }
    assert {number: show_predicted(number) for number in numbers} == numbers


def test_shares_have_a_decimal_below_ten_percent_alone():
    shares = {0.0: "0.0%", 0.0051: "0.5%", 0.0994: "9.9%", 0.0996: "10%", 0.115: "12%", 4.844: "484%", -0.336: "-34%"}
    assert {part: show_share(part) for part in shares} == shares
    assert (show_share(0.052, "+"), show_share(1.203, "+"), show_share(-0.052, "+")) == ("+5.2%", "+120%", "-5.2%")


def test_rates_are_shown_in_bits():
    rates = {4e11: "3.2 Tbps", 5e10: "400 Gbps", 1.5625e9: "12.5 Gbps", 125: "1 kbps", 1: "8 bps"}
    assert {rate: show_rate(rate) for rate in rates} == rates


def test_what_is_measured_keeps_four_digits():
    assert show_time(0.7259) == "725.9 ms"


def test_sizes_in_a_row_that_are_alike_are_told_once():
    """Three or more; of many buckets the range."""
    assert show_sizes([MIB, MIB, 2 * MIB]) == ": 1.000 MiB, 1.000 MiB, 2.000 MiB"
    assert show_sizes([2 * MIB, MIB, MIB, MIB, 2 * MIB]) == ": 2.000 MiB, 3 of 1.000 MiB, 2.000 MiB"
    assert show_sizes([MIB, *[3 * MIB] * 100]) == " of 1.000 MiB to 3.000 MiB"
