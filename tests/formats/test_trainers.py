"""Logs of trainers: medians after the warm-up, what they say of the batch, and damaged ones."""

from __future__ import annotations

import pytest

import osfmodel as osf
from osfmodel.diagnosis.comparing.sources import reading_of
from osfmodel.formats import IMPORT_FORMATS, Hints, import_content
from osfmodel.formats.reading import logged_run
from osfmodel.formats.source_text import Text
from osfmodel.formats.trainers import logs, quartile_spread
from tests.formats import lightning_logs

TITAN = "[rank{rank}]:[titan] 2026-03-05 16:{minute:02d}:00,500 - root - INFO - step: {step}  loss: 8.0  tps: {tps:,}\n"
NEMO = "Training epoch 0, iteration {n}/99 | global_batch_size: 512 | train_step_timing in s: {time}\n"


def titan(ranks=(0,), count=12):
    return "".join(
        TITAN.format(rank=rank, minute=k, step=10 * k, tps=5000 + k * (rank == 0))
        for k in range(count)
        for rank in ranks
    )


def test_the_first_line_and_one_in_ten_are_warm_up():
    run = logs.torchtitan(Text("t.log", titan(count=21)))
    assert (run.warm_ups, len(run.values), run.unit) == (2, 19, "tokens/s/gpu")
    assert run.value == 5011
    assert run.seconds == pytest.approx([6.0] * 18)
    assert quartile_spread(run.values) == pytest.approx(4.5 / 5011)
    assert run.logged == 21


def test_one_rank_of_several_counts_and_colours_are_left_out():
    plain = logs.torchtitan(Text("t.log", titan()))
    assert logs.torchtitan(Text("t.log", titan((0, 1)))) == plain
    coloured = "".join(f"\x1b[31m{part}\x1b[0m" for part in titan().splitlines(keepends=True))
    assert logs.sniff_torchtitan(coloured)
    assert logs.torchtitan(Text("t.log", coloured)).values == plain.values


def test_megatron_and_nemo_say_seconds_and_the_batch():
    lines = [
        f" iteration {n}/ 9 | elapsed time per iteration (ms): {500 - n} | global batch size: 64 |" for n in range(4)
    ]
    run = logs.megatron(Text("m.log", "\n".join(lines)))
    assert (run.values, run.batch, run.warm_ups) == ((0.499, 0.498, 0.497), 64, 1)
    nemo = logs.megatron(Text("n.log", "".join(NEMO.format(n=n, time=5 + n) for n in range(3))))
    assert (nemo.values, nemo.batch) == ((6.0, 7.0), 512)


def test_a_trainer_state_has_the_mean_step_and_the_batch():
    text = (
        '{"global_step": 100, "log_history": [{"step": 100, "train_runtime": 120.0, "train_samples_per_second": 53.3}]}'
    )
    run = logs.trainer_state(Text("s.json", text))
    assert (run.values, run.batch) == ((1.2,), 64)
    for bad in (text.replace("120.0", '"x"'), text.replace("train_runtime", "runtime"), text.replace("[", "3, 'x': [")):
        with pytest.raises(osf.DataError):
            logs.trainer_state(Text("s.json", bad))


def test_rates_alone_are_no_measurement():
    text = "CurrSamplesPerSec=180.5\nCurrSamplesPerSec=181.5\n"
    assert logs.deepspeed(Text("d.log", text)).values == (181.5,)
    with pytest.raises(osf.DataError, match="rates and no times of steps"):
        import_content(text.encode(), "d.log", Hints("d", workers=4))


@pytest.mark.parametrize("name", [name for name, entry in IMPORT_FORMATS.items() if entry.log])
def test_a_log_without_a_step_is_refused(name):
    with pytest.raises(osf.DataError):
        IMPORT_FORMATS[name].log(Text("x", "nothing"))


def test_rates_and_the_samples_of_a_worker_are_steps():
    text = "CurrSamplesPerSec=180.5\nCurrSamplesPerSec=160\nCurrSamplesPerSec=160\n"
    (run,) = import_content(text.encode(), "d.log", Hints("d", workers=4, batch_size=8))
    assert run.samples == (0.2, 0.2)


@pytest.mark.parametrize(("accumulate", "world", "batch"), [(1, 1, 8), (1, 2, 16), (4, 2, 64)])
def test_lightnings_clock_gives_steps_batch_and_gpus(accumulate, world, batch):
    """A step is one of the optimizer: of all batches that it accumulates."""
    text = lightning_logs.throughput(0.5, accumulate=accumulate, world=world)
    assert logs.sniff_lightning(text)
    run = logs.lightning(Text("metrics.csv", text))
    assert run.seconds == pytest.approx([0.5] * 10)
    assert (run.batch, run.workers, run.warm_ups, run.logged) == (batch, world, 1, 12)


