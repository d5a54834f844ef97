"""osf.watch in one process: records, closed forms of lateness, hooks that leave nothing behind, refusals."""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
import sys
import threading
import time
import types
from contextlib import suppress
from itertools import pairwise

import pytest

import osfmodel as osf
from osfmodel.runtime.callbacks import lightning_watch, transformers_watch
from osfmodel.runtime.profiler.recording import Mark
from osfmodel.runtime.watching import steps, writer
from osfmodel.runtime.watching.hooks import RECORDERS, tell, tell_no_more, tensors_of
from osfmodel.runtime.watching.sinks import SERVICES, means, opened
from osfmodel.runtime.watching.steps import MarkedStep, StepRecorder
from osfmodel.runtime.watching.writer import RankExchange, RankTimes, RecordWriter, lateness

if os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

import torch.distributed as dist
from torch.optim import optimizer as optimizers

pytestmark = pytest.mark.live
CPU = torch.device("cpu")


class Pair(torch.nn.Module):
    """Two layers, in a module that torch.compile compiles as a whole."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

    def forward(self, values):
        return self.last(torch.relu(self.first(values)))


def train(model, steps=3, optimizer=None, micro_batches=1):
    """Train, and return the optimizer."""
    chosen = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        chosen.zero_grad()
        for _ in range(micro_batches):
            model(torch.ones(3, 4)).sum().backward()
        chosen.step()
    return chosen


def fail_in_backward(model):
    """Raise ZeroDivisionError in a backward that has begun."""
    output = model(torch.ones(3, 4))
    output.register_hook(lambda _: 1 // 0)
    output.sum().backward()


def marks_of_hooks(model):
    """All that hooks may be attached to."""
    places = [model, *model.modules()]
    kinds = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooks = [list(getattr(place, kind)) for place in places for kind in kinds]
    tensors = [(tensor._backward_hooks, tensor._post_accumulate_grad_hooks) for tensor in model.parameters()]
    everywhere = list(optimizers._global_optimizer_pre_hooks), list(optimizers._global_optimizer_post_hooks)
    calls = [dist.Work.wait, dist.ProcessGroup.allreduce, dist.ProcessGroup.barrier, dist._broadcast_coalesced]
    streams = [torch.cuda.Stream.wait_event, torch.cuda.Stream.wait_stream]
    return hooks, tensors, everywhere, [id(call) for call in (*calls, *streams)], RECORDERS[:]


def test_a_slow_rank_is_named_and_the_others_wait_by_the_difference():
    """Own work of 3, 3 and 5 s in steps of 6 s: the first two wait 2 s for the last, and 1 s for the network."""
    ranks = [RankTimes([6.0] * 3, [3.0] * 3), RankTimes([6.0] * 3, [3.0] * 3), RankTimes([6.0] * 3, [1.0] * 3)]
    for found in lateness(ranks):
        assert found == ((2.0, 2.0, 0.0), 2, 2.0)


def test_lateness_does_not_depend_on_the_order_of_ranks_nor_on_the_unit():
    rng = random.Random(5)
    for _ in range(200):
        count, length = rng.randint(2, 6), rng.randint(1, 8)
        own = [[rng.uniform(1, 2) for _ in range(length)] for _ in range(count)]
        period = [max(work[step] for work in own) + 0.5 for step in range(length)]
        ranks = [RankTimes(period, [period[step] - work[step] for step in range(length)]) for work in own]
        found = lateness(ranks)
        order = rng.sample(range(count), count)
        turned = lateness([ranks[place] for place in order])
        scaled = lateness([RankTimes(*[[1000 * value for value in part] for part in rank]) for rank in ranks])
        for step, (one, other, large) in enumerate(zip(found, turned, scaled, strict=True)):
            assert min(one.waiting) == pytest.approx(0)
            assert [one.waiting[place] for place in order] == pytest.approx(other.waiting)
            assert [1000 * wait for wait in one.waiting] == pytest.approx(large.waiting)
            assert (one.rank is None) == (other.rank is None) == (large.rank is None)
            if one.rank is not None:
                assert one.rank == order[other.rank] == large.rank
            most = max(work[step] for work in own)  # all wait for the slowest, and the transfer of 0.5 s
            assert one.waiting == pytest.approx([most - work[step] for work in own])


@pytest.mark.parametrize(("excess", "named"), [(0.049, None), (0.051, 1)])
def test_a_rank_is_late_from_a_twentieth_of_the_step_on(excess, named):
    ranks = [RankTimes([1.0] * 5, [0.5] * 5), RankTimes([1.0] * 5, [0.5 - excess] * 5)]
    assert {one.rank for one in lateness(ranks)} == {named}


def test_a_rank_that_is_slow_once_is_not_late():
    """One step of 5 in which a rank computes longer, as for a checkpoint; the others' wait is told nevertheless."""
    ranks = [RankTimes([1, 1, 9, 1, 1], [0.5, 0.5, 8.5, 0.5, 0.5]), RankTimes([1, 1, 9, 1, 1], [0.5] * 5)]
    assert {one.rank for one in lateness(ranks)} == {None}
    assert [one.waiting for one in lateness(ranks)] == [(0, 0), (0, 0), (8, 0), (0, 0), (0, 0)]


