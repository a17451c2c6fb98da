"""The proxy does what it says: what the client sees of each fault, and what the server has afterwards."""

import time
from datetime import timedelta

import obstore
import psycopg
import pytest
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from tests.store.proxy import Fault, Faults, Proxy, proxy_process

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


def test_a_put_is_held_back_for_as_long_as_was_asked(stores):
    store, proxy, direct = stores
    proxy.faults = Faults({Fault.HELD_PUT: 1.0}, hold_s=0.1)
    with pytest.raises(BaseError):
        obstore.put(store, "a", DATA, mode="create")
    deadline_s = time.monotonic() + 60
    while names(direct) != {"a"}:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_an_answer_that_is_cut_is_no_answer_and_one_that_drips_is(stores):
    store, proxy, direct = stores
    obstore.put(direct, "a", DATA)
    proxy.faults = Faults({Fault.CUT_BODY: 1.0})
    with pytest.raises(BaseError):
        obstore.get(store, "a").bytes()
    proxy.faults = Faults({Fault.DRIP: 1.0}, drip_s=0.1)
    assert obstore.get(store, "a").bytes() == DATA
    assert proxy.faults_made == 2


def test_a_server_that_is_down_takes_nothing_and_goes_on_later(stores):
    store, proxy, direct = stores
    obstore.put(store, "a", DATA)
    proxy.down = True
    with pytest.raises(BaseError):
        obstore.put(store, "b", DATA)
    proxy.down = False
    obstore.put(store, "c", DATA)
    assert names(direct) == {"a", "c"}


def test_faults_fall_on_their_share_of_the_requests_and_on_those_asked_for(stores):
    store, proxy, _ = stores
    proxy.faults = Faults.all_at(0.5, (Fault.RESET_BEFORE, Fault.ERROR_BEFORE), only=("head",))
    failed = 0
    for number in range(60):
        obstore.put(store, f"{number}", b"")
        try:
            obstore.head(store, f"{number}")
        except BaseError:
            failed += 1
    assert failed == proxy.faults_made
    assert 15 < failed < 45
    assert proxy.requests == {"put": 60, "head": 60}


def test_a_round_trip_takes_as_long_as_was_asked_and_requests_are_counted(s3_server):
    bucket = s3_server.new_bucket()
    with proxy_process(s3_server.port, "http", rtt_s=0.1) as proxy:
        store = client(s3_server, bucket, proxy)
        obstore.put(store, "a", DATA, mode="create")
        began_s = time.monotonic()
        assert obstore.get(store, "a").bytes() == DATA
        assert names(store) == {"a"}
        assert time.monotonic() - began_s >= 0.2
    assert proxy.counts["requests"] == {"put_new": 1, "get": 1, "list": 1}
    assert proxy.counts["bytes"]["sent"] > len(DATA)


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


@pytest.mark.full
def test_a_connection_to_postgresql_takes_its_round_trips(postgres):
    with Proxy(postgres.port, "postgres", rtt_s=0.05) as proxy:
        with psycopg.connect(postgres.url(port=proxy.port), autocommit=True) as connection:
            began_s = time.monotonic()
            assert connection.execute("SELECT 7").fetchall() == [(7,)]
            assert time.monotonic() - began_s >= 0.05
        assert proxy.requests == {"query": 1}
