"""A batch that is stored but not yet appended: a handle that is used once.

Owns what may be done with such a batch (rewrite its times, send it to another process, delete it) and who is
responsible for its parts. Must not know how it was written, nor how it is appended. Invariant: a handle
appends, deletes or sends its batch at most once, and a forgotten handle warns.
"""

import threading
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from tidelake.env import Env
from tidelake.errors import BatchConsumed, CorruptionError, InvalidRewrite, UsageError
from tidelake.model.batch import HollowBatch, Run
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.model.names import PlainName, owner
from tidelake.model.time import Time
from tidelake.process import ProcessOrigin
from tidelake.shard.engine.spec import ShardPlace, ShardSpec, decoded, env_here, stores_of
from tidelake.shard.runs.upload import discard
from tidelake.state.core.codec import encode_record
from tidelake.store.protocols import BlobStore
from tidelake.store.url import Stores


class BatchStores(Protocol):
    """A place to open a batch in: a `Shard`."""

    stores: Stores
    env: Env

    @property
    def spec(self) -> ShardPlace:
        """Which shard it is."""


@dataclass(frozen=True)
class SentBatch:
    """A batch in the form that goes to another process.

    Attributes:
        shard_id: the shard that it was written for.
        batch: its description.
    """

    shard_id: PlainName
    batch: HollowBatch


