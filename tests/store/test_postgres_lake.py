"""A lake whose log is in PostgreSQL and whose parts are in a directory."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import servers
from servers import PostgresServer, S3Server

import inside
import tidelake
from clocks import MovedClock
from tables import SCHEMA, at, ids
from tidelake.env import Env
from tidelake.errors import (
    CorruptionError,
    NotALake,
    ReadOnlyLake,
    StoreUnavailable,
    TidelakeError,
    UsageError,
)
from tidelake.store.access import LOG_VARIABLE, StoreAccess
from tidelake.store.objects.address import parse_address
from tidelake.store.objects.cloud import CloudBucket
from tidelake.store.postgres.address import Address
from tidelake.store.postgres.log import create_log

pytestmark = pytest.mark.full


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process: nothing is in the environment, and nothing is remembered."""
    monkeypatch.delenv(LOG_VARIABLE, raising=False)
    monkeypatch.setattr("tidelake.store.access._known", {})


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.url(postgres.new_database())


@pytest.fixture
def place(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lake with one collection, which holds row 1 at time 0."""
    with tidelake.open(tmp_path / "lake", log=url) as lake:
        lake.create("c", SCHEMA, key=["id"]).append(at(0, 1), upper=1)
    monkeypatch.setattr("tidelake.store.access._known", {})
    return tmp_path / "lake"


def execute(url: str, statement: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)


def provided() -> str:
    """What a provider of the tests returns."""
    return os.environ["LOG_OF_THE_TEST"]


class TestOpening:
    def test_a_database_without_an_encoding_is_refused_by_name(
        self, postgres: PostgresServer, tmp_path: Path, place: Path, url: str
    ) -> None:
        execute(postgres.url(), "CREATE DATABASE bytes TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'")
        with pytest.raises(StoreUnavailable, match=r"encoding SQL_ASCII.*ENCODING 'UTF8'"):
            tidelake.open(tmp_path / "other", log=postgres.url("bytes"))
        with pytest.raises(StoreUnavailable, match="encoding SQL_ASCII"):
            tidelake.open(place, log=postgres.url("bytes"))
        assert not (tmp_path / "other" / "tidelake.json").exists()

    def test_texts_come_as_texts_whatever_the_environment_asks_for(
        self, place: Path, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for encoding in ("SQL_ASCII", "LATIN1"):
            monkeypatch.setenv("PGCLIENTENCODING", encoding)
            with tidelake.open(place, log=url) as lake:
                assert ids(lake.collection("c")) == {1: 1}

    def test_a_lake_is_opened_by_argument_by_variable_and_by_provider(
        self, place: Path, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LOG_OF_THE_TEST", url)
        provider = f"{__name__}:provided"
        for log, variable in ((url, None), (None, url), (provider, None), (None, provider)):
            if variable is not None:
                monkeypatch.setenv(LOG_VARIABLE, variable)
            with tidelake.open(place, log=log, create=False) as lake:
                assert ids(lake.collection("c")) == {1: 1}
            monkeypatch.delenv(LOG_VARIABLE, raising=False)
            monkeypatch.setattr("tidelake.store.access._known", {})

    def test_the_marker_says_what_is_needed_and_nothing_else(self, place: Path) -> None:
        marker = json.loads((place / "tidelake.json").read_bytes())
        assert marker == {"lake_format": 1, "lake": marker["lake"], "log": "postgres"}

    def test_without_its_log_a_lake_says_what_to_give(self, place: Path) -> None:
        for create in (True, False):
            with pytest.raises(UsageError, match=rf"log='postgresql://….*{LOG_VARIABLE}"):
                tidelake.open(place, create=create)
        with pytest.raises(UsageError, match="neither an address nor a provider"):
            tidelake.open(place, log="/some/path")
        with pytest.raises(UsageError, match="cannot be imported"):
            tidelake.open(place, log="no_such_module:function")
        with pytest.raises(UsageError, match="cannot be read"):
            tidelake.open(place, log="mysql://host/database")
        with pytest.raises(UsageError, match="given as text, not as int"):
            tidelake.open(place, log=7)  # type: ignore[arg-type]

    def test_another_database_is_refused(self, place: Path, postgres: PostgresServer, tmp_path: Path) -> None:
        empty, used = (postgres.url(postgres.new_database()) for _ in range(2))
        tidelake.open(tmp_path / "other", log=used).close()
        for other in (empty, used):
            with pytest.raises(NotALake, match="no log of the lake"):
                tidelake.open(place, log=other)

    def test_lakes_of_other_kinds_take_no_log(self, tmp_path: Path, url: str) -> None:
        tidelake.open(tmp_path / "local").close()
        with pytest.raises(UsageError, match="leave out log="):
            tidelake.open(tmp_path / "local", log=url)
        with pytest.raises(UsageError, match="leave out log="):
            tidelake.open(f"memory://{uuid.uuid4().hex}", log=url)

    def test_the_variable_does_not_decide_where_a_new_lake_has_its_log(
        self, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(LOG_VARIABLE, url)
        tidelake.open(tmp_path / "local").close()
        assert json.loads((tmp_path / "local" / "tidelake.json").read_bytes())["lake_format"] == 1
        tidelake.open(tmp_path / "local").close()

    def test_a_copy_and_a_lake_that_was_moved_are_refused_until_the_database_is_told(
        self, place: Path, url: str
    ) -> None:
        copy = place.parent / "copy"
        shutil.copytree(place, copy)
        with pytest.raises(NotALake, match="if these are a copy"):
            tidelake.open(copy, log=url)
        shutil.rmtree(place)
        execute(url, f"UPDATE tidelake.lake SET place = '{copy.as_uri()}' WHERE place = '{place.as_uri()}'")
        with tidelake.open(copy, log=url) as lake:
            assert ids(lake.collection("c")) == {1: 1}

    def test_a_lake_whose_objects_are_gone_is_not_made_anew(self, place: Path, url: str) -> None:
        shutil.rmtree(place)
        with pytest.raises(NotALake, match="are gone"):
            tidelake.open(place, log=url)
        assert not place.exists()

    def test_a_creation_that_was_cut_short_is_finished_by_the_next_one(
        self, tmp_path: Path, url: str
    ) -> None:
        id_ = create_log(Address(url), uuid.uuid4().hex, (tmp_path / "lake").as_uri(), Env().clock)
        with tidelake.open(tmp_path / "lake", log=url) as lake:
            lake.create("c", SCHEMA, key=["id"])
        assert json.loads((tmp_path / "lake" / "tidelake.json").read_bytes())["lake"] == id_

    def test_a_lake_is_created_once(self, tmp_path: Path, postgres: PostgresServer) -> None:
        code = (
            "import sys, tidelake\nimport pyarrow as pa\n"
            "with tidelake.open(sys.argv[1], log=sys.argv[2]) as lake:\n"
            "    schema = pa.schema([pa.field('id', pa.int64(), False)])\n"
            "    lake.create(sys.argv[3], schema, key=['id'])\n"
        )
        where, url = str(tmp_path / "lake"), postgres.url(postgres.new_database())
        children = [
            subprocess.Popen(
                [sys.executable, "-c", code, where, url, f"c{n}"], stderr=subprocess.PIPE, text=True
            )
            for n in range(4)
        ]
        errors = [child.communicate(timeout=240)[1] for child in children]
        assert [child.returncode for child in children] == [0] * 4, errors
        with tidelake.open(where, log=url) as lake:
            assert sorted(lake.list()) == ["c0", "c1", "c2", "c3"]

    def test_a_lake_is_read_by_a_role_that_may_not_write(
        self, place: Path, url: str, postgres: PostgresServer
    ) -> None:
        role = f"reader{uuid.uuid4().hex}"
        execute(url, f"CREATE ROLE {role} LOGIN")
        execute(url, f"GRANT USAGE ON SCHEMA tidelake TO {role}")
        execute(url, f"GRANT SELECT ON ALL TABLES IN SCHEMA tidelake TO {role}")
        log = url.replace(f"//{postgres.user}@", f"//{role}@")
        with tidelake.open(place, log=log, read_only=True) as lake:
            assert ids(lake.collection("c")) == {1: 1}
            with pytest.raises(ReadOnlyLake):
                lake.collection("c").append(at(1, 2), upper=2)

    def test_without_the_driver_the_extra_is_named(self, place: Path, url: str) -> None:
        code = (
            "import sys\nsys.modules['psycopg'] = None\nimport tidelake, tidelake.errors\n"
            "try:\n    tidelake.open(sys.argv[1], log=sys.argv[2])\n"
            "except tidelake.errors.UsageError as error:\n"
            "    assert 'install tidelake[postgres]' in str(error)\n"
            "else:\n    raise SystemExit('no error')\n"
        )
        subprocess.run([sys.executable, "-c", code, place, url], check=True, timeout=60)


class TestDamage:
    def test_entries_that_are_missing_are_told_and_what_is_left_is_repaired(
        self, place: Path, url: str
    ) -> None:
        with tidelake.open(place, log=url) as lake:
            for time_ in range(1, 6):
                lake.collection("c").append(at(time_, time_ + 1), upper=time_ + 1)
            shard = lake.collection("c").id
        execute(
            url,
            "DELETE FROM tidelake.entry USING tidelake.head WHERE entry.log = head.log "
            f"AND head.key = '{shard}' AND entry.seqno > head.seqno - 2",
        )
        with tidelake.open(place, log=url) as lake:
            with pytest.raises(CorruptionError, match="is missing"):
                ids(lake.collection("c"))
            found = lake.fsck(repair=True).findings
            assert "log-lost" in {one.kind for one in found}
            upper = lake.collection("c").upper.elements[0]
            assert 3 <= upper < 6
            assert ids(lake.collection("c")) == dict.fromkeys(range(1, upper + 1), 1)
            lake.collection("c").append(at(upper, 9), upper=upper + 1)
            assert lake.fsck().findings == ()

    def test_a_database_from_an_old_backup_is_refused_before_anything_is_swept(
        self, place: Path, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        execute(url, "CREATE TABLE old_head AS SELECT * FROM tidelake.head")
        with tidelake.open(place, log=url) as lake:
            collection = lake.collection("c")
            for time_ in range(1, 6):
                collection.append(at(time_, *range(3_000)), upper=time_ + 1)
            execute(
                url,
                "UPDATE tidelake.head SET seqno = o.seqno FROM old_head AS o WHERE head.key = o.key; "
                "DELETE FROM tidelake.entry USING tidelake.head "
                "WHERE entry.log = head.log AND entry.seqno > head.seqno",
            )
            with pytest.raises(CorruptionError, match="the rest is lost"):
                ids(collection)
            with pytest.raises(CorruptionError, match="the rest is lost"):
                collection.append(at(9, 1), upper=10)
        # A new process knows nothing, but the objects tell it.
        blobs = sorted(file for file in (place / "blobs").rglob("*") if file.is_file())
        assert blobs
        with tidelake.open(place, log=url) as lake:
            assert ids(lake.collection("c")) == {1: 1}
            with pytest.raises(CorruptionError, match="the rest is lost"):
                lake.collection("c").collect(thorough=True)
        assert sorted(file for file in (place / "blobs").rglob("*") if file.is_file()) == blobs


class TestObjectStore:
    """The log in PostgreSQL, the parts in S3."""

    @pytest.fixture
    def bucket(self, s3_server: S3Server) -> str:
        return f"s3://{s3_server.new_bucket()}/lake"

    @pytest.fixture
    def options(self, s3_server: S3Server) -> dict[str, str]:
        return s3_server.options()

    def test_a_lake_is_made_and_opened(self, bucket: str, options: dict[str, str], url: str) -> None:
        large = at(1, *range(2, 3_000))
        with tidelake.open(bucket, log=url, store_options=options) as lake:
            collection = lake.create("c", SCHEMA, key=["id"])
            collection.append(at(0, 1), upper=1)
            collection.append(large, upper=2)
        with tidelake.open(bucket, log=url, store_options=options, create=False) as lake:
            assert ids(lake.collection("c")) == dict.fromkeys(range(1, 3_000), 1)
            lake.collection("c").merge()
            assert lake.fsck().findings == ()
        stored = CloudBucket(parse_address(bucket), lambda: options)
        marker = json.loads(stored.get("tidelake.json"))
        assert marker == {"lake_format": 1, "lake": marker["lake"], "log": "postgres", "place": bucket}
        keys = [info.key for page in stored.list("") for info in page]
        assert len(keys) > 1
        assert {key.rpartition("/")[0].split("/")[1] for key in keys if "/" in key} == {"blobs"}
        for key in keys:
            content = stored.get(key)
            assert options["secret_access_key"].encode() not in content
            assert url.encode() not in content

    def test_a_lake_without_its_log_is_refused(
        self, bucket: str, options: dict[str, str], url: str, postgres: PostgresServer, monkeypatch
    ) -> None:
        tidelake.open(bucket, log=url, store_options=options).close()
        monkeypatch.setattr("tidelake.store.access._known", {})
        with pytest.raises(UsageError, match=LOG_VARIABLE):
            tidelake.open(bucket, store_options=options)
        other = postgres.url(postgres.new_database())
        with pytest.raises(NotALake, match="no log of the lake"):
            tidelake.open(bucket, log=other, store_options=options)
        monkeypatch.setenv(LOG_VARIABLE, url)
        tidelake.open(bucket, store_options=options).close()

    def test_a_copied_prefix_is_refused(self, bucket: str, options: dict[str, str], url: str) -> None:
        with tidelake.open(bucket, log=url, store_options=options) as lake:
            lake.create("c", SCHEMA, key=["id"]).append(at(0, *range(3_000)), upper=1)
        original = CloudBucket(parse_address(bucket), lambda: options)
        copy = CloudBucket(parse_address(bucket + "-copy"), lambda: options)
        for page in original.list(""):
            for info in page:
                copy.put(info.key, original.get(info.key))
        with pytest.raises(NotALake, match="copy of the objects"):
            tidelake.open(bucket + "-copy", log=url, store_options=options)
        # Even a marker that was edited leads to no log of ours.
        content = copy.get("tidelake.json")
        copy.put("tidelake.json", content.replace(bucket.encode(), (bucket + "-copy").encode()))
        with pytest.raises(NotALake, match="open the original"):
            tidelake.open(bucket + "-copy", log=url, store_options=options)

    def test_a_lake_whose_objects_are_gone_is_not_made_anew(
        self, bucket: str, options: dict[str, str], url: str
    ) -> None:
        with tidelake.open(bucket, log=url, store_options=options) as lake:
            lake.create("c", SCHEMA, key=["id"])
        stored = CloudBucket(parse_address(bucket), lambda: options)
        stored.delete([info.key for page in stored.list("") for info in page])
        with pytest.raises(NotALake, match="are gone"):
            tidelake.open(bucket, log=url, store_options=options)

    def test_four_at_once_make_one_lake(self, bucket: str, options: dict[str, str], url: str) -> None:
        def made(number: int) -> None:
            with tidelake.open(bucket, log=url, store_options=options) as lake:
                lake.create(f"c{number}", SCHEMA, key=["id"])

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(made, range(4)))
        with tidelake.open(bucket, log=url, store_options=options) as lake:
            assert sorted(lake.list()) == ["c0", "c1", "c2", "c3"]


class TestTime:
    def test_the_time_of_a_lake_is_that_of_the_database(self, place: Path, url: str) -> None:
        wrong = MovedClock(ms=1_000)
        with tidelake.open(place, log=url, env=Env(clock=wrong)) as lake:
            lake.collection("c").append(at(1, 2), upper=2)
            state = lake.collection("c").state()
            assert abs(state.committed_ms - time.time_ns() // 1_000_000) < 5_000

    def test_a_server_that_was_lost_while_the_lake_was_open_is_found_again(self, tmp_path: Path) -> None:
        with servers.postgres() as server, tidelake.open(tmp_path / "lake", log=server.url()) as lake:
            collection = lake.create("c", SCHEMA, key=["id"])
            with ThreadPoolExecutor(1) as threads:
                for time_ in range(3):
                    server.kill()
                    appended = threads.submit(collection.append, at(time_, time_), upper=time_ + 1)
                    time.sleep(0.2)
                    server.start()
                    appended.result(60)
            assert ids(collection) == {0: 1, 1: 1, 2: 1}


SECRET = "pl4nted-s3cret"


class TestSecrets:
    @pytest.fixture
    def secret_url(self, url: str, postgres: PostgresServer) -> str:
        return url.replace(f"//{postgres.user}@", f"//{postgres.user}:{SECRET}@")

    @pytest.fixture
    def lake(self, tmp_path: Path, secret_url: str) -> Iterator[tidelake.Lake]:
        with tidelake.open(tmp_path / "lake", log=secret_url) as lake:
            yield lake

    @pytest.mark.promise(
        "No password of a log is stored, sent or shown",
        rule="`store/postgres/address.py`, `store/access.py`",
        also=[
            "::test_nothing_that_is_sent_or_shown_holds_the_password",
            "::test_no_error_shows_the_password",
        ],
    )
    def test_nothing_that_is_stored_holds_the_password(
        self, lake: tidelake.Lake, url: str, tmp_path: Path
    ) -> None:
        collection = lake.create("c", SCHEMA, key=["id"])
        for time_ in range(40):
            collection.append(at(time_, *range(50)), upper=time_ + 1)
        inside.write_rollup(collection)
        lake.upkeep(interval_s=0.01).stop()
        for file in (tmp_path / "lake").rglob("*"):
            assert SECRET.encode() not in str(file).encode() + (file.read_bytes() if file.is_file() else b"")
        log = inside.stores(lake).log
        entries = [entry for key in list(log.keys()) for entry in log.scan(key, 0)]
        assert len(entries) > 40
        assert all(SECRET.encode() not in entry.data for entry in entries)

    def test_nothing_that_is_sent_or_shown_holds_the_password(
        self, lake: tidelake.Lake, secret_url: str
    ) -> None:
        collection = lake.create("c", SCHEMA, key=["id"])
        collection.append(at(0, 1), upper=1)
        plan = collection.distributed.plan(None, 1)
        for thing in (plan, collection.state(), inside.shard(collection).spec):
            assert SECRET.encode() not in pickle.dumps(thing)
            assert SECRET not in repr(thing)
        assert SECRET not in f"{lake!r} {collection!r} {inside.stores(lake)!r} {lake.env!r}"

    def test_how_a_store_is_reached_travels_as_a_name_or_not_at_all(self, secret_url: str) -> None:
        given = StoreAccess(secret_url, {"secret_access_key": SECRET})
        assert SECRET not in repr(given)
        assert SECRET.encode() not in pickle.dumps(given)
        assert pickle.loads(pickle.dumps(given)) == StoreAccess()
        named = StoreAccess("module.name:function", "other:function")
        assert pickle.loads(pickle.dumps(named)) == named
        assert "module.name:function" in repr(named)

    def test_no_error_shows_the_password(
        self, tmp_path: Path, secret_url: str, postgres: PostgresServer
    ) -> None:
        port = str(postgres.port)
        tidelake.open(tmp_path / "lake", log=secret_url).close()
        for wrong in (
            secret_url + "x",
            secret_url.replace(port, "1"),
            secret_url.replace(port, "port"),
            secret_url + "?sslmode=verify-full",
            secret_url + "?nonsense=1",
            "nonsense" + secret_url,
        ):
            with pytest.raises(TidelakeError) as caught:
                tidelake.open(tmp_path / "lake", log=wrong, config=tidelake.Config(retry_deadline_s=0.1))
            told = "".join(traceback.format_exception(caught.value)) + repr(pickle.dumps(caught.value))
            assert SECRET not in told


def test_workers_read_and_write_parts_without_the_address_of_the_log(place: Path, url: str) -> None:
    with tidelake.open(place, log=url) as lake:
        spec = inside.shard(lake.collection("c")).spec
    code = (
        "import pickle, sys\n"
        "from tidelake.shard.engine.spec import stores_of\n"
        "from tidelake.errors import UsageError\n"
        "stores = stores_of(pickle.loads(bytes.fromhex(sys.argv[1])))\n"
        "stores.blobs.put('from/a/worker', b'x')\n"
        "assert stores.blobs.get('from/a/worker') == b'x'\n"
        "try:\n"
        "    stores.log.head('catalog')\n"
        "except UsageError as error:\n"
        f"    assert '{LOG_VARIABLE}' in str(error)\n"
        "else:\n"
        "    raise SystemExit('no error')\n"
        "assert 'psycopg' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, pickle.dumps(spec).hex()], check=True, timeout=60)
