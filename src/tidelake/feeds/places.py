"""Where the rows of change events are from: files, places in them, and what sorts events by these."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.cdc.core.lineerrors import place
from tidelake.cdc.core.outcome import Truncates
from tidelake.cdc.parse.linenumbers import LineNumbers
from tidelake.cdc.parse.rows import LINE, ORDER, TIME


@dataclass(frozen=True)
class Places:
    """Where the rows of a batch are from; element i of each array belongs to row i.

    Attributes:
        files: names of the files, if the rows are from files.
        blocks: byte offset in the file at which the line numbers begin; of lines without a file the number of
            their micro-batch.
        modified: modification times of the files, in any unit; of messages of transactions their positions in
            the log, and `blocks` those of the events.
        numbers: line numbers from 1, or offsets of messages; 0 if neither is known.
    """

    files: pa.Array
    blocks: npt.NDArray[np.int64]
    modified: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]

    def chosen(self, which: npt.NDArray[np.bool_]) -> "Places":
        """Those of some rows."""
        files = self.files.filter(pa.array(which))
        return Places(files, self.blocks[which], self.modified[which], self.numbers[which])

    def text(self, row: int) -> str:
        """The place of one row, for messages."""
        return place(self.files[row].as_py(), int(self.numbers[row]) or None)

    def told(self, row: int) -> dict[str, object]:
        """The place of one row, as fields of a reject."""
        file = self.files[row].as_py()
        told: dict[str, object] = {"file": None if file is None else place(file).removeprefix("file=")}
        told["number"] = int(self.numbers[row]) if self.numbers[row] else None
        return told | ({"block": int(self.blocks[row])} if file is not None and self.blocks[row] else {})

    def orders(self, rows: pa.RecordBatch, steps: npt.NDArray[np.int64] | None = None) -> pa.Array:
        """A binary sort key for each event of `ChangeParser.schema_of_rows`: greater is later.

        Made of the time, the order field, the file's modification time and name, and the place in the file
        and in the line (`Parsed.steps`).
        """
        at, times, orders = (rows.column(name).to_numpy() for name in (LINE, TIME, ORDER))
        return self._orders(at, times, orders, steps)

    def of_truncates(self, found: Truncates) -> pa.Array:
        """The sort keys of truncations."""
        return self._orders(found.lines, found.times, found.orders)

    def _orders(
        self,
        at: npt.NDArray[np.int64],
        times: npt.NDArray[np.int64],
        orders: npt.NDArray[np.int64],
        steps: npt.NDArray[np.int64] | None = None,
    ) -> pa.Array:
        first = [times, orders, self.modified[at]]
        steps = np.zeros(len(at), np.int64) if steps is None else steps
        last = [self.blocks[at], self.numbers[at], steps]
        files = pc.fill_null(self.files.take(pa.array(at)), "").cast(pa.binary())
        nothing = pa.scalar(b"")
        return pc.binary_join_element_wise(_big_endian(first), files, _big_endian(last), nothing)


@dataclass
class NumberedLines:
    """Gives the lines of the batches of one task their numbers, which a split by table would lose."""

    _lines: LineNumbers = field(default_factory=LineNumbers)

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch with columns `AS_TEXT`, with the number of each line as its `offset`, if it has none."""
        files, offsets = batch.column("file"), batch.column("offset")
        if not batch.num_rows or offsets.null_count < len(offsets) or files.null_count == len(files):
            return batch
        blocks = pc.fill_null(batch.column("block"), 0).to_numpy()
        at = batch.schema.get_field_index("offset")
        return batch.set_column(at, "offset", pa.array(self._lines.of(files, blocks)))


def _big_endian(parts: list[npt.NDArray[np.int64]]) -> pa.Array:
    # Stack before the conversion: stacking would change the byte order back.
    whole = np.stack(parts, axis=1).astype(">i8").tobytes()
    kind = pa.binary(8 * len(parts))
    return pa.Array.from_buffers(kind, len(parts[0]), [None, pa.py_buffer(whole)]).cast(pa.binary())
