"""Runs the examples of one Markdown page, from top to bottom, in the current directory.

    python tests/run_page.py README.md

Blocks marked `python` share one namespace. Of blocks marked `console`, the lines after `$ ` are run
(`> ` continues one); blocks marked `bash` or `sh` are run whole. Shell blocks that begin with `make`,
`git clone` or `pip install` are about setting up, and are left out. `<!-- no-run: reason -->` on the
line before a block leaves it out, too.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SHELL = ("bash", "console", "sh", "shell")
_SETTING_UP = re.compile(r"(make|git clone|pip install)\b")
_NO_RUN = re.compile(r"<!-- no-run: (\S.*) -->")
_FENCE = re.compile(r"( *)(`{3,}|~{3,}) *([\w-]*)")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its lines without the fence's indent, and the line where they begin.

    `no_run` is the reason why it is no example to be run; empty if it is one.
    """

    language: str
    lines: tuple[str, ...]
    line: int
    no_run: str = ""

    @property
    def script(self) -> str:
        """What the shell is to do."""
        if self.language != "console":
            return "\n".join(self.lines)
        return "\n".join(x[2:] for x in self.lines if x.startswith(("$ ", "> ")))

    @property
    def runs(self) -> bool:
        """Whether it is an example to be run."""
        if self.no_run or self.language not in ("python", *_SHELL):
            return False
        return self.language == "python" or not _SETTING_UP.match(self.script.lstrip())


def blocks(text: str) -> Iterator[Block]:
    """All fenced blocks of a page in order."""
    lines = text.splitlines()
    before, at = "", 0
    while at < len(lines):
        opening = _FENCE.match(lines[at])
        if opening:
            indent, fence, language = opening.groups()
            start = at + 1
            at = start
            while at < len(lines) and lines[at].strip() != fence:
                at += 1
            inside = tuple(x.removeprefix(indent) for x in lines[start:at])
            if at == len(lines) or any(fence in line for line in inside):
                raise ValueError(f"the block that begins in line {start} is not closed")
            left_out = _NO_RUN.fullmatch(before.strip())
            yield Block(language, inside, start + 1, left_out[1] if left_out else "")
        if at < len(lines) and lines[at].strip():
            before = lines[at]
        at += 1


def run(page: Path) -> int:
    """Run the page's examples; an error leaves with the page and line. Gives their number."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    }
    namespace: dict[str, object] = {"__name__": "__page__"}
    count = 0
    for block in blocks(page.read_text(encoding="utf-8")):
        if not block.runs:
            continue
        count += 1
        if block.language == "python":
            # Empty lines in front: an error then names the line of the page.
            source = "\n" * (block.line - 1) + "\n".join(block.lines)
            exec(compile(source, str(page), "exec"), namespace)
        else:
            print(f"+ {block.script}", flush=True)
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.script], env=environment, check=False
            )
            if done.returncode:
                raise SystemExit(f"{page}:{block.line}: the shell example ended with {done.returncode}")
    return count


if __name__ == "__main__":
    print(f"{run(Path(sys.argv[1]).resolve())} examples ran")
