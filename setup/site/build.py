"""Builds the documentation site, strictly: a warning, a dead link or a file from another host is an error.

    python3 setup/site/build.py            # build/site/html/index.html
    python3 setup/site/build.py --into DIR

Needs Python 3.11 or newer and nothing else: the tools of requirements.txt are installed into an environment
of their own, build/site-venv, and stay there until requirements.txt changes. The pages are copied as they lie
in the repository, so that their links hold on the site as they do there.

Exit codes: 1 the site has errors; 3 the tools could not be installed.
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import venv
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent))
import arrangement_formats
import commands
import declared
import metrics_table
import modules
import promises
import spelling
import stored

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
TOOLS = REPOSITORY / "build" / "site-venv"
_LINK = re.compile(r"\]\(<?([^)\s>#]+)")
# The only lines that a build without warnings prints.
_QUIET = re.compile(r"Build started|No issues found|Build finished.*|")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_STRICT = "Aborted because --strict flag is set"
NOT_INSTALLED = 3
# Parts of pages that are made from the code, where a page has `<!-- made for the site: NAME -->`.
_MADE = re.compile(r"<!-- made for the site: (\w+) -->")
MADE = {
    "metrics": metrics_table.table,
    "modules": lambda: "## All modules\n\n" + modules.table(modules.modules()),
    "stored": stored.tables,
    "arrangement_formats": arrangement_formats.sections,
    "commands": commands.tables,
    "names": spelling.tables,
    "read_options": declared.read_options,
    "findings": declared.findings,
    "promises": lambda: "## All promises\n\n" + promises.tables(promises.promises()),
}


def pages() -> list[Path]:
    """Every page of the project."""
    return sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")])


def installed() -> bool:
    """Install the tools, unless they are as requirements.txt says; False if that fails."""
    wanted = HERE / "requirements.txt"
    stamp = TOOLS / "stamp"
    digest = hashlib.sha256(wanted.read_bytes() + str(TOOLS).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest and (TOOLS / "bin" / "python").exists():
        return True
    try:
        venv.create(TOOLS, clear=True, symlinks=True, with_pip=True)
    except subprocess.CalledProcessError:
        return False  # Debian keeps ensurepip in a package of its own
    pip = [str(TOOLS / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    done = subprocess.run([*pip, "--no-compile", "--require-hashes", "-r", str(wanted)], check=False)
    if done.returncode == 0:
        stamp.write_text(digest)
    return done.returncode == 0


def copy(place: Path) -> None:
    """Put the pages, the files that they link to, and the configuration where the site is built."""
    shutil.rmtree(place, ignore_errors=True)
    for page in pages():
        targets = {(page.parent / link).resolve() for link in _LINK.findall(page.read_text(encoding="utf-8"))}
        for file in [page, *(target for target in targets if target.is_file())]:
            to = place / "pages" / file.relative_to(REPOSITORY)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, to)
        to = place / "pages" / page.relative_to(REPOSITORY)
        to.write_text(
            _MADE.sub(lambda found: MADE[found[1]](), to.read_text(encoding="utf-8")), encoding="utf-8"
        )
    shutil.copyfile(HERE / "zensical.toml", place / "zensical.toml")
    (place / "src").symlink_to(REPOSITORY / "src", target_is_directory=True)


def build(place: Path) -> list[str]:
    """Make the HTML; gives what the tools complain of."""
    command = [str(TOOLS / "bin" / "zensical"), "build", "--strict", "--clean"]
    done = subprocess.run(
        command,
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    printed, _, _ = _COLOUR.sub("", done.stdout).partition("Traceback (most recent call last)")
    if _STRICT not in done.stdout:
        printed = _COLOUR.sub("", done.stdout)  # the trace is all that tells what went wrong
    said = [line for line in printed.splitlines() if not _QUIET.fullmatch(line)]
    return said or ([f"zensical ended with {done.returncode}"] if done.returncode else [])


class _Page(HTMLParser):
    """What a page of the site leads to, what it loads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag in ("a", "area") and "href" in found:
            self.links.add(found["href"])
        elif tag == "link" and "href" in found:
            self.loads.add(found["href"])
        if "src" in found:
            self.loads.add(found["src"])


def dead_links(site: Path) -> list[str]:
    """Links of the built pages that lead to nothing, and what they would load from other hosts."""
    parsed = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    parsed.pop(site / "404.html", None)  # shown at any address, so its links are absolute
    dead = []
    for path, page in parsed.items():
        name = path.relative_to(site)
        for link in sorted(page.links | page.loads):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loads and parts.scheme != "data":
                    dead.append(f"{name} loads {link}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                dead.append(f"{name} links to {link}, which is not there")
            elif (
                parts.fragment and target in parsed and unquote(parts.fragment) not in parsed[target].anchors
            ):
                dead.append(f"{name} links to {link}, which has no such anchor")
    return dead


def main() -> int:
    """Build, check, and tell where the site is, or what is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--into", type=Path, default=REPOSITORY / "build" / "site")
    place = parser.parse_args().into.resolve()
    if sys.version_info < (3, 11) or not installed():
        wanted = "Python 3.11 with venv and pip, and the packages of setup/site/requirements.txt"
        print(f"docs-site: the tools could not be installed; they need {wanted}", file=sys.stderr)
        return NOT_INSTALLED
    copy(place)
    errors = build(place) or dead_links(place / "html")
    print("\n".join(errors) or f"docs-site: {place / 'html' / 'index.html'}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
