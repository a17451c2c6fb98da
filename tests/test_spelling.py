"""One spelling for an idea: docs/reference/names.md against arguments, options of Spark, and flags."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest

import tidelake
from tidelake.cli.main import cli

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "names.md"


def rows() -> list[tuple[str, str, str]]:
    """Python's name, Spark's option and the flag of each idea; empty where the page has a dash."""
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[1].startswith("`"):
            python, option, flag = (re.match(r"`([^`]+)`", cell) for cell in cells[1:])
            assert python is not None
            found.append((python[1], option[1] if option else "", flag[1] if flag else ""))
    return found


def alone(where: str) -> set[str]:
    """The names that the page says are in one place only."""
    (line,) = re.findall(rf"^\| {where} \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    return set(re.findall(r"`([^`]+)`", line))


def flags() -> set[str]:
    return {
        option
        for name, command in cli.commands.items()
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for option in parameter.opts
    }


def arguments() -> Iterator[str]:
    """The arguments of all public functions and methods."""
    places: list[object] = [tidelake, tidelake.Lake, tidelake.Collection]
    try:
        import tidelake.spark as ts
        from tidelake.spark.envelopes.named import ENVELOPES
    except ImportError:
        pytest.skip("needs PySpark")
    places.append(ts)
    for place in places:
        for name in dir(place):
            found = getattr(place, name)
            if callable(found) and not name.startswith("_"):
                yield from inspect.signature(found).parameters
    for kind in ENVELOPES.values():
        yield from (field.name for field in fields(kind))


def test_an_option_and_a_flag_are_spelled_as_the_argument() -> None:
    for python, option, flag in rows():
        first, *rest = python.removesuffix("_s").split("_")
        if option != "checkpointLocation":
            assert option in ("", first + "".join(map(str.capitalize, rest))), python
        assert flag in ("", "--" + "-".join([first, *rest])), python


def test_the_page_has_every_flag_and_no_other() -> None:
    shared = {flag for _, _, flag in rows()} - {""}
    assert flags() == shared | alone("flags")
    assert not shared & alone("flags")


def test_the_page_has_every_option_of_the_format_and_no_other() -> None:
    pytest.importorskip("pyspark")
    from tidelake.spark.source.options import READ, STREAM_READ, WRITE

    shared = {option for _, option, _ in rows()} - {""}
    assert {*READ, *STREAM_READ, *WRITE} == shared | alone("Spark options")
    assert not shared & alone("Spark options")


def test_every_name_on_the_page_is_an_argument_in_python() -> None:
    known = set(arguments())
    assert {python for python, _, _ in rows()} <= known
    # Nothing else is called as an argument of another idea; these are what calls work on.
    others = {name.removeprefix("--").replace("-", "_") for name in alone("flags") | alone("Spark options")}
    assert others & known == {"path", "collection", "spark"}
