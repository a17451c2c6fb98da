"""The examples of README.md and docs/ run, links lead somewhere, and what pages name is there."""

import ast
import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from run_page import blocks, run
from tests.spark import quick

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")])
_LINK = re.compile(r"\[[^\]]*\]\(<?([^)\s>]+)>?\)")
_HEADING = re.compile(r"#{1,6} +(.*?) *#*")
_CODE = re.compile(r"`([^`]+)`")
_TEST = re.compile(r"([\w/]+\.(?:py|txt)|[\w/]+/\*\.txt)?(?:::(\w+))?")
# Where the pages begin to count: a file is named from one of these on.
_ROOTS = ("", "src/tidelake", "tests", "tests/store")


def _name(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


def _examples(page: Path) -> list[str]:
    return ["\n".join(b.lines) for b in blocks(page.read_text(encoding="utf-8")) if b.runs]


def _cases() -> list[object]:
    cases = []
    for page in PAGES:
        examples = _examples(page)
        # Pages that start Spark take their turn with the other tests that do.
        heavy = any("spark" in x.lower() for x in examples)
        if examples:
            marks = [pytest.mark.spark] if heavy else []
            # The command line takes a second for each of many commands.
            slow = heavy or page.name in ("cli.md", "operations.md")
            marks += [pytest.mark.full] if slow else []
            cases.append(pytest.param(page, id=_name(page), marks=marks))
    return cases


def _prose(page: Path) -> list[str]:
    """The lines of a page that stand outside of fenced blocks."""
    text = page.read_text(encoding="utf-8")
    inside = {n for b in blocks(text) for n in range(b.line, b.line + len(b.lines))}
    return [x for n, x in enumerate(text.splitlines(), start=1) if n not in inside]


def _links(page: Path) -> list[str]:
    """Where links lead; brackets in `code` are none."""
    return [target for line in _prose(page) for target in _LINK.findall(re.sub(r"`[^`]*`", "", line))]


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = [m[1] for line in _prose(page) if (m := _HEADING.fullmatch(line))]
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def _files(name: str) -> list[Path]:
    return [path for root in _ROOTS for path in (REPOSITORY / root).glob(name)]


def _named(lines: list[str]) -> list[tuple[str, str]]:
    """Each `file` or `file::test` of some lines; a `::test` is of the file that was named before it."""
    found, file = [], ""
    for code in (code for line in lines for code in _CODE.findall(line)):
        match = _TEST.fullmatch(code)
        if match and (match[1] or match[2]):
            file = match[1] or file
            found.append((file, match[2] or ""))
    return found


@functools.cache
def _defined(file: str) -> set[str]:
    """The functions and classes of the modules of a name."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in _files(file) if path.suffix == ".py"]
    kinds = ast.FunctionDef | ast.ClassDef
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, kinds)}


def missing(lines: list[str]) -> set[str]:
    """What some lines name in `code`, and what is not there: files, and tests in them."""
    found = set(_named(lines))
    gone = {file for file, _ in found if not _files(file)}
    lost = {f"{file}::{test}" for file, test in found if test and test not in _defined(file)}
    return gone | lost


def _ran(command: list[str], place: Path) -> "subprocess.CompletedProcess[str]":
    """What came of a command, whose JVM, if it starts one, starts quickly."""
    environment = os.environ | {"JDK_JAVA_OPTIONS": quick.JVM}
    return subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, timeout=540, check=False
    )


def test_the_program_of_the_readme_can_be_run_twice_and_prints_what_the_page_says(tmp_path: Path) -> None:
    page = REPOSITORY / "README.md"
    program = _examples(page)[0]
    told = next(b for b in blocks(page.read_text(encoding="utf-8")) if b.language == "text")
    first, second = (_ran([sys.executable, "-c", program], tmp_path) for _ in range(2))
    assert first.returncode == second.returncode == 0, second.stderr
    assert first.stdout.splitlines() == second.stdout.splitlines() == list(told.lines)


@pytest.mark.promise("The examples of these pages run (those that start Spark: in `make full`)")
@pytest.mark.parametrize("page", _cases())
def test_examples_of_the_page_run(page: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(REPOSITORY / "tests" / "run_page.py"), str(page)]
    done = _ran(command, tmp_path)
    assert done.returncode == 0, f"{_name(page)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_of_the_page_lead_somewhere(page: Path) -> None:
    dead = []
    for target in _links(page):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        other = (page.parent / path).resolve() if path else page
        if not other.exists() or (anchor and other.suffix == ".md" and anchor not in _anchors(other)):
            dead.append(target)
    assert not dead, f"{_name(page)} links to nothing: {dead}"


def test_a_page_runs_in_order_and_leaves_out_what_is_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nx = 1\n```\n\n"
        "```console\n$ echo one > \\\n> out\nprinted by it\n```\n\n"
        "<!-- no-run: needs a cluster -->\n```python\nx = 'left out'\n```\n\n"
        "```sh\nmake everything\n```\n\n"
        "```python\nfrom pathlib import Path\nPath('out').write_text(Path('out').read_text() + str(x))\n```\n"
    )
    assert run(page) == 3
    assert (tmp_path / "out").read_text() == "one\n1"


@pytest.mark.parametrize("example", ["```python\nraise KeyError\n```\n", "```console\n$ false | true\n```\n"])
def test_an_example_that_fails_is_noticed(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(example)
    with pytest.raises((KeyError, SystemExit)):
        run(page)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_files_and_tests_that_the_page_names_exist(page: Path) -> None:
    assert not missing(_prose(page))


def test_a_file_or_a_test_that_is_not_there_is_found() -> None:
    lines = [
        "`state/core/state.py`, `test_docs.py::missing`, `::_named`, `state/spine/*.txt`: all there.",
        "`state/gone.py`; `test_docs.py::test_gone`, `::test_gone_too`",
    ]
    assert missing(lines) == {"state/gone.py", "test_docs.py::test_gone", "test_docs.py::test_gone_too"}


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize("example", sorted((REPOSITORY / "docs" / "examples").glob("*.py")), ids=_name)
def test_the_notebook_runs(example: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(example)]
    done = _ran(command, tmp_path)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
