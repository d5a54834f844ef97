"""Logs of nccl-tests as they come: tagged, coloured, interleaved, overwritten and in other encodings.

What a launcher, a terminal or a shell adds leaves the table as it was. What it breaks is left out, and counted.
"""

from __future__ import annotations

import codecs
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osfmodel import DataError
from osfmodel.formats import Hints, import_content
from osfmodel.formats.collectives.nccl_tests import sniff
from tests.commands import invoke
from tests.draws import examples
from tests.formats.samples import DATA, NEW_TEXT, OLD_TEXT, log

GOOD = [NEW_TEXT, OLD_TEXT, log(hosts=2), log("all_gather", hosts=2), log() + log(hosts=2)]
TAGS = {
    "none": lambda rank, count: "",
    "mpirun": lambda rank, count: f"[1,{rank}]<stdout>:",
    "prterun": lambda rank, count: f"[prterun-head.cluster-77@1,{rank}]<stdout>: ",
    "hydra": lambda rank, count: f"[{rank}] ",
    "srun": lambda rank, count: f"{rank}: ",
    "torchrun": lambda rank, count: f"[default{rank}]:",
    "kubectl": lambda rank, count: f"[pod/nccl-worker-{rank}/main] ",
    "pdsh": lambda rank, count: f"node-{rank}.cluster: ",
    "compose": lambda rank, count: f"worker-{rank}  | ",
    "quoted": lambda rank, count: "> ",
}
TIMES = {
    "none": lambda count: "",
    "kubectl": lambda count: f"2026-01-05T10:11:{count % 60:02d}.123456789Z ",
    "logging": lambda count: f"[2026-01-05 10:11:{count % 60:02d},123][INFO] ",
    "clock": lambda count: f"10:11:{count % 60:02d} ",
    "syslog": lambda count: f"Jan  5 10:11:{count % 60:02d} head ",
}
ENCODINGS = {
    "utf-8": lambda text: text.encode(),
    "utf-8 with a mark": lambda text: codecs.BOM_UTF8 + text.encode(),
    "PowerShell": lambda text: text.replace("\n", "\r\n").encode("utf-16"),
    "UTF-16 without a mark": lambda text: text.encode("utf-16-le"),
    "UTF-16, other order": lambda text: codecs.BOM_UTF16_BE + text.encode("utf-16-be"),
    "UTF-32": lambda text: text.encode("utf-32"),
}
COLOURS = ["\x1b[31m", "\x1b[0m", "\x1b[1;38;5;208m", "\x1b[K", "\x1b]0;nccl\x07", "\x1b[?25l", "\x1b(B"]
CHATTER = [
    "node-b:6841:6900 [1] NCCL INFO Channel 00/02 : 0 1 2 3",
    "node-b:6841:6900 [1] NCCL INFO comm 0x7f rank 1 nranks 2",
    "Warning: Permanently added '10.0.0.7' to the list of known hosts.",
    "srun: job 77 queued and waiting for resources",
]


def tables(content, **hints):
    """(the tables of a log's bytes, the remarks on rows that were lost, all remarks)"""
    told: list[str] = []
    (cluster,) = import_content(content, "file.txt", Hints("mine", **hints), tell=told.append)
    return cluster.tables, cluster.gpus_per_node, [one for one in told if "cannot be told" in one]


WHOLE = [tables(text.encode()) for text in GOOD]


CHOICES = {
    "tag": st.sampled_from(sorted(TAGS)), "time": st.sampled_from(sorted(TIMES)),
    "encoding": st.sampled_from(sorted(ENCODINGS)), "colours": st.booleans(), "progress": st.booleans(),
    "chatter": st.booleans(),
}  # fmt: skip


