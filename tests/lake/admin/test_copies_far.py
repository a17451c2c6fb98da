"""Copies between stores of different kinds."""

import pytest
from copied_lakes import TINY, as_table, compared, filled, grown, whats

import tidelake
from tidelake.env import Counters, Env


def there_and_back(lake, between, back):
    """Copy a lake to another store and from there to a third place, twice."""
    filled(lake)
    for what in ("new", "newer"):
        assert set(whats(lake.copy(between)).values()) == {what}
        compared(between, lake)
        assert set(whats(between.copy(back)).values()) == {what}
        compared(back, lake)
        grown(lake)
    assert back.collection("b").append(as_table([(9999, "own")])) is not None


def test_a_lake_moves_to_an_object_store_and_back(tmp_path, s3_server):
    options = s3_server.options()
    env = Env(recorder=Counters())
    with (
        tidelake.open(tmp_path / "lake", config=TINY) as lake,
        tidelake.open(f"s3://{s3_server.new_bucket()}/lake", store_options=options, config=TINY) as far,
        tidelake.open(tmp_path / "back", config=TINY) as back,
    ):
        there_and_back(lake, far, back)
        lake.copy(far)
        with tidelake.open(far.url, store_options=options, config=TINY, env=env) as again:
            before = dict(env.recorder.counts)
            assert set(whats(lake.copy(again)).values()) == {"same"}
            spent = {name: n - before.get(name, 0) for name, n in env.recorder.counts.items()}
    assert not spent.get("blob.put") and not spent.get("log.compare_and_set")
    assert sum(n for name, n in spent.items() if name in ("log.head", "log.newer", "log.scan")) <= 16


@pytest.mark.full
def test_a_lake_moves_to_and_from_a_log_in_postgresql(tmp_path, s3_server, postgres):
    options, log = s3_server.options(), postgres.url(postgres.new_database())
    with (
        tidelake.open(tmp_path / "lake", config=TINY) as lake,
        tidelake.open(
            f"s3://{s3_server.new_bucket()}/lake", store_options=options, log=log, config=TINY
        ) as far,
        tidelake.open(tmp_path / "back", log=log, config=TINY) as back,
    ):
        there_and_back(lake, far, back)
