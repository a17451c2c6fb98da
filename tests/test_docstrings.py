"""Docstrings name the arguments and attributes that are there."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
CODE = sorted([*REPOSITORY.glob("src/**/*.py"), *REPOSITORY.glob("simulation/**/*.py")])
_SECTION = re.compile(r"^(Args|Attributes):\n((?:(?: {4}.*)?\n?)*)", re.MULTILINE)
_NAME = re.compile(r"^    ([*]*\w+(?:, [*]*\w+)*):(?: |$)", re.MULTILINE)


def _named(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, section: str) -> set[str]:
    found: set[str] = set()
    for title, text in _SECTION.findall(ast.get_docstring(node) or ""):
        if title == section:
            found |= {x.strip(" *") for names in _NAME.findall(text) for x in names.split(",")}
    return found


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    given = node.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    return {x.arg for x in (*named, given.vararg, given.kwarg) if x is not None}


def _parts(node: ast.ClassDef) -> Iterator[str]:
    """Fields, attributes, methods, and arguments of the constructor of a class."""
    for inner in ast.walk(node):
        match inner:
            case ast.FunctionDef():
                yield inner.name
                if inner.name in ("__init__", "__new__"):
                    yield from _arguments(inner)
            case ast.Attribute(value=ast.Name(id="self" | "cls" | "made"), attr=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=targets):
                yield from (x.id for target in targets for x in ast.walk(target) if isinstance(x, ast.Name))


@functools.cache
def _trees() -> list[ast.Module]:
    return [ast.parse(module.read_text(encoding="utf-8")) for module in CODE]


@functools.cache
def _known() -> dict[str, tuple[set[str], tuple[str, ...]]]:
    """Of each class of the code, by its name, what it has and the names of its bases."""
    found: dict[str, tuple[set[str], tuple[str, ...]]] = {}
    for tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                has, bases = found.get(node.name, (set(), ()))
                found[node.name] = (has | {*_parts(node)}, bases + _bases(node))
    return found


def _bases(node: ast.ClassDef) -> tuple[str, ...]:
    return tuple(ast.unparse(x).partition("[")[0].rpartition(".")[2] for x in node.bases)


def _inherited(bases: tuple[str, ...]) -> set[str]:
    found: set[str] = set()
    seen: set[str] = set()
    left = [*bases]
    while left:
        base = left.pop()
        if base not in seen:
            seen.add(base)
            has, above = _known().get(base, (set(), ()))
            found |= has
            left += above
    return found


def strays(tree: ast.Module) -> set[str]:
    """What docstrings explain and what is not there, as `owner.name`."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found |= {f"{node.name}.{x}" for x in _named(node, "Args") - _arguments(node)}
        elif isinstance(node, ast.ClassDef):
            told = _named(node, "Attributes") | _named(node, "Args")
            found |= {f"{node.name}.{x}" for x in told - {*_parts(node)} - _inherited(_bases(node))}
    return found


@pytest.mark.full
def test_docstrings_name_what_is_there() -> None:
    assert sorted(x for tree in _trees() for x in strays(tree)) == []


def test_a_name_that_is_gone_is_found() -> None:
    told = "    Attributes:\n        gate: old.\n        new: is there.\n"
    args = "    Args:\n        x: one.\n        y, z: more.\n\n    Returns:\n        q: no\n"
    text = f'class A:\n    """A.\n\n{told}    """\n    new: int\ndef f(x):\n    """F.\n\n{args}    """\n'
    assert strays(ast.parse(text)) == {"A.gate", "f.y", "f.z"}