def test_a_rank_does_not_wait_for_others_longer_than_it_waits():
    """Ranks that do not communicate: one computes 1 s, the other 4 s, and nobody waits."""
    assert lateness([RankTimes([1.0], [0.0]), RankTimes([4.0], [0.0])])[0].waiting == (0.0, 0.0)


def test_no_lateness_without_every_rank():
    assert lateness([RankTimes([1.0], [None]), RankTimes([1.0], [0.5])]) == []
    assert len(lateness([RankTimes([1.0, 1.0], [0.1, 0.1]), RankTimes([1.0], [0.5])])) == 1


def played(monkeypatch):
    """A recorder with a clock that is set by hand, and the steps that it ended."""
    now, ended = [0.0], []
    monkeypatch.setattr(steps, "_clock", lambda device: lambda: Mark(now[0]))
    monkeypatch.setattr(steps.time, "thread_time", lambda: 0.0)
    return StepRecorder(CPU, 0, ended.append, alone=False), now, ended


def at(now, time):
    now[0] = time
    return True


def test_marks_add_up_to_times(monkeypatch):
    """Two micro-batches, two optimizers of one model, waits that overlap, and one after the update."""
    recorder, now, ended = played(monkeypatch)
    for begin in (10.0, 13.0):
        at(now, begin)
        forward = recorder.begin_forward()
        at(now, begin + 1)
        recorder.end_forward(forward, to_reduce=begin == 13)
        backward = recorder.mark()
        at(now, begin + 2)
        end = recorder.end_backward(backward, to_reduce=begin == 13)
        at(now, begin + 2.5)
        recorder.end_wait(Mark(begin + 2.25))
        end()
    for optimizer in (1, 2):
        update = recorder.begin_update(optimizer)
        at(now, now[0] + 1)
        recorder.end_update(optimizer, update)
    at(now, 18.0)
    recorder.end_wait(Mark(17.75))
    assert ended == []
    at(now, 20.0)
    recorder.begin_forward()
    (step,) = ended
    found = step.times()
    assert (found.step, found.time) == (0, 7.5)
    assert (found.forward, found.backward, found.update) == (2, 3, 2)
    assert found.exposed == 0.75  # a wait of the first micro-batch, and DDP's of the second, which holds another
    assert [wait[0].host for wait in recorder.waits] == [17.75]


def test_copies_are_no_waits(monkeypatch):
    """Of 5 s at the end of backward the thread uses a processor for 2."""
    recorder, now, ended = played(monkeypatch)
    recorder.end_forward(recorder.begin_forward(), to_reduce=True)
    busy = iter([7.0, 9.0])
    monkeypatch.setattr(steps.time, "thread_time", lambda: next(busy))
    end = recorder.end_backward(recorder.mark(), to_reduce=True)
    at(now, 5.0)
    end()
    recorder.end_update(1, recorder.begin_update(1))
    recorder.finish()
    assert ended[0].times().exposed == 3


