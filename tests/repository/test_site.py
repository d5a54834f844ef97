"""The docs site: every page has its place, every entry of a table its page, and the built site fetches nothing."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import pytest
import yaml

import osfmodel
from osfmodel.cli.app import COMMANDS
from osfmodel.cost import COST_MODELS
from osfmodel.diagnosis import CAUSES
from osfmodel.diagnosis.doctor.faults import NETWORK_FAULTS
from osfmodel.entities.files.configuration import SETTINGS
from osfmodel.formats import IMPORT_FORMATS
from osfmodel.planning.tuning.launch import SNIPPETS
from osfmodel.solve import SOLVERS
from osfmodel.targets import CONFIG_TARGETS
from tests.browser import Browser
from tests.conftest import ROOT
from tests.generated_pages import DOCS, accuracy_page, command_pages, index_page, schema_pages
from tests.repository.test_docs import BLOCK

MKDOCS = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def pages_of(nav: Any) -> Iterator[str]:
    """The pages that a navigation leads to, in order."""
    if isinstance(nav, str):
        yield from sorted(str(path.relative_to(DOCS)) for path in DOCS.glob(nav)) if "*" in nav else [nav]
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from pages_of(entry)


def test_every_page_is_in_the_navigation_once():
    notebooks = [path.with_suffix(".md") for path in DOCS.rglob("*.ipynb")]
    there = sorted(str(path.relative_to(DOCS)) for path in (*DOCS.rglob("*.md"), *notebooks, *command_pages()))
    assert sorted(pages_of(MKDOCS["nav"])) == there


MOST_WORDS = 500


def long_pages(pages: Iterable[Path]) -> dict[str, int]:
    """The words of each page that has more than a reader who wants to do one thing will read, as ``wc -w`` counts."""
    words = {page.name: len(page.read_text(encoding="utf-8").split()) for page in pages}
    return {name: count for name, count in words.items() if count > MOST_WORDS}


def test_how_to_pages_are_short(tmp_path):
    assert long_pages(DOCS.glob("how-to/*.md")) == {}
    (tmp_path / "long.md").write_text("word " * (MOST_WORDS + 1))
    assert long_pages(tmp_path.iterdir()) == {"long.md": MOST_WORDS + 1}


def shallow(text: str) -> list[str]:
    """Lines that belong into a list item above and that the site would take out of it: indented by less than four.

    GitHub takes fewer, Python-Markdown does not. And lists that no blank line sets apart from a paragraph.
    """
    prose = BLOCK.sub("```", text).split("\n")
    item = re.compile(r"([*+-]|\d+\.) ")
    return [
        line
        for before, line in pairwise(["", *prose])
        if re.match(r" {1,3}([*+-]|\d+\.) ", line)
        or (not before and re.match(r" {1,3}\S", line))
        or (item.match(line) and before and not before.startswith(" ") and not item.match(before))
    ]


def test_lists_are_what_they_look_like():
    found = {str(page.relative_to(DOCS)): shallow(page.read_text(encoding="utf-8")) for page in DOCS.rglob("*.md")}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_the_search_for_shallow_lines_can_fail():
    assert shallow("1. one\n   * inside\n\n   more\n\ntext\n* no list") == ["   * inside", "   more", "* no list"]
    assert not shallow("1. one\n    * inside\n      and on\n\n    more\n\ntext\n\n* list\n* list")


def in_design() -> list[str]:
    """The tables that docs/design.md lists."""
    section = (DOCS / "design.md").read_text(encoding="utf-8").partition("## Tables")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


OF_ONE_MODULE = {
    "STRATEGY_EXECUTORS": "the framework of each strategy: a column of STRATEGIES",
    "PRODUCTS": "operators of torch that multiply matrices",
    "RELATIVES": "decoders after Llama, each a row of MODEL_FAMILIES",
    "PLAIN": "decoders after GPT-2, each a row of MODEL_FAMILIES",
    "MAKERS": "inputs of models of transformers, by their names",
    "KEEPERS": "those of EXECUTORS whose storage is known",
    "RUNNING": "those of EXECUTORS that osf run trains under",
    "MEASURING": "those of EXECUTORS whose collectives osf bench measures",
    "LISTINGS": "what osf list shows: the other tables",
    "SPELLED": "readers of names, of LISTINGS that have other spellings",
    "TYPES": "the nouns that a file can hold",
    "RING": "an entry of FORMULAS",
    "OTHERS": "algorithms of NCCL besides ring and tree, each a formula of its own",
    "COLLNET": "constants of two entries of OTHERS",
    "_SUMMED": "plans of nanotron, whose stack sums gradients after backward",
    "BASE_LATENCY": "NCCL's constants",
    "HOSTS": "NCCL's constants",
    "PARTS": "bounds of the errors of NCCL's model",
    "FMS_FSDP": "models of a source of sharded runs",
    "MODALITIES": "models of a source of sharded runs",
    "LAUNCHERS": "the collectives that torch has",
    "COMPARED": "Python's comparisons",
    "COMPUTED": "Python's arithmetic",
    "OPPOSITES": "Python's operators of one value",
    "EXPRESSIONS": "expressions that a condition may have",
    "SUMS": "a shell's arithmetic",
    "TESTS": "a shell's comparisons",
    "TASKS": "what a process under Horovod does",
    "OPERATIONS": "those of a pickle that make plain data",
}
"""Mappings to functions or nouns that do not grow by entries of others, and what they are."""


def tables() -> set[str]:
    """The names of all mappings of the package to functions, types or nouns of ours."""
    found = set()
    for info in pkgutil.walk_packages(osfmodel.__path__, "osfmodel."):
        if info.name.endswith("__main__"):
            continue
        for name, value in list(vars(importlib.import_module(info.name)).items()):
            if name.isupper() and isinstance(value, Mapping) and value and all(map(_entry, value.values())):
                found.add(name)
    return found


def _entry(value: object) -> bool:
    return callable(value) or hasattr(value, "summary") or type(value).__module__.startswith("osfmodel")


def test_design_lists_every_table():
    """Also those whose entries are figures or places; a table that is gone is listed no more."""
    listed = set(in_design())
    assert tables() - listed == set(OF_ONE_MODULE)
    assert {name for name in listed - tables() if name not in ("COMMANDS", "OPTIMIZERS")} == set()


def test_design_says_where_each_table_is():
    """From the folder of the package; a table may be in several modules, one for each form of output."""
    section = (DOCS / "design.md").read_text(encoding="utf-8").partition("## Tables")[2].partition("\n## ")[0]
    for name, places in re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.MULTILINE):
        for place in re.findall(r"`([\w/]+)`", places):
            module = importlib.import_module("osfmodel." + place.strip("/").replace("/", "."))
            assert name in vars(module), place


def missing_pages() -> dict[str, list[str]]:
    """Entries of the tables that no page of the docs is about, by the page that they need."""
    formats = (DOCS / "reference/formats.md").read_text(encoding="utf-8")
    launching = (DOCS / "how-to/launch-a-plan.md").read_text(encoding="utf-8")
    reference = "".join(page.read_text(encoding="utf-8") for page in DOCS.glob("reference/*.md"))
    how_to = "".join(page.read_text(encoding="utf-8") for page in DOCS.glob("how-to/*.md"))
    return {
        "commands/NAME.md in mkdocs.yml": [
            name for name in COMMANDS if f"commands/{name}.md" not in pages_of(MKDOCS["nav"])
        ],
        "docs/targets/NAME.md": [name for name in CONFIG_TARGETS if not (DOCS / f"targets/{name}.md").exists()],
        "a section '## NAME' in docs/reference/formats.md": [
            name for name in IMPORT_FORMATS if not re.search(rf"^## {name}$", formats, re.MULTILINE)
        ],
        "a line '* `NAME`: ' in docs/how-to/launch-a-plan.md": [
            name for name in SNIPPETS if not re.search(rf"^\* `{name}`: ", launching, re.MULTILINE)
        ],
        "a line '| `NAME` | ' in docs/reference/model.md": _without_line("reference/model.md", COST_MODELS),
        "a line '| `NAME` | ' in docs/reference/traces.md": _without_line("reference/traces.md", CAUSES),
        "a line '| `NAME` | ' in docs/how-to/is-my-network-healthy.md": _without_line(
            "how-to/is-my-network-healthy.md", NETWORK_FAULTS
        ),
        "a line '| `NAME` | ' in docs/how-to/set-defaults.md": _without_line("how-to/set-defaults.md", SETTINGS),
        "docs/reference/*.md naming the plan `NAME`": [name for name in SOLVERS if f"`{name}`" not in reference],
        "docs/how-to/*.md naming the `TABLE`": [name for name in in_design() if f"`{name}`" not in how_to],
    }


def _without_line(page: str, table: Mapping[str, Any]) -> list[str]:
    """The entries that the table of a page has no line of."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [name for name in table if not re.search(rf"^\| `{name}` \| ", text, re.MULTILINE)]


