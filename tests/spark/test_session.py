"""Java is found or its lack explained."""

import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from tidelake import spark as ts
from tidelake.errors import UsageError, to_install
from tidelake.spark import session


def fake_java(home: Path, banner: str, code: int = 0, plain: int = 0) -> Path:
    """A Java that prints a banner, and ends with `code` if asked for a module."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f"#!/bin/sh\necho '{banner}' >&2\ncase \"$1\" in --add*) exit {code};; esac\nexit {plain}\n"
    )
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return home


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(session, "_PLACES", ())
    monkeypatch.setattr(session.shutil, "which", lambda _name: None)


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nowhere: None) -> None:
    home = fake_java(tmp_path / "jdk", 'openjdk version "21.0.1" 2023-10-17')
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert session.find_java() == home


@pytest.mark.parametrize(
    ("banner", "code", "reason"),
    [
        ('java version "1.8.0_392"', 1, "Java 8"),
        ('openjdk version "11.0.2" 2019-01-15', 0, "Java 11"),
        ('openjdk version "17.0.2" 2022-01-18', 1, "lacks the module jdk.incubator.vector"),
    ],
)
def test_an_unfit_java_is_named_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nowhere: None, banner: str, code: int, reason: str
) -> None:
    home = fake_java(tmp_path / "jdk", banner, code)
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(UsageError) as caught:
        session.find_java()
    assert f"{home} ({reason})" in str(caught.value)
    assert "JAVA_HOME" in str(caught.value)


def test_an_unfit_java_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nowhere: None) -> None:
    old = fake_java(tmp_path / "old", 'openjdk version "11.0.2"')
    new = fake_java(tmp_path / "new", 'openjdk version "17.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setattr(session, "_PLACES", (f"{tmp_path}/*",))
    assert session.find_java() == new


def test_no_java_at_all(nowhere: None) -> None:
    with pytest.raises(UsageError, match="found none: install a JDK"):
        session.find_java()


def test_the_session_listens_on_loopback_and_keeps_utc(spark: Any) -> None:
    assert spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.ui.enabled") == "false"


def imported(code: str) -> str:
    """The last line of the errors of a Python that runs `code`."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stderr.splitlines()[-1] if done.stderr else ""


def test_an_older_pyspark_is_refused_by_its_version() -> None:
    last = "ImportError: tidelake.spark needs PySpark 3.5 or newer, and PySpark 3.4.4 is installed: "
    for name in ("tidelake.spark", "tidelake.spark.jobs.merge"):
        found = imported(f"import pyspark; pyspark.__version__ = '3.4.4'\nimport {name}")
        assert found == last + to_install("spark")


def test_without_pyspark_the_extra_is_named() -> None:
    for name in ("tidelake.spark", "tidelake.spark.jobs.merge"):
        found = imported(f"import sys; sys.modules['pyspark'] = None\nimport {name}")
        assert found.startswith("ImportError: tidelake.spark needs PySpark, which cannot be imported (")
        assert found.endswith(f"): {to_install('spark')}")


# What PySpark 3.5 has not.
OLD = """
import sys, pyspark
pyspark.__version__ = "3.5.9"
sys.modules["pyspark.sql.datasource"] = None
sys.modules["pyspark.sql.streaming.datasource"] = None
from tidelake import spark as ts
"""


def test_without_data_sources_all_but_the_format_is_there() -> None:
    names = "[name for name in ts.__all__ if name != 'TidelakeSource']"
    assert imported(OLD + f"for name in {names}: getattr(ts, name)") == ""
    last = "the format 'tidelake' needs PySpark 4.0 or newer, and PySpark 3.5.9 is installed: "
    found = imported(OLD + "ts.register(None)")
    assert found.startswith("tidelake.errors.UsageError: " + last)
    assert imported(OLD + "ts.TidelakeSource").startswith("ImportError: " + last)


def test_names_are_found_where_they_are_listed() -> None:
    assert set(ts.__all__) <= set(dir(ts))
    assert set(ts._MODULE_OF) == set(ts.__all__)
    for name in ts.__all__:
        assert getattr(ts, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'snapshoot'"):
        ts.snapshoot  # noqa: B018


def test_a_java_that_is_too_new_for_an_older_spark_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nowhere: None
) -> None:
    monkeypatch.setattr(session, "JAVA_LEAST", 8)
    monkeypatch.setattr(session, "JAVA_MOST", 17)
    new = fake_java(tmp_path / "new", 'openjdk version "25.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(new))
    with pytest.raises(UsageError, match=r"needs Java 8 to 17, found .*new \(Java 25\): install"):
        session.find_java()
    old = fake_java(tmp_path / "old", 'java version "1.8.0_392"', 1)
    monkeypatch.setattr(session, "_PLACES", (f"{tmp_path}/old",))
    assert session.find_java() == old
