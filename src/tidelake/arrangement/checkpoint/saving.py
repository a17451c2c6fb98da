"""Saves an arrangement as a checkpoint, and restores it.

Owns what is captured, and how batches in memory get into files. The directory and the order of writes are
those of `tidelake.arrangement.checkpoint.checkpoint`.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidelake.arrangement.batch.batch import FilterPlan, IndexBatch, release_all
from tidelake.arrangement.batch.filebuilder import FileBuilder
from tidelake.arrangement.batch.fileformat import SUFFIX
from tidelake.arrangement.batch.files import FileBatch, open_batch
from tidelake.arrangement.batch.layout import Layout
from tidelake.arrangement.checkpoint.checkpoint import CheckpointDirectory, Saved
from tidelake.arrangement.checkpoint.home import Home
from tidelake.arrangement.checkpoint.saved import Checkpoint, Followed, SavedBatch
from tidelake.arrangement.merge.memorybudget import SystemResources
from tidelake.arrangement.merge.settings import ArrangementConfig
from tidelake.arrangement.merge.spine import AsyncSpine
from tidelake.env import Env
from tidelake.errors import InternalError
from tidelake.model.frontier import Frontier


@dataclass(frozen=True)
class Captured:
    """The state of an arrangement that a checkpoint saves.

    Attributes:
        batches: all batches; this object is a user of each, until they are released.
        since: the `since` of the arrangement.
        followed: the collection that is followed, and how far; None: none.
        arrangement: id of the arrangement, if it follows no collection.
    """

    batches: Sequence[IndexBatch]
    since: Frontier
    content: str
    followed: Followed | None = None
    arrangement: str = ""


def save(captured: Captured, path: str | os.PathLike[str], spine: AsyncSpine, env: Env) -> Saved:
    """Save what was captured, and release it. Raises as `CheckpointDirectory.save`."""
    layout = spine.layout
    wanted = Checkpoint(
        number=0,
        content=captured.content,
        saved_ms=env.clock.now_ms(),
        schema=layout.schema,
        domain=layout.domain,
        frontier=captured.since,
        batches=(),
        followed=captured.followed,
        arrangement=captured.arrangement,
    )
    try:
        files = _Files(captured.batches, spine)
        try:
            return CheckpointDirectory(path).save(wanted, files.listed, files.path_of)
        finally:
            files.close()
    finally:
        release_all(captured.batches)


class _Files:
    """The files of some batches. A batch in memory is written to a temporary file when it is needed."""

    def __init__(self, batches: Sequence[IndexBatch], spine: AsyncSpine) -> None:
        self._spine = spine
        self._batches = {batch.id + SUFFIX: batch for batch in batches}
        self._written: dict[str, FileBatch] = {}
        # A folder of its own: a forked arrangement may be writing the same batches.
        self._folder = tempfile.mkdtemp(prefix="save-", dir=spine.directory)

    def listed(self, known: Mapping[str, SavedBatch]) -> list[SavedBatch]:
        """All batches. No file is written for a batch that the directory has already."""
        return [
            known.get(name) or SavedBatch(name, batch.rows, batch.negative_rows, self._file(name).size_bytes)
            for name, batch in self._batches.items()
        ]

    def path_of(self, name: str) -> str:
        """The path of the file with a name."""
        return self._file(name).path

    def close(self) -> None:
        """Remove the temporary files."""
        release_all(self._written.values())
        os.rmdir(self._folder)

    def _file(self, name: str) -> FileBatch:
        batch = self._batches[name]
        if isinstance(batch, FileBatch):
            return batch
        if name not in self._written:
            self._written[name] = self._write(batch)
        return self._written[name]

    def _write(self, batch: IndexBatch) -> FileBatch:
        plan = FilterPlan(batch.rows, batch.key_lower, batch.key_upper)
        builder = FileBuilder(self._spine.layout, self._folder, batch.id, plan, self._spine.cache)
        try:
            for rows in batch.scan():
                builder.add(rows)
            built = builder.finish()
        except BaseException:
            builder.abandon()
            raise
        if built is None:
            raise InternalError(f"batch {batch.id} has no rows")
        return built


def restored(
    path: str | os.PathLike[str],
    number: int | None,
    *,
    directory: str | os.PathLike[str] | None,
    config: ArrangementConfig | None,
    env: Env,
    machine: SystemResources | None = None,
) -> tuple[AsyncSpine, Home, Checkpoint]:
    """The parts of an arrangement, from a checkpoint; arguments and errors as `Arrangement.restore`."""
    home = Home(directory, env.ids.fresh())
    try:
        found, files = CheckpointDirectory(path).restore(home.path, number)
        layout = Layout(found.schema, found.domain)
        spine = AsyncSpine(
            layout, config, directory=home.path, env=env, machine=machine, since=found.frontier
        )
        batches: list[IndexBatch] = []
        try:
            batches.extend(open_batch(file, layout, spine.cache, delete=True) for file in files.values())
        except BaseException:
            release_all(batches)
            spine.close()
            raise
        spine.adopt(batches)
    except BaseException:
        home.release()
        raise
    return spine, home, found
