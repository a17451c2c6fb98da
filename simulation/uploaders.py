"""Clients that append uploads, and the same upload again: later, by a named writer, or after its merge."""

from dataclasses import dataclass

from simulation.clients import FAILED, Client, table_of
from simulation.record import AppendCall
from tests.doubles.faults import SimulatedCrash
from tidelake.errors import (
    AlreadyTaken,
    CollectionDropped,
    OutcomeUnknown,
    StoreUnavailable,
    TidelakeError,
    UploadExpired,
    UpperMismatch,
    WriterFenced,
)
from tidelake.model.frontier import Frontier
from tidelake.state.write.write import Appended

# Number of uploads that a client remembers and may append again.
_KEPT = 4
# The named writer that appends some of the uploads.
UPLOADS = "u"


@dataclass(frozen=True)
class _Upload:
    """An upload, and the append that it is for."""

    op: AppendCall
    data: bytes


def uploader(client: Client) -> None:
    """Uploads rows, appends them at the newest upper, and tries again whatever the answer was."""
    kept: list[_Upload] = []
    while True:
        if not kept or client.draw.random() < 0.5:
            made = _uploaded(client)
            kept = [*kept, made][-_KEPT:] if made is not None else kept
        if kept:
            _offer(client, client.draw.choice(kept))
        client.rest()


def _uploaded(client: Client) -> _Upload | None:
    rows = client.rows(None)
    op = AppendCall(client.label("upload"), rows)
    try:
        with client.collection().builder(0) as builder:
            builder.add(table_of([(row, 0, diff) for row, _, diff in rows]))
            data = builder.finish(Frontier.of(1)).to_bytes()
    except (*FAILED, CollectionDropped):
        return None
    client.judge.begins(op)
    return _Upload(op, data)


def _offer(client: Client, upload: _Upload) -> None:
    """Try to append an upload once, possibly after it is in."""
    judge, op, strand = client.judge, upload.op, client.world.scheduler.current
    lower = client.known_upper()
    asked = judge.asked()
    strand.about = op
    client.world.note(f"> {op.label} at {lower}")
    try:
        answer = _append(client, upload.data, lower)
    except (OutcomeUnknown, SimulatedCrash) as error:
        judge.unsure(op)
        client.world.note(f"< {op.label}: {type(error).__name__}")
        if isinstance(error, SimulatedCrash):
            raise
    except TidelakeError as error:
        client.world.note(f"< {op.label}: {error!r}")
        _refused(client, op, error)
    else:
        client.world.note(f"< {op.label}: [{answer.lower}, {answer.upper})")
        judge.acknowledged(op, asked, answer)
    finally:
        strand.about = None


def _append(client: Client, data: bytes, lower: int) -> Appended:
    collection, upper = client.collection(), lower + 1
    if client.draw.random() < 0.3:
        writer = collection.writer(UPLOADS)
        return writer.append_uploaded([data], lower=lower, upper=upper, advance=True)
    return collection.distributed.append_uploaded([data], lower=lower, upper=upper, advance=True)


def _refused(client: Client, op: AppendCall, error: TidelakeError) -> None:
    judge = client.judge
    match error:
        case AlreadyTaken():
            judge.counts["uploads known again"] += 1
            if op.placed is None:
                judge.wrong(f"{op.label} is not in, but was said to be: {error!r}")
        case UploadExpired():
            judge.counts["uploads expired"] += 1
            if op.placed is None:
                op.barred = f"it was refused: {error!r}"
        case UpperMismatch():
            if op.placed is not None and not op.unsure:
                judge.wrong(f"{op.label} is in at {op.placed[0]}, and only a conflict was told: {error!r}")
        case CollectionDropped() if judge.dropped is not None:
            judge.counts["told of a drop"] += 1
        case WriterFenced() | StoreUnavailable():
            pass
        case _:
            judge.wrong(f"{op.label} failed with {error!r}")
