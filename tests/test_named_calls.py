"""Commands, flags and calls that errors, docstrings and pages name are there."""

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

import tidelake
import tidelake.spark
import tidelake.tables
from tidelake.cli.main import cli
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.distributed import Distributed
from tidelake.lake.api.lake import Lake
from tidelake.lake.api.readers import CollectionReader
from tidelake.lake.api.writer import Writer
from tidelake.lake.groups.transactions import Transaction

REPOSITORY = Path(__file__).resolve().parent.parent
CODE = sorted(REPOSITORY.glob("src/tidelake/**/*.py"))
PAGES = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")])
# What a name before the point stands for, and the names that it has.
OWNERS = {
    **dict.fromkeys(("lake", "Lake"), Lake),
    **dict.fromkeys(("collection", "Collection"), Collection),
    **dict.fromkeys(("collection.distributed", "distributed"), Distributed),
    **dict.fromkeys(("Writer",), Writer),
    **dict.fromkeys(("Reader",), CollectionReader),
    **dict.fromkeys(("transaction", "Transaction"), Transaction),
    **dict.fromkeys(("ts", "tidelake.spark"), tidelake.spark),
    "tidelake.tables": tidelake.tables,
    "tidelake": tidelake,
}
_COMMAND = re.compile(r"`tidelake ([a-z][a-z-]*)([^`]*)`")
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_OWNER = "|".join(sorted(map(re.escape, OWNERS), key=len, reverse=True))
_CALL = re.compile(rf"(?<![\w./])({_OWNER})\.(\w+)\(")
_PAGE = re.compile(r"\bdocs/[\w/-]+\.md")


@functools.cache
def _flags(command: str) -> frozenset[str]:
    parameters = cli.commands[command].params
    return frozenset(opt for one in parameters for opt in (*one.opts, *one.secondary_opts)) | {"--help"}


def _has(owner: object, name: str) -> bool:
    return hasattr(owner, name) or name in getattr(owner, "__all__", ())


def gone(text: str) -> Iterator[str]:
    """What a text names in vain: a command, a flag of one, a page, or a call."""
    for command, rest in _COMMAND.findall(text):
        if command not in cli.commands:
            yield f"tidelake {command}"
        else:
            yield from (f"tidelake {command} {x}" for x in _FLAG.findall(rest) if x not in _flags(command))
    yield from (page for page in _PAGE.findall(text) if not (REPOSITORY / page).exists())
    for owner, name in _CALL.findall(text):
        if not _has(OWNERS[owner], name):
            yield f"{owner}.{name}"


def _texts(module: Path) -> str:
    """All texts of a module: messages and docstrings; what an f-string puts in is a gap."""
    found = []
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(x.value if isinstance(x, ast.Constant) else "…" for x in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return "\n".join(found)


@pytest.mark.promise(
    "Errors, docstrings and pages name commands, flags and calls that are there",
    rule="`cli`, `Lake`, `Collection`",
    also=["::test_what_is_gone_is_found"],
)
@pytest.mark.full
def test_what_errors_and_docstrings_name_is_there() -> None:
    named = {str(module.relative_to(REPOSITORY)): {*gone(_texts(module))} for module in CODE}
    assert {module: found for module, found in named.items() if found} == {}


def test_what_pages_name_is_there() -> None:
    named = {page.name: {*gone(re.sub(r"\s+", " ", page.read_text(encoding="utf-8")))} for page in PAGES}
    assert {page: found for page, found in named.items() if found} == {}


def test_what_is_gone_is_found() -> None:
    text = (
        "`tidelake backup LAKE`, `tidelake copy A --quick --slow`, docs/gone.md, lake.vanish(1), lake.drop(x)"
    )
    assert [*gone(text)] == ["tidelake backup", "tidelake copy --slow", "docs/gone.md", "lake.vanish"]


def test_every_field_of_a_setting_that_pages_name_is_there() -> None:
    settings = {one.name for one in fields(tidelake.Config)}
    pages = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert {*re.findall(r"`Config\.(\w+)`", pages)} <= settings
