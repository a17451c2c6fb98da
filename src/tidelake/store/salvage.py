"""Recovers entries from the files of a damaged log.

Owns the ways to read these files, and what proves that an entry is as it was written. Does not change the
files. Must not know where they come from, nor what the entries mean.

The write-ahead log is applied to the database frame by frame, as SQLite does, but also past a damaged frame:
most pages are written again by later frames. The links of the entries show whether the result is right.
"""

import os
import sqlite3
from collections.abc import Callable, Collection, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from urllib.parse import quote

from tidelake.store import wal
from tidelake.store.protocols import Entry
from tidelake.store.witness import LINK_BYTES, Acknowledged, link

_PAGE_BYTES = 4096
# The two bytes of the header of a database that say whether it has a write-ahead log; 2 means that it has.
_MODE = slice(18, 20)
_READ_ERRORS = (sqlite3.Error, UnicodeDecodeError, OverflowError)


@dataclass(frozen=True)
class SalvagedRow:
    """An entry as it was found.

    Attributes:
        data: its data.
        link: its link; empty if it has none.
    """

    data: bytes
    link: bytes


@dataclass(frozen=True)
class Salvaged:
    """Contiguous entries. Each except the first is known to continue the previous one.

    Attributes:
        entries: the entries, ascending.
        links: the link of each entry; empty for entries of a format without links.
    """

    entries: tuple[Entry, ...]
    links: tuple[bytes, ...]

    @property
    def head(self) -> int:
        """Seqno of the newest entry."""
        return self.entries[-1].seqno


def salvage(
    database: str,
    write_ahead: str,
    acknowledged: Acknowledged | None,
    starts: Collection[int],
    scratch: str,
) -> Salvaged | None:
    """Recover the run of entries that ends with the newest provable entry; None if no entry is provable.

    Args:
        database: path of the database.
        write_ahead: path of its write-ahead log.
        acknowledged: the content of its witness.
        starts: seqnos of states that a reader can begin from, besides entry 0.
        scratch: path of a temporary file that may be created.
    """
    best: Salvaged | None = None
    for pages, is_proven in _images(_read(database), write_ahead):
        for run in _runs(_rows(pages, scratch), acknowledged):
            first = run.entries[0].seqno
            if first and not any(first - 1 <= start <= run.head for start in starts):
                continue
            if not (_is_possible(run, acknowledged) if is_proven else _is_witnessed(run, acknowledged)):
                continue
            if best is None or (run.head, len(run.entries)) > (best.head, len(best.entries)):
                best = run
    return best


def _images(base: bytes, write_ahead: str) -> Iterable[tuple[bytes, bool]]:
    """Possible contents of the database, each with whether its frames alone prove it."""
    try:
        with wal.open_wal(write_ahead) as file:
            raw = os.pread(file, 32, 0)
            header = wal.read_header(raw)
            found = [] if header is None else list(wal.frames(file, header))
            page_bytes = header.page_bytes if header else _PAGE_BYTES

            def laid(frames: Iterable[wal.Frame]) -> bytes:
                return _laid(base, frames, page_bytes, lambda start: os.pread(file, page_bytes, start))

            yield laid(wal.recovered(header, found) if header else []), True
            proven = wal.proven(header, found) if header else 0
            if proven:
                yield laid(one for one in found[:proven] if one.follows), True
                yield laid(found[:proven]), True
            yield laid(one for one in found if one.follows), False
    except FileNotFoundError:
        yield base, True


def _laid(
    base: bytes, frames: Iterable[wal.Frame], page_bytes: int, page_at: Callable[[int], bytes]
) -> bytes:
    # Every page was in the database or in a frame, so a higher page number is damage.
    several = list(frames)
    most = len(base) // page_bytes + len(several)
    pages = {frame.page: frame.start + 24 for frame in several if 0 < frame.page <= most}
    image = bytearray(base)
    for page, start in pages.items():
        end = page * page_bytes
        if len(image) < end:
            image.extend(bytes(end - len(image)))
        image[end - page_bytes : end] = page_at(start)
    return bytes(image)