@pytest.mark.parametrize(
    ("waits", "forwards", "to_reduce", "told"),
    [(True, True, False, True), (False, True, False, False), (True, False, False, False), (True, True, True, False)],
)
def test_a_rank_that_is_not_seen_waiting_does_not_tell(monkeypatch, waits, forwards, to_reduce, told):
    """Without any wait, without forwards, and where DDP reduces out of sight."""
    recorder, _, ended = played(monkeypatch)
    recorder.step()
    if forwards:
        recorder.end_forward(recorder.begin_forward(), to_reduce)
    if waits:
        recorder.end_wait(recorder.mark())
    now_later = Mark(1.0)
    recorder.mark = lambda: now_later
    recorder.step()
    assert ended[0].told is told


def test_what_is_not_known_is_left_out():
    assert MarkedStep(4, Mark(1.0), Mark(3.5), told=False).times().record == {"step": 4, "time": 2.5}
    told = MarkedStep(4, Mark(1.0), Mark(3.5)).times()
    assert told.record == {"step": 4, "time": 2.5, "exposed": 0.0}
    late = told.with_waiting(0.0, None, None).record
    assert late == {"step": 4, "time": 2.5, "exposed": 0.0, "waiting": 0.0, "late_rank": None}
    assert told.with_waiting(0.5, 3, 1.0).record == {**late, "waiting": 0.5, "late_rank": 3, "late_by": 1.0}


def test_the_waits_of_horovod_are_not_known(monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod.torch", types.SimpleNamespace())
    with osf.watch(Pair()) as watch:
        train(watch.hooks.model)
    assert all("exposed" not in record for record in watch.records)


class Event:
    """An event of a device whose time is 10 s for each event."""

    passed, waited = 0, 0

    def __init__(self, enable_timing=False):
        assert enable_timing

    def record(self):
        Event.passed += 10_000
        self.at = Event.passed

    def synchronize(self):
        Event.waited += 1

    def elapsed_time(self, end):
        return end.at - self.at


def test_a_gpu_is_timed_by_its_own_events_on_the_stream_that_trains(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    stream = ["compute"]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream[0])
    ended = []
    recorder = StepRecorder(torch.device("cuda", 0), 0, ended.append)
    recorder.end_forward(recorder.begin_forward(), to_reduce=False)
    assert recorder.waits_here()
    recorder.end_wait(recorder.mark())
    stream[0] = "communication"
    assert not recorder.waits_here()
    recorder.end_update(1, recorder.begin_update(1))
    assert Event.waited == 0
    recorder.finish()
    found = ended[0].times()
    assert Event.waited == 1
    assert (found.time, found.forward, found.exposed, found.update) == (50, 10, 10, 10)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert recorder.mark().event is None  # CUDA graphs hold no timing events


def test_steps_are_written_and_remembered(tmp_path):
    model = Pair()
    with osf.watch(model, tmp_path / "watch.jsonl", every=2) as watch:
        begin = time.perf_counter()
        train(model, 5)
        took = time.perf_counter() - begin
    lines = [json.loads(line) for line in (tmp_path / "watch.jsonl").read_text().splitlines()]
    assert lines == list(watch.records)
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert sum(line["time"] for line in lines) <= took
    for line in lines:
        assert line["exposed"] == 0
        assert 0 < line["forward"] + line["backward"] + line["update"] <= line["time"]
        assert not {"waiting", "late_rank"} & set(line)  # a process alone waits for nobody


def test_a_file_is_begun_anew_or_continued(tmp_path):
    model, path = Pair(), tmp_path / "watch.jsonl"
    for start, expected in ((0, [0, 1, 2]), (3, [0, 1, 2, 3, 4, 5]), (0, [0, 1, 2])):
        with osf.watch(model, path, start=start):
            train(model)
        assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == expected


def test_watching_changes_no_number_and_leaves_nothing():
    torch.manual_seed(3)
    model = Pair()
    twin = copy.deepcopy(model)
    before = marks_of_hooks(model)
    with osf.watch(model, every=1):
        assert marks_of_hooks(model) != before
        train(model, micro_batches=2)
    train(twin, micro_batches=2)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), twin.parameters(), strict=True))
    assert marks_of_hooks(model) == before


