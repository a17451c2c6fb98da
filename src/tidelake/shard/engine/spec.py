"""A reference to a shard, with which any process can read and write its rows. It is not a live handle.

A `ShardSpec` goes to Spark workers inside tasks. It names the lake by its URL; credentials, if any,
come from the worker's own environment.
"""

import threading
from dataclasses import dataclass, replace
from typing import TypeVar

from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import IncompatibleSchema, InternalError, UsageError
from tidelake.model.evolution import dropped, may_be_missing, why_not_readable_as
from tidelake.model.frozen import with_fields
from tidelake.model.names import PlainName
from tidelake.model.schema import Schema
from tidelake.model.time import TimeDomain
from tidelake.process import PerProcess
from tidelake.state.core.codec import decode_record, learn
from tidelake.state.core.state import ShardState
from tidelake.store.url import Stores, open_stores


@dataclass(frozen=True)
class ShardPlace:
    """What is the same in every version of a shard: where it is, its times and the settings of this process.

    It has no schemas: those are of a version, and a call takes them from the version that it works on.
    """

    url: str
    shard_id: str
    domain: TimeDomain
    config: Config


@dataclass(frozen=True)
class ShardSpec:
    """The place of a shard, and the schemas of its rows.

    Attributes:
        url: URL of the lake.
        shard_id: id of the shard in the lake.
        domain: unit of its times.
        schema_id: id of the schema to read and write under.
        schemas: all registered schemas by id: parts may have been written under any of them.
        config: settings of the lake.
        seqno: seqno of the state that the schemas are of. Uploads put it into the names of their parts.
    """

    url: str
    shard_id: PlainName
    domain: TimeDomain
    schema_id: int
    schemas: dict[int, Schema]
    config: Config
    seqno: int = 0

    @property
    def place(self) -> ShardPlace:
        """The spec without what changes with the version."""
        return ShardPlace(self.url, self.shard_id, self.domain, self.config)

    @property
    def schema(self) -> Schema:
        """The schema to read and write under."""
        return self.schemas[self.schema_id]

    @property
    def newest(self) -> bool:
        """Whether `schema` is the newest known one."""
        return self.schema_id == max(self.schemas)

    @property
    def live(self) -> frozenset[int]:
        """Ids of the columns of the newest schema: those that were not dropped."""
        return frozenset(column.id for column in self.schemas[max(self.schemas)].columns)

    @property
    def optional(self) -> frozenset[str]:
        """Names of the columns that a table may lack, because it was made before a change of the schema."""
        return may_be_missing(self.schemas, self.schema) if len(self.schemas) > 1 else frozenset()

    @property
    def dropped(self) -> frozenset[str]:
        """Names of the columns that were dropped, which a table from before that may still have."""
        return dropped(self.schemas, self.schema) if len(self.schemas) > 1 else frozenset()

    def written_under(self, schema_id: int) -> Schema:
        """The schema that a part was written under, by its id."""
        if schema_id not in self.schemas:
            raise InternalError(f"schema {schema_id} of a part is not among {sorted(self.schemas)}")
        return self.schemas[schema_id]

    def at(self, state: ShardState) -> "ShardSpec":
        """This spec with the schemas of a state of the shard."""
        if state.seqno == self.seqno:
            return self
        if len(state.schemas) == len(self.schemas):
            return with_fields(self, seqno=state.seqno)
        return replace(self, seqno=state.seqno, schema_id=state.schema_id, schemas=schemas_of(state))

    def read_as(self, schema_id: int | None) -> "ShardSpec":
        """This spec with another schema to read under; None: with its own."""
        if schema_id is None:
            return self
        # In a list, since the argument may be unhashable.
        if schema_id not in list(self.schemas):
            raise UsageError(f"schema_id={schema_id!r} is none of the schemas 0 to {max(self.schemas)}")
        reason = why_not_readable_as(self.schemas[max(self.schemas)], self.schemas[schema_id])
        if reason:
            raise IncompatibleSchema(
                f"rows cannot be read under schema {schema_id}: {reason}; read under a later schema"
            )
        return replace(self, schema_id=schema_id)


def schemas_of(state: ShardState) -> dict[int, Schema]:
    """All schemas that a state knows, by id."""
    return {id_: version.schema for id_, version in sorted(state.schemas.items())}


_ENV = PerProcess(Env)
_OPENED: PerProcess[dict[tuple[str, Config], Stores]] = PerProcess(dict)


def env_here() -> Env:
    """The environment of this process, for work that has a spec and no handle of the lake, as workers do."""
    return _ENV.get()


def stores_of(spec: ShardSpec | ShardPlace) -> Stores:
    """The stores of a spec, opened once per process (a forked child opens its own)."""
    opened, key = _OPENED.get(), (spec.url, spec.config)
    if key not in opened:
        opened[key] = open_stores(spec.url, spec.config, env_here(), create=False, for_parts=True)
    return opened[key]


T = TypeVar("T")

_lock = threading.Lock()
_learned: set[type] = set()


def decoded(kind: str, data: bytes, type_: type[T], name: str) -> T:
    """As `tidelake.state.core.codec.decode_record`, for any type: registers the type at its first use."""
    if type_ not in _learned:
        with _lock:
            learn(type_)
            _learned.add(type_)
    return decode_record(kind, data, type_, name)
