"""The metadata of a published Iceberg table, a table without a catalog; needs the extra `iceberg`.

Each version is one snapshot, and a file `metadata/vN.metadata.json` that lists the snapshots that are kept:
a catalog can be given it, and engines that take a folder find it. Columns are found by the field ids that
parts have, or by their names there. Rows that parts have and the table has not are position deletes.

INVARIANT: that file is a new one, and the last that is written, so of two processes one is first, and no
reader sees half of a version. No engine deletes a part: the table forbids it (`gc.enabled`).
"""

import io
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.avro.codecs import AvroCompressionCodec
from pyiceberg.io import OutputFile
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from tidelake.errors import BlobExists, BlobNotFound
from tidelake.model.schema import DIFF
from tidelake.tables.publishedfiles import (
    VERSIONS,
    PublishedContents,
    PublishedVersion,
    TableFile,
    TableFolder,
    belongs,
    decoded,
    encoded,
    number_of,
)

_META = "metadata/"
_HINT = _META + "version-hint.text"
# Ids of columns that files have and tables have not: no column ever gets such a one.
_NO_COLUMN = 2_000_000_000
_CODEC: AvroCompressionCodec = "null"
# Ids that Iceberg keeps for the columns of position deletes.
_DELETES = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {b"PARQUET:field_id": b"2147483546"}),
        pa.field("pos", pa.int64(), False, {b"PARQUET:field_id": b"2147483545"}),
    ]
)


class _Held(io.BytesIO):
    """Bytes that stay when the file that they are written to is closed."""

    def close(self) -> None:
        self.kept = self.getvalue()
        super().close()


class _Output(OutputFile):
    """A file of the folder, which is put when it is written."""

    def __init__(self, folder: TableFolder, name: str) -> None:
        super().__init__(folder.at(name))
        self._folder, self._name, self._data = folder, name, _Held()

    def __len__(self) -> int:
        return len(self._data.kept)

    def exists(self) -> bool:
        return False

    def to_input_file(self) -> Any:
        raise NotImplementedError

    def create(self, overwrite: bool = False) -> Any:  # noqa: ARG002 - the signature
        return self._data

    def put(self) -> None:
        """Store what was written."""
        self._folder.put(self._name, self._data.kept)


class _Writer(ManifestWriterV2):
    """Writes a manifest of data files, or of deletes."""

    def __init__(self, output: _Output, schema: Schema, snapshot: int, content: ManifestContent) -> None:
        super().__init__(UNPARTITIONED_PARTITION_SPEC, schema, output, snapshot, _CODEC)
        self._content = content

    def content(self) -> ManifestContent:
        return self._content

    @property
    def _meta(self) -> dict[str, str]:
        kind = "data" if self._content == ManifestContent.DATA else "deletes"
        return {**super()._meta, "content": kind}