def test_an_exception_in_a_step_leaves_nothing_and_keeps_the_steps_before():
    model = Pair()
    before = marks_of_hooks(model)
    watch = osf.watch(model)
    train(model, 2)
    with pytest.raises(ZeroDivisionError), watch:
        fail_in_backward(model)
    assert marks_of_hooks(model) == before
    assert [one["step"] for one in watch.records] == [0, 1]
    watch.close()


def test_a_step_that_failed_and_was_caught_does_not_disturb_the_next():
    model = Pair()
    with osf.watch(model) as watch:
        optimizer = train(model, 1)
        with pytest.raises(RuntimeError):
            model(torch.ones(3, 5))
        with pytest.raises(ZeroDivisionError):
            fail_in_backward(model)
        train(model, 2, optimizer)
    assert [set(one) for one in watch.records] == [{"step", "time", "forward", "backward", "update", "exposed"}] * 3


def test_several_models_are_told_apart():
    """Each has an optimizer of its own; one is trained twice as often. They end in another order than they began."""
    one, other = Pair(), Pair()
    first, second = osf.watch(one), osf.watch(other)
    optimizer, slow = train(one, 1), train(other, 1)
    for _ in range(3):
        train(one, 2, optimizer)
        train(other, 1, slow)
    first.close()
    train(one, 2, optimizer)
    train(other, 1, slow)
    second.close()
    assert (len(first.records), len(second.records)) == (7, 5)
    assert RECORDERS == []


def test_two_optimizers_of_a_model_make_one_step():
    model = Pair()
    pair = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.first, model.last)]
    with osf.watch(model) as watch:
        for _ in range(3):
            model(torch.ones(3, 4)).sum().backward()
            for optimizer in pair:
                optimizer.step()
    assert len(watch.records) == 3


def test_evaluation_is_no_step():
    model = Pair()
    with osf.watch(model) as watch:
        optimizer = train(model, 1)
        with torch.no_grad():
            model(torch.ones(3, 4))
        train(model, 1, optimizer)
    assert [one["step"] for one in watch.records] == [0, 1]


def test_a_loop_may_end_steps_itself():
    """As loops do whose optimizer is none of torch's; then no optimizer ends one."""
    model = Pair()
    with osf.watch(model, every=1) as watch:
        for _ in range(3):
            train(model, 2)
            watch.step()
    assert [one["step"] for one in watch.records] == [
        0,
        1,
        2,
        3,
    ]  # an optimizer ended one before the first call
    assert watch.records[-1]["time"] >= watch.records[-1]["update"] > 0
    watch.step()
    assert len(watch.records) == 4


def test_a_loop_that_ends_no_step_is_told_so_and_keeps_no_marks(monkeypatch):
    monkeypatch.setattr(steps, "MOST", 5)
    model = Pair()
    watch = osf.watch(model)
    for _ in range(20):
        model(torch.ones(3, 4)).sum().backward()
    assert len(watch.recorder.forward) + len(watch.recorder.backward) <= 1
    with pytest.warns(RuntimeWarning, match="no step ended: steps end with a torch.optim optimizer of the model"):
        watch.close()


@pytest.mark.filterwarnings("ignore")
def test_compiled_models_are_watched_without_a_graph_break():
    torch._dynamo.reset()
    model = Pair()
    wrapper = torch.compile(model, backend="eager", fullgraph=True)
    with osf.watch(wrapper) as outer:
        train(wrapper)
    model.compile(backend="eager", fullgraph=True)
    plain = model._compiled_call_impl
    with osf.watch(model) as inside:
        train(model)
    assert model._compiled_call_impl is plain
    for watch in (outer, inside):
        assert all({"forward", "backward", "exposed"} <= set(one) for one in watch.records)
        assert len(watch.records) == 3
    torch._dynamo.reset()
    late = Pair()
    with osf.watch(late) as watch:
        late.compile(backend="eager", fullgraph=True)
        train(late, 4)
    assert [set(one) for one in watch.records] == [{"step", "time", "update", "exposed"}] * len(watch.records)
    assert len(watch.records) == 3  # the first begins when it ends: no forward was seen
    torch._dynamo.reset()