@settings(max_examples=examples(30))
@given(st.sampled_from(range(len(GOOD))), st.fixed_dictionaries(CHOICES), st.randoms(use_true_random=False))
def test_what_is_added_to_a_log_changes_no_table(number, chosen, chance):
    """Prefixes of launchers, in two layers, tags where mpirun flushed, colours, overwritten lines, other ranks."""
    found = []
    for count, line in enumerate(GOOD[number].splitlines()):
        own = TAGS[chosen["tag"]](0, count)
        before = TIMES[chosen["time"]](count) + own
        if chosen["progress"] and chance.random() < 0.5:
            found.append(f"{before}{chance.randrange(100)}% done\r")
        tagged = inserted(line, own.strip(), chance) if own.startswith("[") and chance.random() < 0.3 else line
        found.append(
            before + (inserted(tagged, chance.choice(COLOURS), chance) if chosen["colours"] else tagged) + "\n"
        )
        if chosen["chatter"] and chance.random() < 0.5:
            found.append(f"{TIMES[chosen['time']](count)}{TAGS[chosen['tag']](1, count)}{chance.choice(CHATTER)}\n")
    content = ENCODINGS[chosen["encoding"]]("".join(found))
    assert tables(content) == WHOLE[number]


def inserted(line, piece, chance):
    place = chance.randrange(len(line) + 1)
    return line[:place] + piece + line[place:]


@pytest.mark.parametrize("word", [2, 4, 5, 8, -1])
@pytest.mark.parametrize("tag", ["[0]", "[1,0]<stdout>:"])
def test_a_tag_that_only_stands_within_rows_is_none_of_their_figures(word, tag):
    """Glued to a word of each row, behind size and count, without a tag at the beginning of the line."""

    def glued(line):
        words = line.split()
        return " ".join([*words[:word], words[word] + tag, *words[word:][1:]]) if re.match(r"\s+[1-9]", line) else line

    for number, text in enumerate(GOOD):
        assert tables("\n".join(map(glued, text.splitlines())).encode()) == WHOLE[number]


@settings(max_examples=examples(30))
@given(st.sampled_from([0, 2, 3]), st.sampled_from(["none", "mpirun", "hydra"]), st.randoms(use_true_random=False))
def test_rows_in_which_another_rank_wrote_are_left_out_and_counted(number, tag, chance):
    """Each row is as it was or lost; the note names the first lost line, and counts it and the others."""
    broken, found = 0, []
    own = TAGS[tag](0, 0)
    for line in GOOD[number].splitlines():
        place = chance.randrange(len(line) - len(line.lstrip()), len(line)) + 1
        if re.match(r"\s+[1-9]", line) and chance.random() < 0.4:
            broken += 1
            found.append(f"{own}{line[:place]}{TAGS[tag](1, 0)}{chance.choice(CHATTER)}\n{own}{line[place:]}\n")
        else:
            found.append(f"{own}{line}\n")
    ((whole,), each, _) = WHOLE[number]
    if broken >= len(whole.sizes) - 1:
        with pytest.raises(DataError, match=r"is not a row of the table|two sizes or more"):
            tables("".join(found).encode())
        return
    ((table,), layout, said) = tables("".join(found).encode())
    assert layout == each
    kept = dict(zip(table.sizes, table.times, strict=True))
    assert kept.items() <= dict(zip(whole.sizes, whole.times, strict=True)).items()
    lost = len(whole.sizes) - len(kept)
    assert lost <= broken
    counted = [1 + int((re.search(r"with (\d+) more line", one) or [0, 0])[1]) for one in said]
    assert sum(counted) >= lost
    assert len(said) == (lost > 0)


@settings(max_examples=examples(18))
@given(st.sampled_from(sorted(set(TAGS) - {"none", "quoted"})), st.randoms(use_true_random=False))
def test_tables_of_two_ranks_line_by_line_are_told_apart(tag, chance):
    """Two nodes with a test each, whose lines come in any order: both are read, as repeats of one set-up."""
    parts = [log(scale=1.0).splitlines(), log(scale=3.0).splitlines()]
    found = []
    while any(parts):
        rank = chance.choice([rank for rank in (0, 1) if parts[rank]])
        found.append(f"{TAGS[tag](rank, 0)}{parts[rank].pop(0)}\n")
    ((table,), each, said) = tables("".join(found).encode())
    ((fast,), _, _), ((slow,), _, _) = tables(log(scale=1.0).encode()), tables(log(scale=3.0).encode())
    assert table.times == pytest.approx([(a + b) / 2 for a, b in zip(fast.times, slow.times, strict=True)])
    assert (each, said) == (4, [])