class Batch:
    """Stored updates of `[lower, upper)` that no state names yet.

    It is used once: appended (`append_batches`), deleted, or sent to another process as bytes. A second use
    is refused with `BatchConsumed`. If it is never used, it warns, and its stored parts stay in the store.

    Attributes:
        hollow: the description of the batch.
        sent: whether it came from bytes, so that copies of it may exist.
    """

    def __init__(
        self,
        spec: ShardSpec | ShardPlace,
        blobs: BlobStore,
        env: Env,
        hollow: HollowBatch,
        *,
        sent: bool = False,
    ) -> None:
        self._use = ""
        self._offered = False
        self._lock = threading.Lock()
        self._origin = ProcessOrigin()
        self._spec, self._blobs, self._env = spec, blobs, env
        self.hollow = hollow
        self.sent = sent

    @classmethod
    def from_bytes(cls, place: BatchStores | ShardSpec | ShardPlace, data: bytes) -> "Batch":
        """The batch in the bytes of `to_bytes`; the caller is responsible for its parts from now on.

        Args:
            place: the shard, or its spec.
            data: the bytes from `to_bytes`.

        Raises:
            UsageError: it was written for another shard.
            CorruptionError, FormatTooNew: the bytes are damaged, or of a newer version.
        """
        if isinstance(place, ShardSpec | ShardPlace):
            return cls(place, stores_of(place).blobs, env_here(), decode_batch(place, data), sent=True)
        return cls(place.spec, place.stores.blobs, place.env, decode_batch(place.spec, data), sent=True)

    def __repr__(self) -> str:
        used = f", {self._use}" if self._use else ""
        text, bounds = self._spec.domain.text, self.bounds
        covered = f"[{text(bounds.lower)}, {text(bounds.upper)}) since {text(bounds.since)}"
        return f"Batch({covered}, rows={self.rows}, runs={self.runs}{used})"

    @property
    def shard_id(self) -> str:
        """The shard that it was written for."""
        return self._spec.shard_id

    @property
    def bounds(self) -> Bounds:
        """The interval that it covers."""
        return self.hollow.bounds

    @property
    def rows(self) -> int:
        """Number of updates in it."""
        return self.hollow.rows

    @property
    def runs(self) -> int:
        """Number of its sorted runs."""
        return len(self.hollow.runs)

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of all its parts, including inline parts, under whose names nothing is stored."""
        return tuple(part.name for part in self.hollow.parts())

    def rewrite_times(self, frontier: Frontier, new_upper: Frontier) -> None:
        """Move all times before `frontier` up to it, and the upper to `new_upper`. Writes nothing.

        May be repeated, as long as the frontier does not go back.

        Raises:
            InvalidRewrite: the rewrite is not possible; gives the reason. The batch is unchanged.
            UsageError: an argument is not a frontier.
        """
        check_frontier(frontier, "frontier")
        check_frontier(new_upper, "new_upper")
        with self._lock:
            self._check_unused()
            hollow = self.hollow
            _check_rewrite(hollow, self._spec, frontier, new_upper)
            at = frontier.elements[0]
            runs = tuple(
                Run(tuple(replace(part, rewrite=at) for part in run.parts), run.truncated)
                for run in hollow.runs
            )
            bounds = replace(hollow.bounds, upper=new_upper)
            self.hollow = HollowBatch(bounds, runs)

    def to_bytes(self) -> bytes:
        """A form for another process (`from_bytes`), which then owns the parts; no credentials."""
        self.take("sent away")
        return encode_record("batch", SentBatch(self.shard_id, self.hollow))

    def delete(self) -> None:
        """Delete the parts. One store call each; garbage collection deletes those that the store does not.

        It also deletes the parts of a batch that came from bytes: another process may append a copy of it.
        """
        self.take("deleted")
        self.discard()

    def discard(self) -> None:
        """Delete the parts of a used batch, none of which is in a state; see `delete`."""
        # SUBTLE: after an append that failed, but was not refused, a state may name the parts.
        if not (self._offered or self.sent):
            discard(self._blobs, self._env, self.hollow.runs)

    def take(self, use: str) -> None:
        """Mark the batch as used; called by the append.

        Raises:
            BatchConsumed: it was used before.
        """
        with self._lock:
            self._check_unused()
            self._use = use

    def give_back(self, *, offered: bool) -> None:
        """Undo `take` after a refusal or failure. `offered`: a state may name the parts, so they stay."""
        with self._lock:
            self._use = ""
            self._offered = self._offered or offered

    def _check_unused(self) -> None:
        if self._use:
            raise BatchConsumed(f"this batch was {self._use} already: a batch is used once")

    def __del__(self) -> None:
        # Nothing to warn of: construction failed, the batch was used, or it is a fork's copy of the parent's.
        if getattr(self, "hollow", None) is None or self._use or not self._origin.is_here:
            return
        stored = [part.name for part in self.hollow.parts() if part.inline is None]
        if stored:
            warn_forgotten("a batch was neither appended nor deleted", stored, self)
        elif self.rows:
            message = (
                f"a batch was neither appended nor deleted; its rows are lost: {', '.join(self.part_names)}"
            )
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)


def check_frontier(value: object, name: str) -> None:
    """Refuse a value that is not a frontier, such as a plain time.

    Raises:
        UsageError: it is not a `Frontier`.
    """
    if not isinstance(value, Frontier):
        raise UsageError(f"{name}={value!r} is no frontier: give tidelake.Frontier.of(...)")


def warn_forgotten(what: str, names: Iterable[str], source: object) -> None:
    """Warn that stored parts were left behind."""
    warnings.warn(
        f"{what}; its parts stay in the store: {', '.join(names)}",
        ResourceWarning,
        stacklevel=3,
        source=source,
    )


def decode_batch(spec: ShardSpec | ShardPlace, data: bytes) -> HollowBatch:
    """The description in the bytes of a batch of this shard; errors as `Batch.from_bytes`."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise UsageError(f"a batch comes as bytes, not as {type(data).__name__}: use Batch.to_bytes()")
    found = decoded("batch", bytes(data), SentBatch, "batch")
    if found.shard_id != spec.shard_id:
        raise UsageError(
            f"a batch for shard {found.shard_id} cannot be used with {spec.shard_id}: "
            "append it to the collection that it was written for"
        )
    for part in found.batch.parts():
        if owner(part.name) != spec.shard_id:
            raise CorruptionError("batch", f"it names {part.name!r}, a part of another shard")
    return found.batch


def _check_rewrite(
    hollow: HollowBatch, spec: ShardSpec | ShardPlace, frontier: Frontier, new_upper: Frontier
) -> None:
    bounds, minimum = hollow.bounds, Frontier.of(spec.domain.minimum)
    earlier = [part.rewrite for part in hollow.parts() if part.rewrite is not None]
    if not spec.domain.total_order:
        raise InvalidRewrite(f"times of {spec.domain} cannot be rewritten: they have no total order")
    for holds, reason in (
        (frontier < new_upper, f"the frontier {frontier} is not before the new upper {new_upper}"),
        (bounds.upper <= new_upper, f"the new upper {new_upper} is before the batch's {bounds.upper}"),
        (bounds.lower <= frontier, f"the frontier {frontier} is before the batch's lower {bounds.lower}"),
        (bounds.since == minimum, f"the batch was folded to {bounds.since}"),
        (
            all(frontier >= Frontier.of(at) for at in earlier),
            f"the frontier {frontier} is before that of an earlier rewrite, {_latest(earlier)}",
        ),
    ):
        if not holds:
            raise InvalidRewrite(f"the times of the batch cannot be rewritten: {reason}")


def _latest(times: list[Time]) -> str:
    return str(Frontier.of(max(times))) if times else ""
