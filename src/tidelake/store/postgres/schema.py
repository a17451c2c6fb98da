"""The tables of the log, and the row of each lake.

Owns the schema `tidelake` of a database, its version, and which lake may use it from where. Must not know how
entries are written.

    tidelake.schema_version   one row: the version of these tables
    tidelake.lake             a row for each lake: its id, and the place of its objects
    tidelake.head             a row for each key: the seqno of its newest entry, and the number of its log
    tidelake.entry            the entries, by number of the log and seqno
    tidelake.deleted          numbers of logs whose keys are deleted and whose entries may still be there
    tidelake.damaged          entries that a repair has set aside

INVARIANT: no number of a log is used twice, so that entries of a deleted key never belong to a new one of its
name. A lake has one place, and a place has one lake: a copy of the objects elsewhere, and another lake in the
same place, find no row of theirs.
"""

from typing import Any

import psycopg

from tidelake.errors import FormatTooNew, NotALake
from tidelake.store.postgres.address import Address
from tidelake.store.postgres.connections import Connection

VERSION = 1

# Any number, the same for all versions: who holds this lock may create or change the tables.
_LOCK = 7_425_120_119
# `head` rows change with every commit: half of each page is left free for it. Entries are not compressed by
# the server, since most are small, and large ones are compressed before.
_TABLES = """
CREATE SCHEMA IF NOT EXISTS tidelake;
CREATE TABLE tidelake.schema_version (
    single boolean PRIMARY KEY DEFAULT true CHECK (single),
    version integer NOT NULL
);
CREATE TABLE tidelake.lake (
    id text PRIMARY KEY,
    place text NOT NULL UNIQUE,
    made_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE tidelake.head (
    lake text NOT NULL REFERENCES tidelake.lake,
    key text COLLATE "C" NOT NULL,
    log bigint GENERATED ALWAYS AS IDENTITY,
    seqno bigint NOT NULL,
    PRIMARY KEY (lake, key)
) WITH (fillfactor = 50);
CREATE TABLE tidelake.entry (
    log bigint NOT NULL,
    seqno bigint NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (log, seqno)
);
ALTER TABLE tidelake.entry ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE TABLE tidelake.deleted (
    log bigint PRIMARY KEY
);
CREATE TABLE tidelake.damaged (
    log bigint NOT NULL,
    seqno bigint NOT NULL,
    data bytea NOT NULL,
    lake text NOT NULL,
    key text NOT NULL,
    kept_at timestamptz NOT NULL DEFAULT now()
);
"""
_MISSING = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName)


def check_lake(connection: Connection, address: Address, lake: str, place: str) -> None:
    """Check that the database has this lake, and that its objects are at `place`. One statement."""
    statement = """
        SELECT version, place FROM tidelake.schema_version
        LEFT JOIN tidelake.lake ON id = %s
    """
    try:
        row: Any = connection.execute(statement, (lake,)).fetchone()
    except _MISSING:
        row = None
    if row is None:
        raise missing(address, lake, place)
    version, found = row
    _check_version(address, version)
    if found is None:
        raise missing(address, lake, place)
    if found != place:
        raise NotALake(
            f"the log at {address} belongs to the objects at {found!r}, not to those at {place!r}: if these "
            "are a copy, open the original; if you have moved them, tell the database, as "
            "docs/postgresql-log.md says"
        )


def missing(address: Address, lake: str, place: str) -> NotALake:
    """The error for a database that does not have the lake whose objects are at `place`."""
    return NotALake(
        f"the database at {address} has no log of the lake at {place!r} (id {lake}): give the database that "
        "the lake was made with; if that one was lost or emptied, restore it before anything is written"
    )


def create_lake(connection: Connection, address: Address, lake: str, place: str) -> str:
    """Make the tables if there are none, and a row for a lake at `place`. One transaction.

    The row comes before the marker of the lake. If a process dies between the two, the next one finds the
    row and takes the id that is there.

    Returns:
        The id of the lake at this place: `lake`, or that of an earlier row.
    """
    with connection.transaction():
        has_tables = _has_tables(connection)
        if not has_tables:
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            has_tables = _has_tables(connection)
        if not has_tables:
            connection.execute(_TABLES)
            connection.execute("INSERT INTO tidelake.schema_version (version) VALUES (%s)", (VERSION,))
        made: Any = connection.execute("SELECT version FROM tidelake.schema_version").fetchone()
        _check_version(address, made[0])
        connection.execute(
            "INSERT INTO tidelake.lake (id, place) VALUES (%s, %s) ON CONFLICT (place) DO NOTHING",
            (lake, place),
        )
        id_, is_used = _lake_at(connection, place)
    if is_used:
        raise NotALake(
            f"the database at {address} holds the log of a lake (id {id_}) whose objects at {place!r} are "
            "gone: restore them; or remove that log from the database, and make a new lake"
        )
    return id_


def _has_tables(connection: Connection) -> bool:
    # SUBTLE: from the catalog and not by `to_regclass`, which may remember that there was no such table.
    statement = (
        "SELECT FROM pg_catalog.pg_tables WHERE (schemaname, tablename) = ('tidelake', 'schema_version')"
    )
    return connection.execute(statement).rowcount == 1


def _lake_at(connection: Connection, place: str) -> tuple[str, bool]:
    """Id of the lake at a place, and whether it has a key."""
    statement = """
        SELECT id, EXISTS (SELECT FROM tidelake.head WHERE head.lake = lake.id)
        FROM tidelake.lake WHERE place = %s
    """
    row: Any = connection.execute(statement, (place,)).fetchone()
    return row[0], row[1]


def _check_version(address: Address, version: int) -> None:
    if version > VERSION:
        raise FormatTooNew(f"the log at {address}", version, VERSION)