def _rows(image: bytes, scratch: str) -> dict[int, SalvagedRow]:
    """The rows that can be read: in ascending order, then in descending order, up to any damage."""
    content = bytearray(image)
    content[_MODE] = b"\x01\x01"
    found: dict[int, SalvagedRow] = {}
    try:
        with open(scratch, "wb") as file:
            file.write(content)
        with (
            closing(sqlite3.connect(f"file:{quote(scratch)}?mode=ro&immutable=1", uri=True)) as connection,
            suppress(*_READ_ERRORS),
        ):
            connection.text_factory = bytearray
            columns = {bytes(row[1]) for row in connection.execute("PRAGMA table_info(entries)")}
            linked = "link" if b"link" in columns else "NULL"
            for order in ("ASC", "DESC"):
                with suppress(*_READ_ERRORS):
                    statement = f"SELECT seqno, data, {linked} FROM entries ORDER BY seqno {order}"  # noqa: S608
                    for seqno, data, link_ in connection.execute(statement):
                        if seqno in found and order == "DESC":
                            break
                        if type(data) is bytes and seqno >= 0:
                            is_link = type(link_) is bytes and len(link_) == LINK_BYTES
                            found[seqno] = SalvagedRow(data, link_ if is_link else b"")
    finally:
        with suppress(FileNotFoundError):
            os.unlink(scratch)
    return found


def _runs(rows: dict[int, SalvagedRow], acknowledged: Acknowledged | None) -> Iterable[Salvaged]:
    """The longest runs of entries in which each entry continues the previous one, if that is known."""
    run: list[Entry] = []
    links: list[bytes] = []
    for seqno in sorted(rows):
        row = rows[seqno]
        before = links[-1] if run and run[-1].seqno == seqno - 1 else _link_before(rows, seqno)
        is_linked = before is not None and bool(before or row.link)
        here = link(before or b"", seqno, row.data) if is_linked else row.link
        is_sound = before is None or _continues(rows, seqno, here, acknowledged)
        if run and not (is_sound and run[-1].seqno == seqno - 1):
            yield Salvaged(tuple(run), tuple(links))
            run, links = [], []
        if is_sound:
            run.append(Entry(seqno, row.data))
            links.append(here)
    if run:
        yield Salvaged(tuple(run), tuple(links))


def _link_before(rows: dict[int, SalvagedRow], seqno: int) -> bytes | None:
    """The link of the previous entry as it was found; None if it is not known."""
    if seqno == 0:
        return b""
    before = rows.get(seqno - 1)
    return before.link or None if before else None


def _continues(
    rows: dict[int, SalvagedRow], seqno: int, here: bytes, acknowledged: Acknowledged | None
) -> bool:
    """Whether the link `here` is confirmed: by the entry itself, by the next entry, or by the witness."""
    if here == rows[seqno].link or (acknowledged is not None and acknowledged == Acknowledged(seqno, here)):
        return True
    after = rows.get(seqno + 1)
    return after is not None and bool(here) and after.link == link(here, seqno + 1, after.data)


def _is_possible(run: Salvaged, acknowledged: Acknowledged | None) -> bool:
    """Whether a run does not contradict the witness."""
    first = run.entries[0].seqno
    if acknowledged is None or not first <= acknowledged.seqno <= run.head:
        return True
    return run.links[acknowledged.seqno - first] in (b"", acknowledged.link)


def _is_witnessed(run: Salvaged, acknowledged: Acknowledged | None) -> bool:
    """Whether the newest entry of a run is the acknowledged one."""
    if acknowledged is None or run.head != acknowledged.seqno:
        return False
    return run.links[-1] == acknowledged.link


def _read(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with open(descriptor, "rb") as file:
        return file.read()
