"""Each promise beside a test says something, and its rule and its other tests are there."""

import functools
import importlib.util
import re
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
_SCRIPT = REPOSITORY / "setup" / "site" / "promises.py"
_SPEC = importlib.util.spec_from_file_location("promises", _SCRIPT)
assert _SPEC is not None and _SPEC.loader is not None
promises = importlib.util.module_from_spec(_SPEC)
sys.modules["promises"] = promises
_SPEC.loader.exec_module(promises)
_CODE = re.compile(r"`([^`]+)`")
_RULE = re.compile(r"[a-z]+(?:-[a-z]+)+")
# A file is named from one of these on.
_ROOTS = ("src/tidelake", "tests", "")


@functools.cache
def _words() -> frozenset[str]:
    """All names that the code has."""
    files = [path for part in ("src", "simulation", "tests") for path in (REPOSITORY / part).rglob("*.py")]
    return frozenset(x for path in files for x in re.findall(r"\w+", path.read_text(encoding="utf-8")))


@functools.cache
def _rules() -> frozenset[str]:
    core = REPOSITORY / "src/tidelake/state/core"
    source = "".join(
        (core / f"{name}.py").read_text(encoding="utf-8") for name in ("invariants", "batchrules")
    )
    return frozenset(x for x in re.findall(r'"([a-z-]+)"', source) if _RULE.fullmatch(x))


def _is_there(code: str) -> bool:
    """Whether what a rule names in backquotes is a rule of the state, a file, or a name of the code."""
    if _RULE.fullmatch(code):
        return code in _rules()
    if re.search(r"\.(py|md|toml|txt)$", code):
        return any((REPOSITORY / root / code).exists() for root in _ROOTS)
    return set(re.findall(r"\w+", code)) <= _words()


@functools.cache
def _all() -> "list[promises.Promise]":
    return list(promises.promises())


@functools.cache
def _defined(file: str) -> frozenset[str]:
    text = (REPOSITORY / "tests" / file).read_text(encoding="utf-8")
    return frozenset(re.findall(r"^ *(?:def|class) (\w+)", text, re.MULTILINE))


def _runs(test: str) -> bool:
    """Whether a `file::test`, or a file, is there."""
    file, _, name = test.partition("::")
    here = list((REPOSITORY / "tests").glob(file))
    return bool(here) and (not name or name in _defined(file))


def wrong(promise: "promises.Promise") -> list[str]:
    """What a promise lacks or names in vain."""
    found = [] if promise.text.strip() else ["it says nothing"]
    found += [f"no {code}" for code in _CODE.findall(promise.rule) if not _is_there(code)]
    return found + [f"no {test}" for test in promise.tests if not _runs(test)]


def test_each_promise_names_what_is_there() -> None:
    assert len(_all()) > 500
    assert {f"{x.file}::{x.test}: {x.text}": wrong(x) for x in _all() if wrong(x)} == {}


def test_no_promise_stands_twice() -> None:
    texts = [x.text for x in _all()]
    assert sorted({x for x in texts if texts.count(x) > 1}) == []


def test_every_rule_of_the_state_keeps_a_promise() -> None:
    kept = {code for x in _all() for code in _CODE.findall(x.rule)}
    assert _rules() - kept == set()


@pytest.mark.parametrize(
    ("text", "rule", "also", "expected"),
    [
        ("it holds", "`Shard`, `times-in-bounds` in `state/core/invariants.py`", ("::wrong",), []),
        (" ", "", (), ["it says nothing"]),
        ("it holds", "`no-such-rule`", (), ["no no-such-rule"]),
        ("it holds", "`state/gone.py`", (), ["no state/gone.py"]),
        ("it holds", "", ("::test_gone", "gone.py"), ["no test_promises.py::test_gone", "no gone.py"]),
    ],
)
def test_what_a_promise_names_in_vain_is_found(
    text: str, rule: str, also: tuple[str, ...], expected: list[str]
) -> None:
    promise = promises.Promise(text, rule, "test_promises.py", "wrong", also)
    assert wrong(promise) == expected


def test_the_tables_have_every_promise_in_its_folder() -> None:
    shown = promises.tables(_all())
    assert shown.count("\n| ") - shown.count("| promise |") == len(_all())
    assert "### state\n" in shown and "### all of it\n" in shown
