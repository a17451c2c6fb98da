"""The proxy does what it says: what the client sees of each fault, and what the server has afterwards."""

from datetime import timedelta

import obstore
import psycopg
import pytest
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from tests.store.proxy import Fault, Faults, Proxy

DATA = b"data" * 1_000


def client(server, bucket, proxy):
    return S3Store(
        bucket,
        config=server.options(proxy.endpoint),
        client_options={"timeout": timedelta(seconds=1)},
        retry_config={"max_retries": 0},
    )


@pytest.fixture
def stores(s3_server):
    """A store behind a proxy without faults yet, the proxy, and the same store without it."""
    bucket = s3_server.new_bucket()
    with Proxy(s3_server.port) as proxy:
        yield client(s3_server, bucket, proxy), proxy, S3Store(bucket, config=s3_server.options())


def names(store):
    return {info["path"] for page in obstore.list(store) for info in page}


@pytest.mark.parametrize(
    ("fault", "arrives"),
    [
        (Fault.RESET_BEFORE, False),
        (Fault.LOST_REPLY, True),
        (Fault.SILENCE, True),
        (Fault.ERROR_BEFORE, False),
        (Fault.ERROR_AFTER, True),
    ],
)
def test_a_put_fails_and_has_arrived_or_not(stores, fault, arrives):
    store, proxy, direct = stores
    proxy.faults = Faults({fault: 1.0})
    with pytest.raises(BaseError):
        obstore.put(store, "a", DATA, mode="create")
    assert names(direct) == ({"a"} if arrives else set())
    assert proxy.made == {fault: 1}


def test_a_conflict_is_told_though_nothing_exists(stores):
    store, proxy, direct = stores
    proxy.faults = Faults({Fault.CONFLICT: 1.0})
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "a", DATA, mode="create")
    obstore.put(store, "b", DATA, mode="overwrite")
    assert names(direct) == {"b"}
    assert proxy.made == {Fault.CONFLICT: 1}


def test_a_put_is_held_back_and_arrives_after_the_client_gave_up(stores):
    store, proxy, direct = stores
    proxy.faults = Faults({Fault.HELD_PUT: 1.0}, hold_s=600)
    for name in "abc":
        with pytest.raises(BaseError):
            obstore.put(store, name, DATA, mode="create")
    proxy.faults = Faults()
    obstore.put(store, "b", b"another")
    assert names(direct) == {"b"}
    proxy.deliver()
    assert names(direct) == {"a", "b", "c"}
    assert obstore.get(direct, "b").bytes() == b"another"
    assert proxy.made == {Fault.HELD_PUT: 3, "held_put: 200": 2, "held_put: 412": 1}


def test_an_answer_that_is_cut_is_no_answer_and_one_that_drips_is(stores):
    store, proxy, direct = stores
    obstore.put(direct, "a", DATA)
    proxy.faults = Faults({Fault.CUT_BODY: 1.0})
    with pytest.raises(BaseError):
        obstore.get(store, "a").bytes()
    proxy.faults = Faults({Fault.DRIP: 1.0}, drip_s=0.1)
    assert obstore.get(store, "a").bytes() == DATA
    assert proxy.faults_made == 2


@pytest.mark.full
@pytest.mark.parametrize(("fault", "arrives"), [(Fault.RESET_BEFORE, False), (Fault.LOST_REPLY, True)])
def test_a_commit_fails_and_was_carried_out_or_not(postgres, fault, arrives):
    database = postgres.new_database()
    with psycopg.connect(postgres.url(database), autocommit=True) as direct:
        direct.execute("CREATE TABLE numbers (number int)")
        with Proxy(postgres.port, "postgres") as proxy:
            connection = psycopg.connect(postgres.url(database, proxy.port))
            connection.execute("INSERT INTO numbers VALUES (7)")
            proxy.faults = Faults({fault: 1.0}, only=("commit",))
            with pytest.raises(psycopg.OperationalError):
                connection.commit()
            assert proxy.made == {fault: 1, f"{fault}: commit": 1}
        assert direct.execute("SELECT number FROM numbers").fetchall() == ([(7,)] if arrives else [])
