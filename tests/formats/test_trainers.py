"""Logs of trainers: medians after the warm-up, what they say of the batch, and damaged ones."""

from __future__ import annotations

import pytest

import osfmodel as osf
from osfmodel.diagnosis.comparing.sources import reading_of
from osfmodel.formats import Hints, import_content
from osfmodel.formats.source_text import Text
from osfmodel.formats.trainers import deepspeed, megatron, torchtitan, trainer_state
from osfmodel.formats.trainers.logs import TRAINER_LOGS, logged_run

TITAN = "[rank{rank}]:[titan] 2026-03-05 16:{minute:02d}:00,500 - root - INFO - step: {step}  loss: 8.0  tps: {tps:,}\n"
NEMO = "Training epoch 0, iteration {n}/99 | global_batch_size: 512 | train_step_timing in s: {time}\n"


def titan(ranks=(0,), count=12):
    return "".join(
        TITAN.format(rank=rank, minute=k, step=10 * k, tps=5000 + k * (rank == 0))
        for k in range(count)
        for rank in ranks
    )


def test_the_first_line_and_one_in_ten_are_warm_up():
    run = torchtitan.log(Text("t.log", titan(count=21)))
    assert (run.warm_ups, len(run.values), run.unit) == (2, 19, "tokens/s/gpu")
    assert run.value == 5011
    assert run.seconds == pytest.approx([6.0] * 18)
    assert run.spread == pytest.approx(4.5 / 5011)


def test_one_rank_of_several_counts_and_colours_are_left_out():
    plain = torchtitan.log(Text("t.log", titan()))
    assert torchtitan.log(Text("t.log", titan((0, 1)))) == plain
    coloured = "".join(f"\x1b[31m{part}\x1b[0m" for part in titan().splitlines(keepends=True))
    assert torchtitan.sniff(coloured)
    assert torchtitan.log(Text("t.log", coloured)).values == plain.values


def test_megatron_and_nemo_say_seconds_and_the_batch():
    lines = [
        f" iteration {n}/ 9 | elapsed time per iteration (ms): {500 - n} | global batch size: 64 |" for n in range(4)
    ]
    run = megatron.log(Text("m.log", "\n".join(lines)))
    assert (run.values, run.batch, run.warm_ups) == ((0.499, 0.498, 0.497), 64, 1)
    nemo = megatron.log(Text("n.log", "".join(NEMO.format(n=n, time=5 + n) for n in range(3))))
    assert (nemo.values, nemo.batch) == ((6.0, 7.0), 512)


def test_a_trainer_state_has_the_mean_step_and_the_batch():
    text = (
        '{"global_step": 100, "log_history": [{"step": 100, "train_runtime": 120.0, "train_samples_per_second": 53.3}]}'
    )
    run = trainer_state.log(Text("s.json", text))
    assert (run.values, run.batch) == ((1.2,), 64)
    for bad in (text.replace("120.0", '"x"'), text.replace("train_runtime", "runtime"), text.replace("[", "3, 'x': [")):
        with pytest.raises(osf.DataError):
            trainer_state.log(Text("s.json", bad))


def test_rates_alone_are_no_measurement():
    text = "CurrSamplesPerSec=180.5\nCurrSamplesPerSec=181.5\n"
    assert deepspeed.log(Text("d.log", text)).value == 181
    with pytest.raises(osf.DataError, match="rates and no times of steps"):
        import_content(text.encode(), "d.log", Hints("d", workers=4))


@pytest.mark.parametrize("name", TRAINER_LOGS)
def test_a_log_without_a_step_is_refused(name):
    with pytest.raises(osf.DataError):
        TRAINER_LOGS[name](Text("x", "nothing"))


def test_logs_are_compared_and_other_files_are_no_logs(tmp_path):
    (tmp_path / "a.log").write_text(titan())
    (subject,) = reading_of(tmp_path / "a.log").subjects
    assert subject.runs[0].median == pytest.approx(6.0)
    (tmp_path / "b.csv").write_text("n_gpus,bytes,time_us\n8,1024,3\n8,2048,4\n")
    with pytest.raises(osf.DataError, match=r"b\.csv.*is no log of a trainer"):
        logged_run(tmp_path / "b.csv")