@pytest.mark.parametrize(
    ("name", "values", "unit", "value"),
    [
        ("train/step_time_ms", (900, 500, 500, 501), "s", 0.5),
        ("iter_time_step", (0.9, 0.5, 0.4, 0.5), "s", 0.5),
        ("time", (0.9, 0.5, 0.4, 0.5), "s", 0.5),
        ("time", (1, 1.9, 2.4, 2.9), "s", 0.5),
        ("device/batches_per_sec", (1, 2, 2, 4), "s", 0.5),
        ("device/samples_per_sec", (1, 8, 8, 9), "samples/s/gpu", 8),
        ("train/samples_per_sec", (1, 8, 8, 9), "samples/s", 8),
        ("device/tokens_per_sec", (1, 80, 80, 90), "tokens/s/gpu", 80),
        ("train/items_per_sec", (1, 80, 80, 90), "tokens/s", 80),
    ],
)
def test_what_lightnings_modules_log_is_read(name, values, unit, value):
    run = logs.lightning(Text("metrics.csv", lightning_logs.logged(name, values)))
    assert (run.unit, run.value) == (unit, pytest.approx(value))


@pytest.mark.parametrize("name", ["validate/time", "val_step_time", "epoch_time", "data_time"])
def test_times_of_anything_else_are_none_of_a_step(name):
    with pytest.raises(osf.DataError, match="add the callback ThroughputMonitor"):
        logs.lightning(Text("metrics.csv", lightning_logs.logged(name, (1.0, 2.0, 3.0))))


def test_a_cut_line_is_left_out_and_told():
    """The last figure of a file that ends in the middle of it may be any part of what was written."""
    whole = titan(count=5)
    for name, text, count in (
        ("torchtitan", whole[: whole.rindex("5,") + 3], 4),
        ("torchtitan", whole[: whole.rindex("loss")], 4),
        ("megatron", "elapsed time per iteration (ms): 500.5 |\n" * 4 + "elapsed time per iteration (ms): 5", 4),
        ("megatron", NEMO.format(n=1, time=5.5) * 4 + NEMO.format(n=1, time=5), 5),
        ("deepspeed", "CurrSamplesPerSec=181.5, x\n" * 4 + "CurrSamplesPerSec=18", 4),
        ("lightning", lightning_logs.logged("step_time_s", (0.5,) * 5)[:-4], 4),
    ):  # fmt: skip
        told = []
        assert IMPORT_FORMATS[name].log(Text("x", text, tell=told.append)).logged == count, text
        assert [said.split(": ")[1] for said in told] == ["is cut off, as the file ends in it"] * (count == 4)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("megatron", "elapsed time per iteration (ms): 5.5 |\n", "with one step, which is warm-up"),
        ("torchtitan", titan(count=1), "with one step, which is warm-up"),
        ("deepspeed", "CurrSamplesPerSec=181.5, x\n", "with one step, which is warm-up"),
        ("lightning", lightning_logs.logged("step_time", (0.5,)), "with one step, which is warm-up"),
        ("megatron", "elapsed time per iteration (ms): 5.5 |\n" + NEMO.format(n=1, time=5), "line 2: .*another unit"),
        ("lightning", "step,epoch,step_time_s,iter_time_ms\n1,0,0.5,500\n", "several times of a step .*differ in unit"),
        ("lightning", lightning_logs.without_times(), "add the callback ThroughputMonitor"),
        ("lightning", "step,epoch,step_time_s\n1,0,fast\n", "line 2: is not a number: 'fast'"),
    ],
)
def test_a_log_that_tells_no_step_is_one_line(name, text, said):
    with pytest.raises(osf.DataError, match=said):
        IMPORT_FORMATS[name].log(Text("x", text))


def test_logs_are_compared_and_other_files_are_no_logs(tmp_path):
    (tmp_path / "a.log").write_text(titan())
    (subject,) = reading_of(tmp_path / "a.log").subjects
    assert subject.runs[0].median == pytest.approx(6.0)
    (tmp_path / "b.csv").write_text("n_gpus,bytes,time_us\n8,1024,3\n8,2048,4\n")
    with pytest.raises(osf.DataError, match=r"b\.csv.*is no log of a trainer"):
        logged_run(tmp_path / "b.csv")
