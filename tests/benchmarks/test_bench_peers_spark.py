"""The comparison on Spark: a small slice. Delta Lake and Iceberg, which take minutes, are in the soak."""

import pytest

from bench.peers.spark import __main__ as page
from bench.peers.spark.run import SPARK, Sizes, is_installed, python, run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

# A JVM that compiles little is there sooner.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
TINY = Sizes(3000, sessions=1, upserts=2, together=0, rounds=1, appends=1, batches=1, memory="1g", java=QUICK)


def skip_without_spark() -> None:
    if python() is None:
        pytest.skip(f"no environment with PySpark {SPARK}: run setup/sparks.sh {SPARK}")


@pytest.mark.full
def test_ours_answers_as_the_truth_does() -> None:
    skip_without_spark()
    check(["tidelake"])


@pytest.mark.soak
def test_all_answer_as_the_truth_does() -> None:
    skip_without_spark()
    peers = [peer for peer in ("tidelake", "delta DV", "iceberg") if is_installed(peer)]
    if len(peers) == 1:
        pytest.skip("no peer is installed: setup/peers.sh spark-delta spark-iceberg fetches them with Maven")
    check(peers)


def check(peers: list[str]) -> None:
    found = run(TINY, peers)
    assert [*found] == peers
    for one in found.values():
        assert one["cannot"] == {} and one["work"].keys() == found["tidelake"]["work"].keys()
        assert all(0 < work["min_ms"] <= work["median_ms"] for work in one["work"].values())
        assert one["bytes"] > 0 < min(one["peaks_mib"]["python"], one["peaks_mib"]["jvm"])
    text = page.page({"machine": {"cpu": "some"}, "sizes": vars(TINY), "peers": found})
    assert "| changes after micro-batches | " in text and "| memory of the JVM at most, MiB | " in text