@pytest.mark.parametrize(
    ("content", "left", "note"),
    [
        (NEW_TEXT[: NEW_TEXT.index("# Out")].rstrip()[:-30], (2**20, 2**21), "line 16: cannot be told as a row"),
        (OLD_TEXT.replace("20.31", "2O.31"), (2048, 4096), "line 11: cannot be told as a row"),
        (NEW_TEXT.replace("  1048576  ", "  24  ", 1), (2**21, 2**22), "line 14: cannot be told as a row"),
        (NEW_TEXT.replace("   130.4 ", "  0.1304 "), (2**20, 2**21), "line 16: cannot be told as a row"),
        (log().replace("  2097152  ", "  2097152.5  "), (2**20, 2**22), "line 11: cannot be told as a row"),
    ],
)
def test_a_row_that_is_cut_or_garbled_is_left_out(content, left, note):
    ((table,), _, (said,)) = tables(content.encode())
    assert table.sizes == left
    assert said.startswith(note)
    assert said.count("more line") == 0


def test_a_test_of_which_no_row_can_be_told_is_told_beside_another():
    told: list[str] = []
    (cluster,) = import_content(
        (log() + log(hosts=2).replace("float", "flo at")).encode(), "f", Hints("a"), tell=told.append
    )
    assert [table.workers for table in cluster.tables] == [4]
    assert told == ["line 15: a test began here and printed no rows that can be told"]


def test_rank_tags_that_touch_numbers(tmp_path):
    """mpirun's tag within a row is none of its digits; a second rank's makes the row one that cannot be told."""
    content = (DATA / "nccl-rank-tags.log").read_text()
    ((table,), each, said) = tables(content.encode())
    assert (table.workers, each, said) == (8, 8, [])
    assert table.sizes == tuple(2**power for power in range(10, 31))
    assert (table.times[3], table.times[-1]) == (22.06e-6, 8191.77e-6)
    ((cut,), _, said) = tables(
        content.replace("22.01    0.05", "22.[3]01    0.05").replace("-1    22.03", "-1 [3] 22.03", 1).encode()
    )
    assert cut.sizes == (2048, *table.sizes[3:])
    (note,) = said
    assert note.startswith("line 16: cannot be told as a row of the table and is left out, with 1 more line: ")


def test_the_commands_read_what_powershell_wrote(tmp_path):
    """Logs, and the tool's own files, which a shell wrote from its output."""
    (tmp_path / "run.log").write_bytes(NEW_TEXT.replace("\n", "\r\n").encode("utf-16"))
    done = invoke(["import", str(tmp_path / "run.log"), "-o", str(tmp_path / "c.json")])
    assert done.exit_code == 0, done.stderr
    own = (tmp_path / "c.json").read_text()
    for encoding in ("utf-16", "utf-8-sig"):
        (tmp_path / "c.json").write_bytes(own.encode(encoding))
        for words in (
            ["doctor", str(tmp_path / "c.json"), "--against", "nccl:a100x2,200Gbps,ib"],
            ["predict", "resnet50-v100", "--cluster", str(tmp_path / "c.json"), "--workers", "4"],
            ["compare", str(tmp_path / "c.json"), str(tmp_path / "run.log")],
        ):
            done = invoke(words)
            assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize(
    "head", ['{"log": "#       size         count      type   redop"}', "size count type", "# sizes"]
)
def test_a_header_within_other_text_is_none(head):
    assert not sniff(head)
