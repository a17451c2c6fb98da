"""One word, one thing: retired words stay out of code and pages, and a class name means one class."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
CODE = sorted([*REPOSITORY.glob("src/**/*.py"), *REPOSITORY.glob("simulation/**/*.py")])
PAGES = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")])
# A sentence with one of these must be read twice.
RIDDLES = re.compile(r"\b(whoever|nobody|somebody|anybody|of one that)\b", re.IGNORECASE)
# Two public names, or a public name and a stored one, that mean the same thing in two places.
SAME_NAME = {"CriticalHold", "Snapshot", "Updates"}


def _name(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def _retired() -> set[str]:
    """The words in the last column of the glossary."""
    text = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
    _, _, section = text.partition("\n## Words\n")
    rows = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row.split("|")[3])}


def test_the_glossary_names_retired_words() -> None:
    assert len(_retired()) > 15


# The most words of a page (`wc -w`), and of all pages together: a sentence more takes one away elsewhere.
MOST = {
    "ARCHITECTURE.md": 4_000,
    "CHANGELOG.md": 200,
    "docs/benchmarks.md": 3_000,
    "docs/correctness.md": 2_500,
    "docs/decisions.md": 5_000,
    "docs/guide.md": 7_500,
    "docs/peers.md": 1_000,
    "docs/spark.md": 6_300,
}
MOST_OF_ALL = 50_000


def test_pages_have_few_words() -> None:
    words = {_name(page): len(page.read_text(encoding="utf-8").split()) for page in PAGES}
    assert {name: words[name] for name, most in MOST.items() if words[name] > most} == {}
    assert sum(words.values()) <= MOST_OF_ALL, "cut a sentence for each one that comes"


@pytest.mark.parametrize("module", CODE, ids=_name)
def test_no_retired_word_comes_back(module: Path) -> None:
    text = module.read_text(encoding="utf-8")
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    assert not _retired() & {module.stem, *(one.string for one in tokens if one.type == tokenize.NAME)}


@pytest.mark.parametrize("path", [*CODE, *PAGES], ids=_name)
def test_sentences_name_their_subject(path: Path) -> None:
    found = [line for line in path.read_text(encoding="utf-8").splitlines() if RIDDLES.search(line)]
    assert not found


def test_a_class_name_means_one_class() -> None:
    places = defaultdict(list)
    for module in CODE:
        for node in ast.parse(module.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(_name(module))
    assert {name: found for name, found in places.items() if len(found) > 1 and name not in SAME_NAME} == {}


def test_only_holds_are_settled() -> None:
    found = {
        _name(module)
        for module in CODE
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.strip("_") in ("settle", "settled")
    }
    assert found == {"src/tidelake/state/life/holds.py"}
