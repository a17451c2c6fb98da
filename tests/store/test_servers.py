"""The servers that tests of stores run keep what they promise to keep. `test_bucket.py` sees races there."""

import obstore
import psycopg
import pytest
from obstore.store import S3Store


@pytest.mark.full
def test_versitygw_keeps_what_it_has(versitygw):
    store = S3Store(versitygw.new_bucket(), config=versitygw.options())
    for number in range(50):
        obstore.put(store, f"folder/{number}", b"x", mode="create")
    versitygw.kill()
    versitygw.start()
    assert len(obstore.list(store).collect()) == 50


@pytest.mark.full
def test_postgresql_keeps_what_it_has(postgres):
    url = postgres.url(postgres.new_database())
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE numbers AS SELECT 7 AS number")
    postgres.kill()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url, connect_timeout=5)
    postgres.start()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT number FROM numbers").fetchall() == [(7,)]
