"""A directory of files of lines, each taken once, and the journal that says which are.

Owns the journal: a file of JSON lines, first the id of the stream, then what each micro-batch is made of. A
line is flushed before its micro-batch is committed, so what is committed is in the journal. A line without a
commit is dropped at the next start: its files are new again. Lines of long ago become one with the names of
their files: a file that comes back under its name is not taken again. Each line ends with a checksum of it,
except those of earlier versions.

INVARIANT: a process opens the stream's writer, reads the journal and replaces it in one turn. A process that
is fenced by that may still add lines, but to a file that the new one has replaced, so it replaces it no more.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from io import BufferedWriter
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from tidelake.env import Clock
from tidelake.errors import CorruptionError, FormatTooNew, StoreUnavailable, UsageError
from tidelake.feeds.lines import Piece
from tidelake.state.write.idempotency import other_content
from tidelake.store.files import SYSTEM_FILES, Wait, locked, put_file

ReadPiece: TypeAlias = Callable[[Piece, int | None], tuple[pa.RecordBatch, Piece] | None]
FORMAT = 2
# So many of the last micro-batches have lines of their own, and at most twice as many.
KEPT = 1000
_NAME = "journal.jsonl"
_PAST = "batches"
_CRC = b',"crc":'
_TURN, _TURN_S = "journal.turn", 60


@dataclass(frozen=True)
class Taken:
    """The lines, or files, of one micro-batch.

    Attributes:
        batches: the lines; of files of rows none.
        pieces: what they are.
    """

    batches: tuple[pa.RecordBatch, ...] = field(repr=False)
    pieces: tuple[Piece, ...]

    @property
    def content(self) -> str:
        """A digest of the pieces."""
        return _digest(self.pieces)

    @property
    def names(self) -> list[str]:
        """The files."""
        return [piece.name for piece in self.pieces]


@contextmanager
def turn(place: Path, clock: Clock) -> Iterator[bool]:
    """Let no other process begin with the journal of a place during the block; make the place.

    Yields whether that is sure: files cannot be locked everywhere.
    """
    if (place / "offsets").exists():
        raise UsageError(
            f"{str(place)!r} is the checkpoint of a query of Spark, which knows what was taken: go on with "
            "tidelake.spark.ingest; or move away the files that it took, and take the others with another "
            "checkpoint and take_over"
        )
    with _kept(place):
        place.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            is_ours = stack.enter_context(locked(SYSTEM_FILES, str(place / _TURN), Wait(clock, _TURN_S)))
        except OSError:
            # Only processes that begin at once are in danger.
            is_ours = None
        if is_ours is False:
            raise StoreUnavailable(f"another ingest has been beginning with {str(place)!r} for {_TURN_S} s")
        yield is_ours is not None


@contextmanager
def _kept(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(
            f"no journal can be kept in {str(place)!r}: {error.strerror or error}"
        ) from error


@dataclass(frozen=True)
class _Past:
    """Micro-batches that have no lines of their own any more.

    Attributes:
        count: how many there are.
        files: the files that they were made of. Later lines tell how far the last one is.
    """

    count: int = 0
    files: tuple[str, ...] = ()

    def then(self, batches: Sequence[tuple[Piece, ...]]) -> "_Past":
        """The same, and the next ones."""
        names = [piece.name for pieces in batches for piece in pieces]
        return _Past(self.count + len(batches), tuple(dict.fromkeys([*self.files, *names])))


@dataclass
class Journal:
    """What each micro-batch of a stream was made of.

    Attributes:
        place: the directory of the journal; it is made if there is none.
        query: the id of the stream.
    """

    place: Path
    query: str = ""
    _batches: dict[int, tuple[Piece, ...]] = field(default_factory=dict, repr=False)
    _past: _Past = field(default_factory=_Past, repr=False)
    _file: BufferedWriter = field(init=False, repr=False)

    @classmethod
    def at(cls, place: Path, fresh: str) -> "Journal":
        """The journal of a place; a new one has the id `fresh`."""
        found = cls(place)
        lines = found._lines()
        head = next(lines, None)
        if head is None:
            found.query = fresh
            found._write()
            return found
        found._check(head)
        found.query = head["stream"]
        return found

    def begin(self, last: int | None, content: str, writer: str) -> None:
        """Read what was taken, and drop what is not committed."""
        last = -1 if last is None else last
        lines = self._lines()
        next(lines)
        for line in lines:
            if _PAST in line:
                self._past = self._read_past(line)
                continue
            number, pieces = self._told(line)
            # What a fenced process has planned, another one may have committed.
            if number < last or (number == last and _digest(pieces) == content):
                self._batches[number] = pieces
        if last < 0:
            self._past = _Past()
        elif last < self._past.count:
            raise UsageError(
                f"writer {writer!r} has written micro-batch {last}, and {str(self.place)!r} does not tell "
                "what those after it were: the collection is an old copy. Move the files that it lacks to a "
                "directory of their own, and take them with take_over"
            )
        elif last not in self._batches:
            raise UsageError(other_content(writer, last))
        if self._past.count + len(self._batches) <= last:
            raise self._corrupt("it does not have all micro-batches")
        self._replace()

    def shorten(self) -> None:
        """Let one line stand for all but the last micro-batches, if there are many; needs the turn."""
        with _kept(self.place):
            ours, there = os.fstat(self._file.fileno()), os.stat(self.place / _NAME)
        # A newer process has replaced it, and this one is fenced.
        if (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino):
            self._file.close()
            self._replace()

    @property
    def is_long(self) -> bool:
        """Whether `shorten` pays off."""
        return len(self._batches) > 2 * KEPT

    @property
    def next(self) -> int:
        """The number of the next micro-batch."""
        return max(self._batches, default=self._past.count - 1) + 1

    def pieces(self) -> Iterator[Piece]:
        """What was taken; of long ago only which files."""
        yield from map(Piece, self._past.files)
        for _, pieces in sorted(self._batches.items()):
            yield from pieces

    def add(self, number: int, pieces: tuple[Piece, ...]) -> None:
        """Say what a micro-batch is made of."""
        with _kept(self.place):
            self._file.write(_line(number, pieces))
            self._file.flush()
            os.fsync(self._file.fileno())
        self._batches[number] = pieces

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _lines(self) -> Iterator[dict[str, Any]]:
        path = self.place / _NAME
        if not path.exists():
            return
        with _kept(self.place):
            whole = path.read_bytes()
        for line in whole.splitlines(keepends=True):
            # The last one may be a part only: then nothing of it is committed.
            if line.endswith(b"\n"):
                yield self._read_line(line.rstrip(b"\n"))

    def _read_line(self, line: bytes) -> dict[str, Any]:
        told, sep, number = line.rpartition(_CRC)
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self._corrupt(f"it has a line {line[:99]!r}")
        if type(found.get("tidelake")) is int and found["tidelake"] > FORMAT:
            raise FormatTooNew(str(self.place / _NAME), found["tidelake"], FORMAT)
        if sep and number != b"%d}" % zlib.crc32(told):
            raise self._corrupt(f"it has a line {line[:99]!r}, which does not have its checksum")
        return found

    def _corrupt(self, why: str) -> CorruptionError:
        return CorruptionError(str(self.place / _NAME), why)

    def _told(self, line: dict[str, Any]) -> tuple[int, tuple[Piece, ...]]:
        """What a line says of a micro-batch."""
        try:
            number, pieces = line["batch"], tuple(Piece(*one) for one in line["pieces"])
        except (KeyError, TypeError):
            raise self._corrupt(f"it has a line {str(line)[:99]}") from None
        if type(number) is not int or not all(map(_is_whole, pieces)):
            raise self._corrupt(f"it has a line {str(line)[:99]}")
        return number, pieces

    def _read_past(self, line: dict[str, Any]) -> _Past:
        count, files = line[_PAST], line.get("files")
        names = isinstance(files, list) and all(isinstance(one, str) for one in files)
        if type(count) is not int or not names:
            raise self._corrupt(f"it has a line {str(line)[:99]}")
        return _Past(count, tuple(files or ()))

    def _check(self, head: dict[str, Any]) -> None:
        number = head.get("tidelake")
        if not isinstance(number, int) or not isinstance(head.get("stream"), str):
            raise self._corrupt("it is no journal of an ingest")

    def _replace(self) -> None:
        """Write it anew, with few lines."""
        old = sorted(self._batches)[:-KEPT] if self.is_long else []
        self._past = self._past.then([self._batches.pop(number) for number in old])
        self._write()
        with _kept(self.place):
            self._file = (self.place / _NAME).open("ab")

    def _write(self) -> None:
        told: list[dict[str, Any]] = [{"tidelake": FORMAT, "stream": self.query}]
        if self._past.count:
            told.append({_PAST: self._past.count, "files": self._past.files})
        head = b"".join(map(_encoded, told))
        with _kept(self.place):
            lines = b"".join(_line(*one) for one in sorted(self._batches.items()))
            put_file(self.place / _NAME, head + lines)


def _is_whole(piece: Any) -> bool:
    numbers = [piece.begin, piece.line, piece.count, *([] if piece.end is None else [piece.end])]
    return isinstance(piece.name, str) and all(type(one) is int and one >= 0 for one in numbers)


def _line(number: int, pieces: tuple[Piece, ...]) -> bytes:
    return _encoded({"batch": number, "pieces": [list(asdict(one).values()) for one in pieces]})


def _encoded(told: dict[str, Any]) -> bytes:
    """A line of the journal."""
    text = json.dumps(told, separators=(",", ":")).encode().removesuffix(b"}")
    return b"%b%b%d}\n" % (text, _CRC, zlib.crc32(text))


def _digest(pieces: tuple[Piece, ...]) -> str:
    told = json.dumps([list(asdict(one).values()) for one in pieces])
    return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()


@dataclass
class Directory:
    """The files of a directory, in the order of their modification times.

    Files whose names begin with `.` or `_`, and those in folders, are ignored, as are changes of files that
    were taken.

    Attributes:
        folder: the directory.
        read: the next lines of a file, of about so many bytes, and what was taken; None: it has no lines.
        files_max: the most files in a micro-batch.
        bytes_max: a micro-batch has about so many bytes, if files may be cut.
    """

    folder: Path
    read: ReadPiece
    files_max: int | None = None
    bytes_max: int = 1 << 26
    _seen: set[str] = field(default_factory=set, init=False, repr=False)
    _begun: Piece | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.files_max is not None and self.files_max < 1:
            raise UsageError(f"max_files_per_trigger={self.files_max} must be at least 1")
        if not os.path.isdir(self.folder):
            raise UsageError(f"there is no directory of files at {str(self.folder)[:200]!r}: create it first")

    def go_on(self, taken: Iterable[Piece]) -> None:
        """Leave out what was taken."""
        for piece in taken:
            self._seen.add(piece.name)
            self._begun = piece.after

    def new(self) -> list[str]:
        """The files that are there and were not taken."""
        there = []
        with os.scandir(self.folder) as found:
            for one in found:
                # It may be gone by now.
                with suppress(FileNotFoundError):
                    if not one.name.startswith((".", "_")) and one.is_file() and one.name not in self._seen:
                        there.append((one.stat().st_mtime_ns, one.name))
        return [name for _, name in sorted(there)]

    def next(self, names: list[str], *, cuts: bool) -> Taken | None:
        """The lines of the next micro-batch; None if there are no files, or the first one has no lines.

        It ends before a file without lines, or with other columns.
        """
        begun = [] if self._begun is None else [self._begun]
        several = [*begun, *(Piece(name) for name in names)]
        batches, pieces, size = list[pa.RecordBatch](), list[Piece](), 0
        for one in several if self.files_max is None else several[: self.files_max]:
            if pieces and size >= self.bytes_max:
                break
            found = self.read(one, self.bytes_max - size if cuts else None)
            if found is None:
                break
            lines, piece = found
            if lines.num_rows and any(x.num_rows and x.schema != lines.schema for x in batches):
                break
            batches.append(lines)
            pieces.append(piece)
            size += lines.nbytes
            if piece.end is not None:
                break
        return Taken(tuple(batches), tuple(pieces)) if pieces else None

    def files(self, names: list[str]) -> Taken | None:
        """The files of the next micro-batch, which are not read yet; None if there are none."""
        taken, size = list[Piece](), 0
        for name in names[: self.files_max]:
            if taken and size >= self.bytes_max:
                break
            taken.append(Piece(name))
            # It may be gone by now, which shows when it is read.
            with suppress(OSError):
                size += (self.folder / name).stat().st_size
        return Taken((), tuple(taken)) if taken else None