def test_copies_of_a_watched_model_are_not_watched(tmp_path):
    model = Pair()
    with osf.watch(model) as watch:
        copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        for one in copies:
            train(one)
        train(model, 1)
        torch.save(model, tmp_path / "model.pt")
    assert len(watch.records) == 1
    train(torch.load(tmp_path / "model.pt", weights_only=False))


def test_tensors_are_found_in_outputs_of_all_kinds():
    one, two = torch.ones(1), torch.zeros(1)
    output = types.SimpleNamespace(loss=one, rest="words")
    assert list(tensors_of({"a": [one, (two, "b")], "c": None})) == [one, two]
    assert list(tensors_of(output)) == [one]


def broadcast_nothing():
    """A call that is timed, and fails."""
    with suppress(TypeError):
        dist._broadcast_coalesced()


def test_a_wait_in_another_thread_is_not_the_trainings(monkeypatch):
    recorder, _, _ = played(monkeypatch)
    tell(recorder)
    try:
        recorder.begin_forward()
        broadcast_nothing()
        other = threading.Thread(target=broadcast_nothing)
        other.start()
        other.join()
    finally:
        tell_no_more(recorder)
    assert len(recorder.waits) == 1


def test_ranks_exchange_times_through_the_store():
    store = dist.HashStore()
    ranks = [RankExchange(store, rank, 2, number=0) for rank in range(2)]
    mine = [RankTimes([1.5, 2.0], [0.25, None]), RankTimes([1.0, 3.0], [0.5, 1.0])]
    ranks[0].post(0, mine[0])
    assert ranks[0].gather(0) is None
    assert ranks[0].missing(0) == [1]
    ranks[1].post(0, mine[1])
    assert [one.gather(0) for one in ranks] == [mine, mine]
    other = RankExchange(store, 0, 2, number=1)
    assert other.missing(0) == [0, 1]
    for window in range(1, writer.KEPT + 1):
        ranks[0].post(window, mine[0])
    assert ranks[0].missing(0) == [0]


def test_without_the_other_ranks_steps_are_written_all_the_same(tmp_path):
    alone = RankExchange(dist.HashStore(), 0, 3, number=0)
    sink = opened(tmp_path / "watch.jsonl", 0, go_on=False)
    writer = RecordWriter([sink], alone)
    for number in range(3):
        writer.put([MarkedStep(number, Mark(1.0), Mark(2.0))])
    assert not writer.notes
    assert not writer.records
    writer.close(0)
    (note,) = writer.notes
    assert "ranks 1, 2 sent no times: call osf.watch on every rank" in note
    assert [json.loads(line)["step"] for line in (tmp_path / "watch.jsonl").read_text().splitlines()] == [0, 1, 2]


def test_a_sink_that_fails_is_told_of_once_and_left_out():
    model, records = Pair(), []

    def fail(record):
        raise OSError("disk full")

    watch = osf.watch(model, fail, records.append, every=1)
    with pytest.warns(RuntimeWarning, match="nothing more is written to Called: disk full") as seen:
        train(model)
    watch.close()
    assert len(seen) == 1
    assert len(records) == 3


class Recorded:
    """A tracker's package, which notes what it is told."""

    def __init__(self):
        self.told, self.run = [], types.SimpleNamespace(info=types.SimpleNamespace(run_id="7"))

    def log(self, row, commit=True):
        self.told.append((row, commit))

    def log_metrics(self, row, step=None, run_id=None, synchronous=True):
        assert not synchronous
        self.told.append((row, step, run_id))

    def active_run(self):
        return self.run

    def SummaryWriter(self, folder):  # noqa: N802
        self.folder = folder
        return self

    def add_scalar(self, name, value, step):
        self.told.append((name, value, step))

    def close(self):
        self.told.append("closed")


