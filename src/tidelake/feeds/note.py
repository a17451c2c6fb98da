"""What the record of a stream's writer says of its last micro-batch, as a value.

Owns the one text of it, the content of the record: the compare-and-set of the micro-batch writes it, the next
driver reads it. `tidelake.cdc.times.heldevents` owns the piece about what is held back.
"""

import re
from dataclasses import dataclass, replace
from typing import Self

from tidelake.cdc.times.heldevents import Held, split, with_held
from tidelake.state.write.heldback import StreamContent

_RUN = " by run "
_PARTED = re.compile(r" parted at (\d+), (\d+) late$")


@dataclass(frozen=True)
class BatchNote:
    """A micro-batch, as its writer notes it.

    Attributes:
        what: tells it from another one with its number: when Spark planned it, or a digest of its files;
            empty: not known.
        run: the run of the query that wrote it; empty: not known.
        parted: the time at which late rows were parted from the others; None: they were not.
        late: how many late rows there were.
        held: how far the stream is, and what it holds back; None: it does not say.
    """

    what: str = ""
    run: str = ""
    parted: int | None = None
    late: int = 0
    held: Held | None = None

    @classmethod
    def of(cls, content: str | None) -> Self:
        """Read `text`. Errors as for `tidelake.cdc.times.heldevents.split`."""
        told, held = split(content)
        parted = _PARTED.search(told)
        what, _, run = (told if parted is None else told[: parted.start()]).partition(_RUN)
        at, late = (None, 0) if parted is None else (int(parted[1]), int(parted[2]))
        return cls(what, run, at, late, held)

    @property
    def text(self) -> str:
        """What the record has as its content."""
        told = f"{self.what}{_RUN}{self.run}" if self.run else self.what
        if self.parted is not None:
            told += f" parted at {self.parted}, {self.late} late"
        return told if self.held is None else with_held(told, self.held)

    @property
    def content(self) -> StreamContent:
        """The same, as a writer takes it."""
        return StreamContent.of(self.text)

    def without_run(self) -> Self:
        """The note of a batch that failed: the same run may repeat it."""
        return replace(self, run="")
