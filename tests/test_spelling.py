"""One spelling for an idea: the tables of names against arguments, options of Spark, and flags."""

import inspect
import sys
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import click
import pytest

import tidelake
from tidelake.cli.main import cli

SITE = Path(__file__).resolve().parent.parent / "setup" / "site"
sys.path.insert(0, str(SITE))
spelling = import_module("spelling")


def rows() -> list[tuple[str, str, str]]:
    """Python's name, Spark's option and the flag of each idea; empty where there is none."""
    return [(one.argument, one.option, one.flag) for ideas in spelling.IDEAS.values() for one in ideas]


def alone(where: str) -> set[str]:
    """The names that are in one place only."""
    return set({"flags": spelling.FLAGS, "Spark options": spelling.OPTIONS}[where])


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
