"""The site names every page, the reference every public name, and the pictures are what is drawn."""

import importlib.util
import inspect
import re
import subprocess
import sys
import tomllib
import typing
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import click
import pytest

import tidelake
import tidelake.spark
from tidelake.cli.main import cli
from tidelake.metrics import CATALOGUE
from tidelake.shard.care.finding import KINDS

REPOSITORY = Path(__file__).resolve().parent.parent
SITE = REPOSITORY / "setup" / "site"
REFERENCE = REPOSITORY / "docs" / "reference"
_NAMED = re.compile(r"^::: (\S+)$", re.MULTILINE)


def _loaded(path: Path) -> ModuleType:
    """A script of the repository, as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _pages_of(navigation: list[object]) -> Iterator[str]:
    for entry in navigation:
        if isinstance(entry, str):
            yield entry
        else:
            assert isinstance(entry, dict)
            for below in entry.values():
                yield from _pages_of(below if isinstance(below, list) else [below])


def test_the_navigation_names_every_page_once_and_nothing_else() -> None:
    settings = tomllib.loads((SITE / "zensical.toml").read_text(encoding="utf-8"))
    named = sorted(_pages_of(settings["project"]["nav"]))
    assert named == sorted(p.relative_to(REPOSITORY).as_posix() for p in _loaded(SITE / "build.py").pages())


def test_what_is_made_for_the_site_has_its_place_on_a_page() -> None:
    build = _loaded(SITE / "build.py")
    asked = [x for page in build.pages() for x in build._MADE.findall(page.read_text(encoding="utf-8"))]
    assert sorted(asked) == sorted(build.MADE)
    made = {name: make() for name, make in build.MADE.items()}
    rows = [
        f"| `{m.name}` | {m.kind} | {m.unit or '–'} | {m.label or '–'} | {m.meaning} |" for m in CATALOGUE
    ]
    assert [line for line in made["metrics"].splitlines() if line.startswith("| `")] == rows
    assert "| `shard/engine/lease.py` | Leases: " in made["modules"]
    assert "| `--as-of TIME` | " in made["commands"] and "| `as_of` | `asOf` | `--as-of` |" in made["names"]


def test_the_site_has_every_command_and_option_as_the_help_tells_them() -> None:
    _loaded(SITE / "build.py")
    made = {one.name: one for one in import_module("commands").commands()}
    assert made.keys() == cli.commands.keys()
    for name, command in cli.commands.items():
        options = [one for one in command.params if isinstance(one, click.Option)]
        told = [(names.split("/")[0].split(" ")[0].rstrip(","), what) for names, what in made[name].options]
        assert told == [(one.opts[0], one.help or "") for one in options], name


def test_the_site_has_every_option_of_a_read() -> None:
    pytest.importorskip("pyspark")
    from tidelake.spark.source.options import MEANINGS, READ

    told = {name for names in MEANINGS for name in re.findall(r"`([^`]+)`", names)}
    assert told == {*READ} - {"path", "collection", "storeOptions"}


def test_every_kind_of_finding_is_declared() -> None:
    told = re.compile(r"(?:_tell|tell|Finding)\(\s*\"([a-z]+-[a-z-]+)\"")
    source = REPOSITORY / "src" / "tidelake"
    rooms = [*(source / "shard" / "care").glob("*.py"), *(source / "lake" / "admin").glob("*.py")]
    kinds = {kind for path in rooms for kind in told.findall(path.read_text(encoding="utf-8"))}
    declared = {name for names in KINDS for name in re.findall(r"`([^`]+)`", names)}
    assert len(kinds) > 25 and kinds <= declared, kinds - declared


def _in_reference() -> list[str]:
    """What the pages of the reference show, by its full name."""
    pages = sorted(REFERENCE.glob("*.md"))
    return [name for page in pages for name in _NAMED.findall(page.read_text(encoding="utf-8"))]


def _object(name: str) -> object:
    """What a full name stands for."""
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


def _public(module: ModuleType) -> dict[str, object]:
    return {f"{module.__name__}.{name}": getattr(module, name) for name in module.__all__}


def _classes(hint: object) -> Iterator[type]:
    """The classes of Tidelake that an annotation names."""
    for inside in typing.get_args(hint):
        yield from _classes(inside)
    if isinstance(hint, type) and hint.__module__.startswith("tidelake"):
        yield hint


def _given(public: object, known: dict[str, object]) -> Iterator[type]:
    """The classes of what a function, or the methods and properties of a class, return."""
    members = [public] if inspect.isfunction(public) else []
    if inspect.isclass(public):
        statics = [inspect.getattr_static(public, name) for name in dir(public) if not name.startswith("_")]
        members = [getattr(x, "fget", None) or getattr(x, "__func__", None) or x for x in statics]
    for member in members:
        if inspect.isfunction(member):
            # Its arguments may be of classes that only type checkers import.
            returned = SimpleNamespace(__annotations__={"return": member.__annotations__.get("return")})
            yield from _classes(
                typing.get_type_hints(returned, vars(sys.modules[member.__module__]), known)["return"]
            )


def test_every_public_name_has_its_place_in_the_reference() -> None:
    named = _in_reference()
    assert len(named) == len(set(named))
    public = _public(tidelake) | _public(tidelake.spark)
    assert public.keys() <= set(named)


def test_what_public_calls_give_has_its_place_in_the_reference() -> None:
    shown = {name: _object(name) for name in _in_reference()}  # each of them is there
    by_name = {name.rpartition(".")[2]: found for name, found in shown.items()}
    public = _public(tidelake) | _public(tidelake.spark)
    del public["tidelake.spark.TidelakeSource"]  # its methods are for Spark, and not shown
    given = {found for each in public.values() for found in _given(each, by_name)}
    shown |= {name: found for name, found in vars(tidelake.errors).items() if inspect.isclass(found)}
    missing = {found.__qualname__ for found in given if found not in shown.values()}
    assert not missing, f"name them on a page of docs/reference: {missing}"


def test_the_pictures_are_what_the_script_draws() -> None:
    script = REPOSITORY / "docs" / "pictures" / "draw.py"
    drawn = {name: draw().svg() for name, draw in _loaded(script).PICTURES.items()}
    there = {path.name: path.read_text(encoding="utf-8") for path in script.parent.glob("*.svg")}
    assert there == drawn, "run: python docs/pictures/draw.py"


def test_the_first_page_has_no_long_lines() -> None:
    page = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert [line for line in page.splitlines() if len(line) > 200] == []


def test_a_link_to_nothing_is_found_in_what_was_built(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "index.html").write_text(
        '<h1 id="top">x</h1><a href="docs/a.html#here">x</a><a href="#top">x</a><a href="https://example.org">x</a>'
        '<a href="docs/gone.html">x</a><a href="docs/a.html#gone">x</a>'
        '<script src="https://example.org/x.js"></script>'
    )
    (tmp_path / "docs" / "a.html").write_text(
        '<p id="here">x</p><a href="../index.html">x</a><img src="gone.svg">'
    )
    assert _loaded(SITE / "build.py").dead_links(tmp_path) == [
        "docs/a.html links to gone.svg, which is not there",
        "index.html links to docs/a.html#gone, which has no such anchor",
        "index.html links to docs/gone.html, which is not there",
        "index.html loads https://example.org/x.js",
    ]


@pytest.mark.full
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, str(SITE / "build.py"), "--into", str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode == 3:
        pytest.skip(f"the tools of the site cannot be installed here: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stdout[-4000:]
    for name in _in_reference():
        assert any(
            f'id="{name}"' in page.read_text(encoding="utf-8")
            for page in (tmp_path / "site" / "html" / "docs" / "reference").glob("*.html")
        ), name
