"""What could not be read, kept in a folder.

Owns the files of that folder: JSON lines of `file`, `number` (the line, from 1), `block` (where the numbers
begin, in bytes), `reason` and `line`, or `base64` if the line is no text.

INVARIANT: a file is whole and flushed before the rest of its batch is appended, and a batch that is done
again has the same file, which no other batch has: of another collection of this name, or of another query
that took the writer over. So what is not in the collection is in the folder, once.
"""

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidelake.errors import StoreUnavailable
from tidelake.spark.uploads import Answer


@dataclass(frozen=True)
class Batch:
    """A batch that a writer numbers.

    Attributes:
        collection: id of it.
        writer: name of the writer.
        owner: whose numbers these are.
        number: of the batch.
    """

    collection: str
    writer: str
    owner: str
    number: int


def keep(answer: Answer, collection: str, batch: Batch | None) -> None:
    """Store the rejects of a batch, if a folder was given.

    Args:
        answer: of all tasks.
        collection: its name.
        batch: None of an append that has no number: then the file is named by what is in it.

    Raises:
        StoreUnavailable: the folder cannot be written to. Nothing was appended.
    """
    if answer.rejects_to is None or (batch is None and not answer.rejects):
        return
    # Tasks answer in any order.
    lines = sorted(answer.rejects)
    path = Path(answer.rejects_to) / f"{_name(lines, collection, batch)}.jsonl"
    try:
        if lines:
            _store(path, "".join(line + "\n" for line in lines).encode())
        else:
            # Of an attempt that was not appended, after which the lines or the options were mended.
            path.unlink(missing_ok=True)
    except OSError as error:
        raise StoreUnavailable(
            f"rejected lines cannot be kept in {answer.rejects_to}: {error.strerror or error}"
        ) from error


def _name(lines: Sequence[str], collection: str, batch: Batch | None) -> str:
    if batch is None:
        return f"{_plain(collection)}-{_digest(lines)}"
    whose = _digest((batch.collection, batch.owner))[:12]
    return f"{_plain(collection)}-{_plain(batch.writer)}-{whose}-{batch.number:08}"


def _digest(texts: Sequence[str]) -> str:
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=16).hexdigest()


def _plain(name: str) -> str:
    """A name as a file's: names that would look alike are told apart."""
    text = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    return text if text == name else f"{text}~{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}"


def _store(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Spark's file source, and whoever looks into the folder, does not see names that begin with a dot.
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    with hidden.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    hidden.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
