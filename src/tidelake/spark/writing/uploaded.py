"""The commit of what tasks have uploaded already, when their rows are not here any more.

Owns how such uploads become those of a commit: as they are, after a comparison with the contents, or by the
envelope's work on rows that the tasks handed over, in one process and bounded memory.

INVARIANT: uploads that were offered to a commit are never deleted here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidelake.errors import InternalError
from tidelake.feeds.answers import Answer, answers_from_bytes, answers_to_bytes, total
from tidelake.feeds.commit import CollectionWrite, Numbered, OneTime
from tidelake.feeds.loop import CommitPoint, committed
from tidelake.feeds.reports import WriteReport
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.writer import Writer
from tidelake.model.frontier import Frontier
from tidelake.shard.writing.shufflespill import ShuffleSpill
from tidelake.spark.envelopes.envelope import Compared, Envelope
from tidelake.spark.writing.commit import all_at


def hands_over(envelope: Envelope) -> bool:
    """Whether tasks hand their rows over: those whose keys must be together are worked on in the commit."""
    return not (envelope.rebases or isinstance(envelope, Compared))


@dataclass
class _FromTasks:
    """Makes the uploads of a commit from those of tasks.

    Attributes:
        collection: the target.
        envelope: what the rows mean.
        names: names of their columns.
        given: the answer of the tasks.
        handed: names of runs of rows that they handed over.
    """

    collection: Collection
    envelope: Envelope
    names: Sequence[str]
    given: Answer
    handed: Sequence[str]
    _spill: ShuffleSpill = field(init=False)

    def __post_init__(self) -> None:
        self._spill = ShuffleSpill(self.collection.distributed.uploader().spec)

    @property
    def rebases(self) -> bool:
        """As `Making`."""
        return self.envelope.rebases

    def all_at(self, start: Frontier) -> OneTime | None:
        """As `Making`."""
        return all_at(self.collection, self.envelope, self.names, start)

    def ready(self) -> None:
        """As `Making`."""

    def answer(self, at: CommitPoint, start: Frontier) -> Answer:
        """As `Making`."""
        if isinstance(self.envelope, Compared):
            return self.envelope.difference(self.collection, self.given, start, None)
        if not hands_over(self.envelope):
            return self.given
        if at.state is None:
            raise InternalError("rows that were handed over are read at a state")
        work = self.envelope.work(self.collection, self.names, start)
        rows = self._spill.rows(self.handed, at.state)
        return total(answers_from_bytes([answers_to_bytes(work(rows))]))

    def forget(self) -> None:
        """As `Making`: never called, as the rows are not here."""

    def done(self) -> None:
        """As `Making`: these runs and uploads were never offered to a commit."""
        self._spill.discard(self.handed)
        if isinstance(self.envelope, Compared):
            self.envelope.discard(self.collection, self.given)


def commit_uploads(
    collection: Collection,
    envelope: Envelope,
    names: Sequence[str],
    answers: Sequence[bytes],
    *,
    handed: Sequence[str],
    numbered: Numbered[Writer] | None = None,
) -> WriteReport:
    """Append what tasks have uploaded, in one commit.

    Args:
        collection: the collection.
        envelope: what the rows mean.
        names: names of their columns.
        answers: the packed answers of the tasks.
        handed: names of the runs that they handed over.
        numbered: append under this number.
    """
    given = total(answers_from_bytes(answers))
    making = _FromTasks(collection, envelope, names, given, handed)
    return committed(CollectionWrite(collection, making, numbered=numbered, remakes=False))