RECORDS = [{"step": 4, "time": 1.0, "late_rank": None}, {"step": 5, "time": 3.0, "update": 0.5, "late_rank": 1}]


def test_tensorboard_gets_scalars_of_each_step(monkeypatch):
    package = Recorded()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", package)
    sink = opened("tensorboard:runs/a", 0, go_on=False)
    sink.write(RECORDS)
    sink.close()
    expected = [("osf/time", 1.0, 4), ("osf/time", 3.0, 5), ("osf/update", 0.5, 5), ("osf/late_rank", 1, 5), "closed"]
    assert package.folder == "runs/a"
    assert package.told == expected
    opened("tensorboard", 0, go_on=False)
    assert package.folder is None


@pytest.mark.parametrize(("name", "rest"), [("wandb", (False,)), ("mlflow", (5, "7"))])
def test_services_get_means_of_a_window(monkeypatch, name, rest):
    package = Recorded()
    monkeypatch.setitem(sys.modules, name, package)
    sink = opened(name, 0, go_on=False)
    sink.write(RECORDS)
    sink.close()
    assert package.told == [({"osf/time": 2.0, "osf/update": 0.5, "osf/late_rank": 1.0}, *rest)]
    package.run = None
    with pytest.raises(osf.UsageError, match=r"no (W&B|MLflow) run is under way: call (wandb.init|mlflow.start_run)"):
        opened(name, 0, go_on=False)


def test_means_leave_out_what_no_step_has():
    assert means(RECORDS[:1]) == {"time": 1.0}


@pytest.mark.parametrize("name", SERVICES)
def test_a_missing_package_is_named(monkeypatch, name):
    monkeypatch.setitem(sys.modules, {"tensorboard": "torch.utils.tensorboard"}.get(name, name), None)
    with pytest.raises(osf.UsageError, match=f"^{name} is not installed: pip install {name}"):
        osf.watch(Pair(), name)


def test_refusals_come_before_any_hook(tmp_path):
    model = Pair()
    before = marks_of_hooks(model)
    frozen = copy.deepcopy(model).requires_grad_(False)
    for error, message, watched, targets, options in (
        (osf.UsageError, "a function cannot be watched: give a torch.nn.Module", train, (), {}),
        (osf.UsageError, "Pair has no trainable parameters", frozen, (), {}),
        (osf.UsageError, "cannot watch a model on 'meta'", copy.deepcopy(model).to("meta"), (), {}),
        (osf.UsageError, "every=0: give 1 or more", model, (), {"every": 0}),
        (osf.UsageError, "a int is no place for the times of steps", model, (3,), {}),
        (osf.DataError, "cannot write the times of steps there: No such file", model, (tmp_path / "a/b",), {}),
    ):
        with pytest.raises(error, match=message):
            osf.watch(watched, *targets, **options)
    assert marks_of_hooks(model) == before


def test_only_rank_0_writes_but_for_names_with_a_rank(tmp_path):
    assert opened(tmp_path / "watch.jsonl", 1, go_on=False) is None
    assert opened("wandb", 1, go_on=False) is None
    assert opened(print, 1, go_on=False) is not None
    opened(tmp_path / "watch-{rank}.jsonl", 12, go_on=False).close()
    assert [path.name for path in tmp_path.iterdir()] == ["watch-12.jsonl"]


def test_a_watch_is_closed_when_the_interpreter_ends(tmp_path):
    """Steps of a script that forgets to close it are written."""
    from tests.live.launching import finish
    from tests.live.warm import Process

    code = (
        "import torch, osfmodel as osf\nmodel = torch.nn.Linear(4, 4)\nosf.watch(model, 'watch.jsonl')\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(3):\n    model(torch.ones(2, 4)).sum().backward()\n    optimizer.step()\n"
    )
    (ended,) = finish([Process(["-c", code], tmp_path, dict(os.environ))])
    assert (ended.code, ended.stderr) == (0, "")
    assert len((tmp_path / "watch.jsonl").read_text().splitlines()) == 3


