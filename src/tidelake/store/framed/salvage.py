"""Recovers entries from the bytes of a damaged log.

Owns what proves that an entry is as it was written. Must not know files, nor what the entries mean.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from tidelake.store.framed.frames import FRAME_BYTES, HEADER_BYTES, ID_BYTES, Header, Published, intact, link
from tidelake.store.protocols import Entry


@dataclass(frozen=True)
class Salvaged:
    """Contiguous entries, each of which continues the one before it."""

    entries: tuple[Entry, ...]
    before: bytes

    @property
    def head(self) -> int:
        """Seqno of the newest entry."""
        return self.entries[-1].seqno


def salvage(content: bytes, known: Published | None, starts: Collection[int]) -> Salvaged | None:
    """Recover the run of entries that ends with the newest intact entry; None if none is intact."""
    header = Header.decode(content[:HEADER_BYTES])
    file = header.file if header else known.file if known else bytes(ID_BYTES)
    found = [_Piece(f.start, f.end, f.seqno, f.before, f.link, data) for f, data in intact(file, content, 0)]
    ends = [_Piece(0, HEADER_BYTES, header.first - 1, b"", header.before, b"")] if header else []
    if known is not None and known.file == file:
        ends.append(_Piece(known.end, known.end, known.seqno + 1, known.link, b"", b""))
    pieces = sorted([*found, *ends], key=lambda piece: piece.start)
    proven = [one for pair in pairwise(pieces) for one in _between(content, *pair)]
    best: Salvaged | None = None
    for run in _runs(sorted([*found, *proven], key=lambda piece: piece.start)):
        first = run.entries[0].seqno
        if first and not any(first - 1 <= start <= run.head for start in starts):
            continue
        if best is None or (run.head, len(run.entries)) > (best.head, len(best.entries)):
            best = run
    return best


class _Piece(NamedTuple):
    """An intact frame; or the header of the file or its record, which stand for the entry beside them."""

    start: int
    end: int
    seqno: int
    before: bytes
    link: bytes
    data: bytes


def _between(content: bytes, left: _Piece, right: _Piece) -> Iterator[_Piece]:
    """The entry between two pieces, if only its own header is damaged: the links beside it prove its data."""
    if right.seqno != left.seqno + 2:
        return
    for padding in range(8):
        data = content[left.end + FRAME_BYTES : right.start - padding]
        if link(left.link, left.seqno + 1, data) == right.before:
            yield _Piece(left.end, right.start, left.seqno + 1, left.link, right.before, data)
            return


def _runs(pieces: list[_Piece]) -> Iterator[Salvaged]:
    """The longest runs of entries, each of which continues the one before it."""
    run: list[_Piece] = []
    for one in pieces:
        if run and (one.seqno, one.before) != (run[-1].seqno + 1, run[-1].link):
            yield _salvaged(run)
            run = []
        run.append(one)
    if run:
        yield _salvaged(run)


def _salvaged(run: list[_Piece]) -> Salvaged:
    return Salvaged(tuple(Entry(one.seqno, one.data) for one in run), run[0].before)
