"""Numbers of lines in files."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tidelake.cdc.core.events import Ints


@dataclass
class LineNumbers:
    """Numbers the lines of the batches of one task, in their order."""

    _last: tuple[object, int] = field(default=(None, 0))

    def of(self, files: pa.Array, blocks: Ints) -> Ints:
        """The number of each line, from 1 at the begin of its file or block: Spark reads lines in order."""
        codes = files.dictionary_encode().indices.fill_null(-1).to_numpy()
        begins = np.append(True, (codes[1:] != codes[:-1]) | (blocks[1:] != blocks[:-1]))
        at = np.flatnonzero(begins)
        lengths = np.diff(np.append(at, len(codes)))
        numbers: Ints = np.arange(1, len(codes) + 1) - np.repeat(at, lengths)
        if self._last[0] == (files[0].as_py(), int(blocks[0])):
            numbers[: at[1] if len(at) > 1 else len(codes)] += self._last[1]
        self._last = ((files[-1].as_py(), int(blocks[-1])), int(numbers[-1]))
        return numbers
