"""Between a live arrangement and its checkpoints: which files make one up, and back.

Owns what is captured and how batches in memory get into files; the order of it all on disk is
`tidelake.arrangement.checkpoint`.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidelake.arrangement.batch import Batch, FilterPlan
from tidelake.arrangement.checkpoint import CheckpointDirectory, Saved
from tidelake.arrangement.filebuilder import FileBuilder
from tidelake.arrangement.fileformat import SUFFIX
from tidelake.arrangement.files import FileBatch, open_batch
from tidelake.arrangement.home import Home
from tidelake.arrangement.layout import Layout
from tidelake.arrangement.room import Machine
from tidelake.arrangement.saved import Checkpoint, Followed, SavedBatch
from tidelake.arrangement.settings import ArrangementConfig
from tidelake.arrangement.spine import Spine
from tidelake.env import Env
from tidelake.errors import InternalError
from tidelake.model.frontier import Frontier


@dataclass(frozen=True)
class Captured:
    """What a checkpoint is made of.

    Attributes:
        batches: all; whoever has this has a user of each.
        frontier: of the arrangement.
        content: id of just these contents.
        followed: who was followed, and how far.
        arrangement: its id, if nobody was followed.
    """

    batches: Sequence[Batch]
    frontier: Frontier
    content: str
    followed: Followed | None = None
    arrangement: str = ""

    def let_go(self) -> None:
        """Give up the users of the batches."""
        let_go(self.batches)


def save(captured: Captured, path: str | os.PathLike[str], spine: Spine, env: Env) -> Saved:
    """Save what was captured, and let go of it.

    Args:
        captured: of a spine.
        path: of the directory of checkpoints.
        spine: says what rows look like, and where files may be written.
        env: the clock.

    Errors as `CheckpointDirectory.save`.
    """
    layout = spine.layout
    wanted = Checkpoint(
        number=0,
        content=captured.content,
        saved_ms=env.clock.now_ms(),
        schema=layout.schema,
        domain=layout.domain,
        frontier=captured.frontier,
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
        captured.let_go()


class _Files:
    """The files of some batches. Those of batches in memory are written when they are asked for."""

    def __init__(self, batches: Sequence[Batch], spine: Spine) -> None:
        self._spine = spine
        self._batches = {batch.id + SUFFIX: batch for batch in batches}
        self._written: dict[str, FileBatch] = {}
        # A fork may be writing the very same batches.
        self._folder = tempfile.mkdtemp(prefix="save-", dir=spine.directory)

    def listed(self, known: Mapping[str, SavedBatch]) -> list[SavedBatch]:
        """All of them; those that are known need no file any more."""
        return [
            known.get(name) or SavedBatch(name, batch.rows, batch.negative_rows, self._file(name).size_bytes)
            for name, batch in self._batches.items()
        ]

    def path_of(self, name: str) -> str:
        """Where a file is."""
        return self._file(name).path

    def close(self) -> None:
        """Remove what was written."""
        let_go(list(self._written.values()))
        os.rmdir(self._folder)

    def _file(self, name: str) -> FileBatch:
        batch = self._batches[name]
        if isinstance(batch, FileBatch):
            return batch
        if name not in self._written:
            self._written[name] = self._write(batch)
        return self._written[name]

    def _write(self, batch: Batch) -> FileBatch:
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
    machine: Machine | None = None,
) -> tuple[Spine, Home, Checkpoint]:
    """What an arrangement is made of, from a checkpoint; arguments and errors as `Arrangement.restore`."""
    home = Home(directory, env.ids.fresh())
    try:
        found, files = CheckpointDirectory(path).restore(home.path, number)
        layout = Layout(found.schema, found.domain)
        spine = Spine(layout, config, directory=home.path, env=env, machine=machine, frontier=found.frontier)
        batches: list[Batch] = []
        try:
            batches.extend(open_batch(file, layout, spine.cache, delete=True) for file in files.values())
        except BaseException:
            let_go(batches)
            spine.close()
            raise
        spine.adopt(batches)
    except BaseException:
        home.release()
        raise
    return spine, home, found


def let_go(batches: Sequence[Batch]) -> None:
    """Give up a user of each."""
    for batch in batches:
        batch.release()
