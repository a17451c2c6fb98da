"""Every field that is stored, or travels between processes, is explained by the docstring of its class."""

import importlib.util
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from re import search

import pytest

from tidelake.state.core import codec
from tidelake.state.core.edits import Edits
from tidelake.state.core.state import Hold, ShardState, StateFields

_SCRIPT = Path(__file__).resolve().parents[2] / "setup" / "site" / "stored.py"
_SPEC = importlib.util.spec_from_file_location("stored", _SCRIPT)
assert _SPEC is not None and _SPEC.loader is not None
stored = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(stored)
CLASSES = [(file, name) for file, names in stored.STORED.items() for name in names if name != "StateFields"]


def unexplained(kind: type, text: str) -> set[str]:
    """Fields of a class that a text does not name."""
    assert is_dataclass(kind)
    return {field.name for field in fields(kind) if not search(rf"\b{field.name}\b", text)}


@pytest.mark.parametrize(("file", "name"), CLASSES, ids=lambda x: x)
def test_every_field_is_explained_beside_it(file: str, name: str) -> None:
    module = import_module("tidelake." + file.removesuffix(".py").replace("/", "."))
    kind = getattr(module, name)
    # A state and the edits of one have the fields of `StateFields`.
    text = f"{kind.__doc__} {StateFields.__doc__ if kind in (ShardState, Edits) else ''}"
    assert unexplained(kind, text) == set()


def test_the_image_of_a_state_has_the_fields_of_a_state() -> None:
    text = f"{ShardState.__doc__} {StateFields.__doc__}"
    assert unexplained(codec._Image, text) == set()


def test_a_field_without_a_word_is_found() -> None:
    assert unexplained(Hold, (Hold.__doc__ or "").replace("pins", "")) == {"pins"}


def test_the_tables_have_every_class() -> None:
    shown = stored.tables()
    assert shown.count("### ") == len(CLASSES) + 1
    assert "| `nonce` | fresh for every attempt, so that a process knows its own entry. |" in shown