def test_every_entry_of_a_table_has_its_page():
    assert len(in_design()) >= 10
    assert {what: names for what, names in missing_pages().items() if names} == {}


def test_the_search_for_missing_pages_can_fail(monkeypatch):
    for table in (COMMANDS, CONFIG_TARGETS, IMPORT_FORMATS, SNIPPETS, COST_MODELS, SOLVERS, SETTINGS):
        monkeypatch.setitem(table, "unheard-of", None)
    for table in ("CAUSES", "NETWORK_FAULTS"):
        monkeypatch.setattr(sys.modules[__name__], table, {"unheard-of": None})
    monkeypatch.setattr(sys.modules[__name__], "in_design", lambda: ["unheard-of"])
    assert all("unheard-of" in names for names in missing_pages().values())


def stale(pages: Mapping[Path, str]) -> list[str]:
    """Pages that are not as the code makes them now."""
    return [page.name for page, text in pages.items() if not page.exists() or page.read_text(encoding="utf-8") != text]


def test_the_list_of_commands_is_as_the_code_makes_it():
    assert stale(index_page()) == [], "python -m tests.refresh_docs"


def test_schemas_are_as_the_code_makes_them():
    assert stale(schema_pages()) == [], "python -m tests.refresh_docs"
    assert {path.name for path in (DOCS / "reference/schemas").iterdir()} == {path.name for path in schema_pages()}


