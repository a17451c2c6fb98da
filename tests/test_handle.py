"""Errors of calls name the argument that does not fit; other errors stay as they are."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pytest

import tidelake
from tidelake.errors import UsageError
from tidelake.handle import Handle, door, fits
from tidelake.model.instants import TimeLike


class Box(Handle):
    """A handle whose method fails as libraries do."""

    def fill(self, names: Sequence[str], count: int | None = None, *, text: object = "") -> int:
        """Fail for what does not fit, and for `count=7` as a bug would."""
        return sum(map(len, names)) // (0 if count == 7 else 1) + (count or 0) + len(str(text).encode())

    @staticmethod
    def made(path: "str | os.PathLike[str]") -> int:
        """Fail if it is no path."""
        return len(os.fspath(path))


@pytest.mark.promise(
    "An argument that does not fit its annotation is named by the error that it causes; other "
    "errors stay what they are",
    rule="`handle.py`",
    also=["test_handle.py"],
)
def test_the_argument_that_does_not_fit_is_named():
    for call, said in (
        (lambda: Box().fill(5), r"names=5 is a int, and must be Sequence\[str\]"),
        (lambda: Box().fill([None]), r"names=\[None\] is a list, and must be Sequence\[str\]"),
        (lambda: Box().fill([], "x"), r"count='x' is a str, and must be int \| None"),
        (lambda: Box().fill([], text="\ud800"), r"text='\\ud800' is not valid Unicode"),
        (lambda: Box.made(3), r"path=3 is a int, and must be"),
    ):
        with pytest.raises(UsageError, match=said) as caught:
            call()
        assert caught.value.__cause__ is not None
    assert Box().fill(["ab"], 1) == 3
    assert Box.made("ab") == 2


def test_a_bug_and_a_wrong_call_stay_what_they_are():
    with pytest.raises(ZeroDivisionError):
        Box().fill([], 7)
    with pytest.raises(TypeError, match="unexpected keyword") as caught:
        Box().fill([], size=1)
    assert not isinstance(caught.value, UsageError)


@pytest.mark.parametrize(
    ("value", "kind", "does"),
    [
        (1, int, True),
        ("a", int, False),
        ("\ud800", str, False),
        (1, float, True),
        ("a", Sequence[str], False),
        (("a",), Sequence[str], True),
        ({"a": 1}, Mapping[str, int], True),
        ({1: 1}, Mapping[str, int], False),
        ((1, 2), tuple[int, ...], True),
        ((1, "a"), tuple[int, ...], False),
        ((1, "a"), tuple[int, str], True),
        ("x", Literal["x", "y"], True),
        (1, Literal["x"], False),
        (None, int | None, True),
        (object(), Any, True),
        ({}, TimeLike, False),
        (tidelake.Frontier.of(3), "Frontier | None", True),
        (3, "Frontier | None", False),
        (print, "Callable[[Frontier | None], None] | None", True),
        (3, "Callable[[Frontier | None], None] | None", False),
    ],
)
def test_which_values_fit(value, kind, does):
    assert fits(value, kind) is does


def test_functions_are_doors_too():
    @door
    def half(n: int) -> int:
        return n // 2

    assert half(4) == 2
    with pytest.raises(UsageError, match="n='a' is a str, and must be int"):
        half("a")


def test_a_long_message_is_cut_in_its_middle():
    text = str(UsageError("begin" + "x" * 100_000 + "remedy"))
    assert len(text) < 5_000
    assert text.startswith("begin")
    assert text.endswith("remedy")
