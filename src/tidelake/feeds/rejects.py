"""Storing lines that could not be read in a folder.

Owns the files of that folder: JSON lines with `file`, `number` (the line, from 1), `block` (the byte offset
at which the numbers begin), `reason` and `line`, or `base64` if the line is not text.

INVARIANT: a file is complete and flushed before the rest of its batch is appended. A repeated batch has the
same file, and no other batch has it, not even one of another collection of this name, or of another query
that took the writer over. So a line that is not in the collection is in the folder, once.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidelake.errors import StoreUnavailable
from tidelake.feeds.answers import Answer
from tidelake.store.files import put_file


@dataclass(frozen=True)
class NumberedBatch:
    """A batch that a writer numbers.

    Attributes:
        collection: id of the collection.
        writer: name of the writer.
        owner: owner of the numbers.
        number: number of the batch.
    """

    collection: str
    writer: str
    owner: str
    number: int


def keep(answer: Answer, collection: str, batch: NumberedBatch | None) -> None:
    """Store the rejects of a batch, if a folder was given."""
    if answer.rejects_to is None or (batch is None and not answer.rejects):
        return
    # Sort: tasks answer in any order.
    lines = sorted(answer.rejects)
    path = Path(answer.rejects_to) / f"{_name(lines, collection, batch)}.jsonl"
    try:
        if lines:
            path.parent.mkdir(parents=True, exist_ok=True)
            put_file(path, "".join(line + "\n" for line in lines).encode())
        else:
            # An earlier attempt, which was not appended, may have left a file before the lines were
            # corrected.
            path.unlink(missing_ok=True)
    except OSError as error:
        raise StoreUnavailable(
            f"rejected lines cannot be kept in {answer.rejects_to}: {error.strerror or error}"
        ) from error


def _name(lines: Sequence[str], collection: str, batch: NumberedBatch | None) -> str:
    if batch is None:
        return f"{_plain(collection)}-{_digest(lines)}"
    whose = _digest((batch.collection, batch.owner))[:12]
    return f"{_plain(collection)}-{_plain(batch.writer)}-{whose}-{batch.number:08}"


def _digest(texts: Sequence[str]) -> str:
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=16).hexdigest()


def _plain(name: str) -> str:
    """Convert a name to a file name; different names stay different."""
    text = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    return text if text == name else f"{text}~{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}"