@dataclass(frozen=True)
class IcebergFiles:
    """The metadata of a table in a folder."""

    folder: TableFolder

    def read(self) -> tuple[Sequence[PublishedVersion], int]:
        """See `PublishedTable.read`."""
        last = self._last()
        if last is None:
            return (), 1
        told = json.loads(self.folder.get(_json(last)))["properties"].get(VERSIONS, "[]")
        return decoded(told), last + 1

    def features(self, what: PublishedContents) -> tuple[str, ...]:  # noqa: ARG002 - of another format
        """None: a reader of format 2 knows all of it."""
        return ()

    def commit(
        self, kept: Sequence[PublishedVersion], new: PublishedVersion, what: PublishedContents
    ) -> None:
        """See `PublishedTable.commit`."""
        before = json.loads(self.folder.get(_json(kept[-1].number))) if kept else {}
        schema = pyarrow_to_schema(what.schema)
        manifests = list(self._manifests(new, schema, what.files))
        name = f"{_META}{new.number}-{new.id}-list.avro"
        output, sequence = _Output(self.folder, name), new.number
        parent = kept[-1].number if kept else None
        with write_manifest_list(2, output, new.number, parent, sequence, _CODEC) as lists:
            lists.add_manifests(manifests)
        output.put()
        snapshot = {
            "snapshot-id": new.number,
            "sequence-number": sequence,
            "timestamp-ms": new.made_ms,
            "manifest-list": self.folder.at(name),
            "summary": {
                "operation": "overwrite",
                "tidelake.time": str(new.through),
                "total-records": str(sum(file.rows - len(file.gone) for file in what.files)),
            },
            "schema-id": new.schema_id,
            **({} if parent is None else {"parent-snapshot-id": parent}),
        }
        ids = {one.number for one in kept}
        meta = {
            "format-version": 2,
            "table-uuid": str(uuid.UUID(new.table)),
            "location": self.folder.url,
            "last-sequence-number": sequence,
            "last-updated-ms": new.made_ms,
            "last-column-id": max((*schema._lazy_id_to_field, before.get("last-column-id", 0))),
            "schemas": _schemas(before, kept, schema, new),
            "current-schema-id": new.schema_id,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "default-spec-id": 0,
            "last-partition-id": 999,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "properties": {
                VERSIONS: encoded((*kept, new)),
                "tidelake.time": str(new.through),
                "gc.enabled": "false",
                "schema.name-mapping.default": json.dumps(_mapping(what.names, what.times)),
            },
            "current-snapshot-id": new.number,
            "snapshots": [*(s for s in before.get("snapshots", ()) if s["snapshot-id"] in ids), snapshot],
            "snapshot-log": [
                *(s for s in before.get("snapshot-log", ()) if s["snapshot-id"] in ids),
                {"snapshot-id": new.number, "timestamp-ms": new.made_ms},
            ],
            "refs": {"main": {"snapshot-id": new.number, "type": "branch"}},
        }
        self.folder.put(_json(new.number), json.dumps(meta).encode())

    def finish(self, kept: Sequence[PublishedVersion]) -> None:
        """See `PublishedTable.finish`."""
        # Another process may write a hint at the same time, which may be of an older version.
        while (last := self._last()) is not None and not self._hints(last):
            self.folder.delete(_HINT)
            with suppress(BlobExists):
                self.folder.put(_HINT, str(last).encode())
        self.folder.delete_unless(lambda name: belongs(name, kept))

    def metadata(self, newest: PublishedVersion) -> str:
        """See `PublishedTable.metadata`."""
        return self.folder.at(_json(newest.number))

    def _last(self) -> int | None:
        """The number of the newest version; None: there is none."""
        names = [name for name in self.folder.list(_META + "v") if name.endswith(".json")]
        return max((n for name in names if (n := number_of(name)) is not None), default=None)

    def _hints(self, number: int) -> bool:
        """Whether the hint is there, and names this version."""
        try:
            return self.folder.get(_HINT) == str(number).encode()
        except BlobNotFound:
            return False

    def _manifests(
        self, new: PublishedVersion, schema: Schema, files: Iterable[TableFile]
    ) -> Iterable[ManifestFile]:
        files = list(files)
        rows = [self._file(file.url, file.rows, file.size_bytes) for file in files]
        if rows:
            yield self._manifest(new, schema, ManifestContent.DATA, rows)
        deletes = self._deletes(new, [file for file in files if len(file.gone)])
        if deletes is not None:
            yield self._manifest(new, schema, ManifestContent.DELETES, [deletes])

    def _manifest(
        self, new: PublishedVersion, schema: Schema, content: ManifestContent, files: Iterable[DataFile]
    ) -> ManifestFile:
        output = _Output(self.folder, f"{_META}{new.number}-{new.id}-{content.name.lower()}.avro")
        with _Writer(output, schema, new.number, content) as writer:
            for file in files:
                added = ManifestEntryStatus.ADDED
                writer.add_entry(
                    ManifestEntry.from_args(status=added, snapshot_id=new.number, data_file=file)
                )
        output.put()
        return writer.to_manifest_file()

    def _deletes(self, new: PublishedVersion, files: Sequence[TableFile]) -> DataFile | None:
        """A file with the positions of rows that are none of the table's."""
        if not files:
            return None
        tables = [
            pa.Table.from_arrays([pa.repeat(file.url, len(file.gone)), pa.array(file.gone)], schema=_DELETES)
            for file in sorted(files, key=lambda file: file.url)
        ]
        sink = io.BytesIO()
        pq.write_table(pa.concat_tables(tables), sink, compression="zstd", store_schema=False)
        name = f"data/{new.number}-{new.id}-deletes.parquet"
        self.folder.put(name, sink.getvalue())
        rows = sum(len(file.gone) for file in files)
        return self._file(self.folder.at(name), rows, sink.tell(), DataFileContent.POSITION_DELETES)

    @staticmethod
    def _file(
        url: str, rows: int, size_bytes: int, content: DataFileContent = DataFileContent.DATA
    ) -> DataFile:
        return DataFile.from_args(
            content=content,
            file_path=url,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=rows,
            file_size_in_bytes=size_bytes,
        )


def _json(number: int) -> str:
    return f"{_META}v{number}.metadata.json"


def _schemas(
    before: Mapping[str, Any], kept: Sequence[PublishedVersion], schema: Schema, new: PublishedVersion
) -> list[dict[str, Any]]:
    """The schemas of the versions that are kept, and of the new one."""
    used = {one.schema_id for one in kept} - {new.schema_id}
    now = json.loads(schema.model_dump_json()) | {"schema-id": new.schema_id}
    return [*(one for one in before.get("schemas", ()) if one["schema-id"] in used), now]


def _mapping(names: Mapping[int, str], times: Sequence[str]) -> list[dict[str, Any]]:
    """The names of all columns in the files, for readers that do not go by ids alone.

    Those that the table has not are mapped as well: pyiceberg refuses files with others.
    """
    ids = {**names, **dict(enumerate((*times, DIFF), _NO_COLUMN))}
    return [{"field-id": id_, "names": [name]} for id_, name in sorted(ids.items())]