@pytest.mark.filterwarnings("ignore")
def test_a_callback_for_transformers(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="the Trainer of transformers needs accelerate")

    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = Pair()

        def forward(self, values):
            return {"loss": self.model(values).sum()}

    callback = transformers_watch(tmp_path / "watch.jsonl")
    arguments = transformers.TrainingArguments(
        tmp_path / "out", max_steps=4, per_device_train_batch_size=2, report_to=[], use_cpu=True, save_strategy="no",
        gradient_accumulation_steps=2, remove_unused_columns=False,
    )  # fmt: skip
    data = [{"values": torch.ones(4)}] * 64
    transformers.Trainer(Wrapped(), arguments, train_dataset=data, callbacks=[callback]).train()
    lines = [json.loads(line) for line in (tmp_path / "watch.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert all({"forward", "backward", "update", "exposed"} <= set(line) for line in lines)
    assert RECORDERS == []


def test_the_calls_of_transformers(monkeypatch, tmp_path):
    """A training that breaks off, of which the Trainer tells nothing, and the next one."""
    monkeypatch.setitem(sys.modules, "transformers", types.SimpleNamespace(TrainerCallback=object))
    model, callback = Pair(), transformers_watch(tmp_path / "watch.jsonl")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for ends in (False, True):
        callback.on_train_begin(None, None, None, model=model)
        for _ in range(3):
            train(model, 1, optimizer)
            callback.on_step_end(None, None, None)
        if ends:
            callback.on_train_end(None, None, None)
    lines = [json.loads(line) for line in (tmp_path / "watch.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert RECORDERS == []


def played_lightning(monkeypatch):
    base = type("Callback", (), {})
    monkeypatch.setitem(sys.modules, "lightning.pytorch", types.SimpleNamespace(Callback=base))


def test_a_callback_for_lightning(monkeypatch, tmp_path):
    """Lightning's calls in its order, with two batches a step; Lightning itself where it is installed."""
    played_lightning(monkeypatch)
    model, callback = Pair(), lightning_watch(tmp_path / "watch.jsonl")
    trainer = types.SimpleNamespace(strategy=types.SimpleNamespace(model=model), global_step=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    callback.on_train_start(trainer, model)
    for batch in range(6):
        model(torch.ones(3, 4)).sum().backward()
        if batch % 2:
            optimizer.step()
            trainer.global_step += 1
        callback.on_train_batch_end(trainer, model, None, None, batch)
    callback.on_train_end(trainer, model)
    lines = [json.loads(line) for line in (tmp_path / "watch.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]
    callback.on_train_start(trainer, model)
    callback.on_exception(trainer, model, KeyboardInterrupt())
    assert RECORDERS == []


@pytest.mark.filterwarnings("ignore")
def test_lightning_itself(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Pair()

        def training_step(self, batch, _):
            return self.model(batch).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "accelerator": "cpu", "max_epochs": 1, "accumulate_grad_batches": 2}
    callback = lightning_watch(tmp_path / "watch.jsonl")
    loader = torch.utils.data.DataLoader(torch.ones(12, 4), batch_size=2)
    lightning.Trainer(callbacks=[callback], **quiet).fit(Module(), loader)
    lines = [json.loads(line) for line in (tmp_path / "watch.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]


def test_callbacks_name_what_is_missing(monkeypatch):
    for name, make in (("lightning", lightning_watch), ("transformers", transformers_watch)):
        for module in ("lightning.pytorch", "pytorch_lightning", "transformers"):
            monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(osf.UsageError, match=f"{name} is not installed: pip install {name}, or use osfmodel.watch"):
            make("watch.jsonl")


def test_numbers_of_steps_go_on():
    model = Pair()
    with osf.watch(model, start=100) as watch:
        train(model)
    assert [after["step"] - before["step"] for before, after in pairwise(watch.records)] == [1, 1]
    assert watch.records[0]["step"] == 100
