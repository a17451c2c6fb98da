"""The log of a published Delta table, written without its library.

Each version is one commit, `N.json`, and then a checkpoint of the same version, so that older commits may go.
Rows that parts have and the table has not are in deletion vectors. Columns that have another name in the
parts are mapped.

INVARIANT: the commit is a new file, so of two processes one is first, and no reader sees half of it. No
engine writes to the table: it asks for a feature of writers that none has.
"""

import io
import json
import posixpath
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tidelake.errors import BlobExists, BlobNotFound, UsageError
from tidelake.tables.publishedfiles import (
    VERSIONS,
    PublishedContents,
    PublishedVersion,
    TableFile,
    TableFolder,
    belongs,
    decoded,
    encoded,
    field_id,
    number_of,
)

_MAPPING, _VECTORS, _ZONELESS, _OURS = "columnMapping", "deletionVectors", "timestampNtz", "tidelake"
_LOG = "_delta_log/"
# The portable format of an array of Roaring bitmaps, and of one without run containers.
_ARRAY, _BITMAP = 1681511377, 12346
_FEW = 4096

_TYPES = {
    pa.bool_(): "boolean",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}
_VECTOR = pa.struct(
    {
        "storageType": pa.string(),
        "pathOrInlineDv": pa.string(),
        "offset": pa.int32(),
        "sizeInBytes": pa.int32(),
        "cardinality": pa.int64(),
    }
)
_TEXTS = pa.map_(pa.string(), pa.string())
_CHECKPOINT = pa.schema(
    {
        "protocol": pa.struct(
            {
                "minReaderVersion": pa.int32(),
                "minWriterVersion": pa.int32(),
                "readerFeatures": pa.list_(pa.string()),
                "writerFeatures": pa.list_(pa.string()),
            }
        ),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": _TEXTS}),
                "schemaString": pa.string(),
                "partitionColumns": pa.list_(pa.string()),
                "configuration": _TEXTS,
                "createdTime": pa.int64(),
            }
        ),
        "add": pa.struct(
            {
                "path": pa.string(),
                "partitionValues": _TEXTS,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "stats": pa.string(),
                "deletionVector": _VECTOR,
            }
        ),
        "remove": pa.struct(
            {
                "path": pa.string(),
                "deletionTimestamp": pa.int64(),
                "dataChange": pa.bool_(),
                "deletionVector": _VECTOR,
            }
        ),
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
    }
)


@dataclass(frozen=True)
class DeltaLog:
    """The log of a table in a folder."""

    folder: TableFolder

    def read(self) -> tuple[Sequence[PublishedVersion], int]:
        """See `PublishedTable.read`."""
        commits = [
            n
            for name in self.folder.list(_LOG)
            if name.endswith(".json") and (n := number_of(name)) is not None
        ]
        if not commits:
            return (), 0
        told: dict[str, str] = {}
        for action in self._commit(max(commits)):
            told |= action.get("commitInfo", {})
        if VERSIONS not in told:
            raise UsageError(
                f"another program has written to the published table {self.folder.url}: end it (unpublish), "
                "and publish again"
            )
        return decoded(told[VERSIONS]), max(commits) + 1

    def features(self, what: PublishedContents) -> tuple[str, ...]:
        """The features of the format that a reader needs."""
        found = [_MAPPING] if what.renamed else []
        found += [_VECTORS] if any(len(file.gone) for file in what.files) else []
        found += [_ZONELESS] if "timestamp_ntz" in json.dumps(_struct(what.schema, names=None)) else []
        return tuple(found)

    def commit(
        self, kept: Sequence[PublishedVersion], new: PublishedVersion, what: PublishedContents
    ) -> None:
        """See `PublishedTable.commit`."""
        before = {} if not new.number else self._added(new.number - 1)
        adds = self._adds(new, what.files)
        info = {
            "timestamp": new.made_ms,
            "operation": "WRITE",
            "operationParameters": {},
            "tidelake.time": str(new.through),
            VERSIONS: encoded((*kept, new)),
        }
        actions: list[dict[str, Any]] = [{"commitInfo": info}, *_head(new, what)]
        now = {_key(add) for add in adds}
        actions += [
            {
                "remove": {
                    "path": add["path"],
                    "deletionTimestamp": new.made_ms,
                    "dataChange": True,
                    **({"deletionVector": add["deletionVector"]} if "deletionVector" in add else {}),
                }
            }
            for key, add in before.items()
            if key not in now
        ]
        actions += [{"add": {**add, "dataChange": _key(add) not in before}} for add in adds]
        self.folder.put(_json(new.number), b"\n".join(json.dumps(one).encode() for one in actions))

    def finish(self, kept: Sequence[PublishedVersion]) -> None:
        """See `PublishedTable.finish`."""
        there = self.folder.list(_LOG)
        for one in kept:
            if _checkpoint(one.number) not in there and _json(one.number) in there:
                # Another process may do the same, or delete the version.
                with suppress(BlobExists, BlobNotFound):
                    self._put_checkpoint(one.number)
        self.folder.delete_unless(lambda name: belongs(name, kept))

    def metadata(self, newest: PublishedVersion) -> str:  # noqa: ARG002 - the same for all versions
        """See `PublishedTable.metadata`."""
        return self.folder.url

    def _put_checkpoint(self, number: int) -> None:
        lines = [a for a in self._commit(number) if a.keys() <= {"protocol", "metaData", "add"}]
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist([_as_row(line) for line in lines], _CHECKPOINT), sink)
        self.folder.put(_checkpoint(number), sink.getvalue())

    def _commit(self, number: int) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.folder.get(_json(number)).splitlines()]

    def _added(self, number: int) -> dict[tuple[str, ...], dict[str, Any]]:
        """The files of a version: each commit adds all of them."""
        found = [action["add"] for action in self._commit(number) if "add" in action]
        return {_key(add): add for add in found}

    def _path(self, url: str) -> str:
        """How the log names a file.

        Of a lake in a folder by the way from the table to it, since DuckDB knows no other. Where no folders
        are, such as in S3, that is no way, and it is the URL.
        """
        root = self.folder.url
        if root.startswith("file:"):
            url = posixpath.relpath(url, root)
        return quote(url, safe=":/@")

    def _adds(self, new: PublishedVersion, files: Iterable[TableFile]) -> list[dict[str, Any]]:
        vectors, name, adds = bytearray(b"\x01"), f"vectors/{new.number}-{new.id}.bin", []
        for file in files:
            add = {
                "path": self._path(file.url),
                "partitionValues": {},
                "size": file.size_bytes,
                "modificationTime": new.made_ms,
                "stats": json.dumps({"numRecords": file.rows, "tightBounds": not len(file.gone)}),
            }
            if len(file.gone):
                data = _roaring(file.gone)
                add["deletionVector"] = {
                    "storageType": "p",
                    "pathOrInlineDv": quote(self.folder.at(name), safe=":/@"),
                    "offset": len(vectors),
                    "sizeInBytes": len(data),
                    "cardinality": len(file.gone),
                }
                vectors += struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
            adds.append(add)
        if len(vectors) > 1:
            self.folder.put(name, bytes(vectors))
        return adds


