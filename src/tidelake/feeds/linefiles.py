"""Lines of a large transaction, by their tables, in files of this machine while they are committed."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa


class LineFiles:
    """Files of batches for each table: one a schema, as less is read of lines that name no connector."""

    def __init__(self) -> None:
        self._folder: TemporaryDirectory[str] | None = None
        self._files: dict[tuple[str, pa.Schema], tuple[Path, pa.ipc.RecordBatchStreamWriter]] = {}

    def put(self, table: str, batch: pa.RecordBatch) -> None:
        """Add a batch to those of a table."""
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="tidelake-")
        key = (table, batch.schema)
        if key not in self._files:
            path = Path(self._folder.name, str(len(self._files)))
            self._files[key] = path, pa.ipc.new_stream(str(path), batch.schema)
        self._files[key][1].write_batch(batch)

    def of(self, table: str) -> Iterator[pa.RecordBatch]:
        """The batches of a table. Nothing can be added to it any more."""
        for (name, _), (path, writer) in self._files.items():
            if name == table:
                writer.close()
                with pa.OSFile(str(path)) as file:
                    yield from pa.ipc.open_stream(file)

    def close(self) -> None:
        """Delete the files."""
        for _, writer in self._files.values():
            writer.close()
        if self._folder is not None:
            self._folder.cleanup()