def test_the_page_of_errors_is_as_the_code_makes_it(checked):
    assert stale(accuracy_page(checked)) == [], "python -m tests.refresh_docs"


def test_readme_has_the_figures_of_runs_from_words():
    page = " ".join((DOCS / "ledger/from-words.md").read_text(encoding="utf-8").split())
    said = re.search(r"Coverage by source, mean: (\d+)%. Median of the sources' medians: ([0-9.]+)%", page)
    assert said
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"[{said[2]} %](docs/ledger/from-words.md), and {said[1]} % lie inside" in readme


def test_stale_pages_are_found():
    page, text = next(iter(index_page().items()))
    assert stale({page: text + "more", DOCS / "unheard-of.md": ""}) == ["index.md", "unheard-of.md"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as readers get it: any page left out and any link or anchor into nothing is a failure."""
    pytest.importorskip("material", reason="needs pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


QUESTIONS = {
    "Why is 2 nodes slower than 1?": "All GPUs of a node share its network",
    "FSDP2, HSDP or ZeRO: which one?": "One command compares them at each worker count",
    "What will 64 to 4096 GPUs give?": " 256  fsdp2 ",
    "Which interconnect do I need?": "bandwidth of the network: 270 Gbps per GPU",
    "best parallel config for my node count": "searches TP, PP, CP, EP, micro-batch and checkpointing",
    "What bucket size?": "computes the best sizes for your network and model",
    "Does gradient accumulation skip communication?": "DDP skips communication in all micro-batches but the last",
    "Which rank is slow?": "rank 1 takes 95.73 ms longer",
    "Is my overlap working? How much communication is exposed?": "the communication that no computation hides",
    "Communication timing without heavy traces": "times steps without a profiler",
}
"""The questions that users ask most, and words of the answer."""
HITS, SCREEN = 3, 900
"""Pages that a reader looks at, and pixels of one without scrolling."""
SEARCH = """
const [questions, done] = [arguments[0], arguments[1]];
const { search } = JSON.parse(document.querySelector("#__config").textContent);
const worker = new Worker(search);
const found = [];
worker.onmessage = ({ data }) => {
  if (data.type === 3) found.push(data.data.items.map((page) => page[0].location));
  if (found.length === questions.length) done(found);
  else worker.postMessage({ type: 2, data: questions[found.length] });
};
fetch("search/search_index.json").then((answer) => answer.json())
  .then((index) => worker.postMessage({ type: 0, data: { ...index, options: { suggest: false } } }));
"""
"""Ask the site's own search; of each page that it finds, the part that it lists first."""
SEEN = """
return [...document.querySelectorAll("article :is(p, li, td, pre span, h1)")].some((part) => {
  const { top, bottom } = part.getBoundingClientRect();
  return top >= 0 && bottom <= innerHeight && part.textContent.replace(/\\s+/g, " ").includes(arguments[0]);
});
"""
"""Whether the words stand on the screen."""


class Quiet(SimpleHTTPRequestHandler):
    """A server of files that does not log."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    """The address of the site: its search is a worker, which browsers do not start from a disk."""
    handler = partial(Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def unanswered(chromium: Browser, served: str, questions: Mapping[str, str]) -> list[str]:
    """Questions whose answer stands on the first screen of none of the first pages that the search finds."""
    chromium.driver.get(f"{served}index.html")
    found = chromium.driver.execute_async_script(SEARCH, list(questions))
    missing = []
    for (question, words), places in zip(questions.items(), found, strict=True):
        for place in places[:HITS]:
            chromium.driver.get(served + place)
            if chromium.run(SEEN, " ".join(words.split())):
                break
        else:
            missing.append(f"{question} {places[:HITS]}")
    return missing


def test_questions_of_users_are_answered_on_the_first_screen_that_the_search_finds(chromium, served):
    assert unanswered(chromium, served, QUESTIONS) == []
    wrong = {"What bucket size?": "All GPUs of a node share its network", "xylophone": "anything"}
    assert len(unanswered(chromium, served, wrong)) == 2


def test_old_addresses_lead_to_pages(site):
    """Addresses of pages that are gone or have other names."""
    for old, new in MKDOCS["extra"]["redirects"].items():
        assert f'url={new}"' in (site / old).read_text(encoding="utf-8")
        assert (site / new.partition("#")[0]).is_file()
        assert not (DOCS / old).with_suffix(".md").exists()


FETCHED = re.compile(
    r"""<(?:script|img|link|iframe)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^>]*>|"""
    r"""(?:@import\s*|url\()["']?(?:https?:)?//[^)"';]*"""
)
"""Things that a page or a style sheet loads from elsewhere."""


def test_no_page_fetches_anything(site):
    """All that a page loads lies beside it; links that a reader may follow are no fetching."""
    made = [path for kind in ("html", "css") for path in site.rglob(f"*.{kind}")]
    built = {str(path.relative_to(site)): FETCHED.findall(path.read_text(encoding="utf-8")) for path in made}
    assert len(built) > 60
    assert {name: found for name, found in built.items() if found} == {}


def test_only_prompts_are_taken_for_prompts(site):
    """The copy button leaves out prompts and output: a line of output that begins with ``#`` is no prompt."""
    prompts = {kind for page in site.rglob("*.html") for kind in re.findall(r'class="gp">([^<]*)<', page.read_text())}
    assert {"$ ", "&gt;&gt;&gt; "} <= prompts <= {"$ ", "&gt;&gt;&gt; ", "... "}


def test_the_search_for_fetched_assets_can_fail():
    assert FETCHED.findall('<link rel="stylesheet" href="https://fonts.example/css"> <script src=//cdn.example/x.js>')
    assert FETCHED.findall("a { background: url(https://cdn.example/x.png) }")
    assert not FETCHED.findall('<link rel="stylesheet" href="../assets/x.css"> <a href="https://example.org">x</a>')


YOURS = "yours"
"""The stem of a file that a reader is to write."""


def test_paths_and_modules_that_pages_name_are_there():
    """Each path of a Python file, from the root of the tree, and each dotted name inside the package."""
    pages = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    named = {(page, name) for page in pages for name in names_in(page.read_text(encoding="utf-8"))}
    assert len(named) > 100
    assert sorted(f"{page.relative_to(ROOT)}: {name}" for page, name in named if not is_there(name)) == []


def names_in(text: str) -> set[str]:
    """Paths such as ``osfmodel/cost/nccl.py`` and ``osfmodel/solve/``, and names such as ``osfmodel.cost.nccl``."""
    files = re.findall(r"(?<![\w/.<{-])(?:[\w-]+/)+[\w-]+\.py\b|\bosfmodel/(?:\w+/)*", text)
    return {*files, *re.findall(r"(?<![\w/.-])osfmodel(?:\.[A-Za-z_]\w*)+", text)}


def is_there(name: str) -> bool:
    """Whether a path is in the tree, or a dotted name in the package or a group of entry points.

    Torch's paths and what a reader is to write pass.
    """
    if name in (COST_MODELS.provided.group, CONFIG_TARGETS.provided.group, IMPORT_FORMATS.provided.group):
        return True
    if "/" in name:
        return name.startswith("torch/") or Path(name).stem == YOURS or (ROOT / name).exists()
    module = found = osfmodel
    for part in name.split(".")[1:]:
        if not hasattr(found, part) and found is module:
            with suppress(ModuleNotFoundError):
                importlib.import_module(f"{module.__name__}.{part}")
        found = getattr(found, part, None)
        module = found if isinstance(found, ModuleType) else module
    return found is not None


def test_the_search_for_missing_paths_can_fail():
    text = (
        "`osfmodel/costs/nccl.py` cost/nccl.py `osfmodel/cost/nccl.py`, osfmodel.tune, osfmodel.cost.ncl and train.py."
    )
    wrong = ["cost/nccl.py", "osfmodel.cost.ncl", "osfmodel/costs/nccl.py"]
    assert [name for name in sorted(names_in(text)) if not is_there(name)] == wrong