def _json(number: int) -> str:
    return f"{_LOG}{number:020d}.json"


def _checkpoint(number: int) -> str:
    return f"{_LOG}{number:020d}.checkpoint.parquet"


def _key(add: dict[str, Any]) -> tuple[str, ...]:
    """What tells files of a log apart."""
    vector = add.get("deletionVector") or {}
    return (add["path"], str(vector.get("pathOrInlineDv")), str(vector.get("offset")))


def _as_row(action: dict[str, Any]) -> dict[str, Any]:
    """An action as a row of a checkpoint, in which maps are pairs."""

    def pairs(value: Any) -> Any:
        return list(value.items())

    if add := action.get("add"):
        return {"add": {**add, "partitionValues": [], "dataChange": False}}
    if meta := action.get("metaData"):
        return {
            "metaData": {
                **meta,
                "format": {"provider": "parquet", "options": []},
                "configuration": pairs(meta["configuration"]),
            }
        }
    return action


def _head(new: PublishedVersion, what: PublishedContents) -> list[dict[str, Any]]:
    """The actions that say what readers need, and what the columns are."""
    protocol: dict[str, Any] = {"minReaderVersion": 3 if new.features else 1, "minWriterVersion": 7}
    if new.features:
        protocol["readerFeatures"] = list(new.features)
    protocol["writerFeatures"] = [*new.features, _OURS]
    names = what.names if _MAPPING in new.features else None
    settings = {"tidelake.time": str(new.through)}
    if names is not None:
        settings |= {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": str(1 << 30)}
    if _VECTORS in new.features:
        settings["delta.enableDeletionVectors"] = "true"
    meta = {
        "id": new.table,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(_struct(what.schema, names=names)),
        "partitionColumns": [],
        "configuration": settings,
        "createdTime": new.made_ms,
    }
    return [{"protocol": protocol}, {"metaData": meta}]


def _struct(fields: Iterable[pa.Field], *, names: Mapping[int, str] | None) -> dict[str, Any]:
    return {"type": "struct", "fields": [_field(field, names=names) for field in fields]}


def _field(field: pa.Field, *, names: Mapping[int, str] | None) -> dict[str, Any]:
    id_, told = field_id(field), dict[str, Any]()
    if names is not None:
        told = {"delta.columnMapping.id": id_, "delta.columnMapping.physicalName": names.get(id_, field.name)}
    return {
        "name": field.name,
        "type": _type(field.type, names=names),
        "nullable": field.nullable,
        "metadata": told,
    }


def _type(kind: pa.DataType, *, names: Mapping[int, str] | None) -> Any:
    if kind in _TYPES:
        return _TYPES[kind]
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        item = kind.value_field
        return {"type": "array", "elementType": _type(item.type, names=names), "containsNull": item.nullable}
    return _struct([kind.field(i) for i in range(kind.num_fields)], names=names)


def _roaring(numbers: npt.NDArray[np.int64]) -> bytes:
    """Ascending numbers in the portable format of an array of Roaring bitmaps, one for each 2^32 of them."""
    maps = np.unique(numbers >> 32)
    out = [struct.pack("<iq", _ARRAY, len(maps))]
    for high in maps:
        low = (numbers[(numbers >> 32) == high] & 0xFFFFFFFF).astype(np.uint32)
        chunks, starts = np.unique(low >> 16, return_index=True)
        pieces = [piece & 0xFFFF for piece in np.split(low, starts[1:])]
        stored = [_container(piece.astype("<u2")) for piece in pieces]
        head = struct.pack("<II", _BITMAP, len(chunks))
        for chunk, piece in zip(chunks, pieces, strict=True):
            head += struct.pack("<HH", int(chunk), len(piece) - 1)
        first = len(head) + 4 * len(chunks)
        offsets = first + np.cumsum([0, *map(len, stored[:-1])])
        out += [struct.pack("<i", int(high)), head, offsets.astype("<u4").tobytes(), *stored]
    return b"".join(out)


def _container(values: npt.NDArray[np.uint16]) -> bytes:
    if len(values) <= _FEW:
        return values.tobytes()
    bits = np.zeros(1 << 16, np.uint8)
    bits[values] = 1
    return np.packbits(bits, bitorder="little").tobytes()
