"""Every command and its options, for the site: read from the decorators, without importing the package."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent.parent / "src" / "tidelake" / "cli"


@dataclass(frozen=True)
class Command:
    """A command: its name, what it does, and each option with its help."""

    name: str
    what: str
    options: tuple[tuple[str, str], ...]


def _texts(call: ast.Call) -> list[str]:
    return [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def _options(by: ast.expr, shared: dict[str, list[ast.expr]]) -> Iterator[tuple[str, str]]:
    """The options that a decorator adds: the names of each with what it takes, and its help."""
    called = by.func if isinstance(by, ast.Call) else by
    if isinstance(called, ast.Name):
        for one in shared.get(called.id, []):
            yield from _options(one, shared)
    elif isinstance(by, ast.Call) and ast.unparse(called) == "click.option":
        given = {one.arg: one.value for one in by.keywords}
        names = ", ".join(name for name in _texts(by) if name.startswith("-"))
        takes = ast.literal_eval(given["metavar"]) if "metavar" in given else ""
        yield f"{names} {takes}".strip(), ast.literal_eval(given["help"]) if "help" in given else ""


def _shared(tree: ast.Module) -> Iterator[tuple[str, list[ast.expr]]]:
    """What a name of a module adds as a decorator: one option, or all that a function goes through."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, [node.value]
        elif isinstance(node, ast.FunctionDef):
            loops = [one.iter for one in node.body if isinstance(one, ast.For)]
            # The last one that is added comes first in the help.
            yield node.name, [x for one in loops if isinstance(one, ast.Tuple) for x in reversed(one.elts)]


def commands() -> list[Command]:
    """All commands, by name."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))]
    shared = dict(found for tree in trees for found in _shared(tree))
    return sorted((one for tree in trees for one in _commands(tree, shared)), key=lambda one: one.name)


def _commands(tree: ast.Module, shared: dict[str, list[ast.expr]]) -> Iterator[Command]:
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        made = [
            one
            for one in node.decorator_list
            if isinstance(one, ast.Call) and ast.unparse(one.func) == "cli.command"
        ]
        if made:
            name = (_texts(made[0]) or [node.name.replace("_", "-")])[0]
            options = tuple(found for one in node.decorator_list for found in _options(one, shared))
            yield Command(
                name, (ast.get_docstring(node) or "").partition("\n\n")[0].replace("\n", " "), options
            )


def tables() -> str:
    """The commands, and a table of options for each."""
    lines = []
    for one in commands():
        lines += [f"### {one.name}", "", one.what, ""]
        if one.options:
            lines += ["| option | meaning |", "|---|---|"]
            lines += [f"| `{names}` | {told.replace('|', chr(92) + '|')} |" for names, told in one.options]
            lines.append("")
    return "\n".join([*lines, ""])
