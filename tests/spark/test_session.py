"""Java is found or its lack explained."""

import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from tidelake.errors import UsageError
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


def test_an_older_pyspark_is_refused_by_its_version() -> None:
    code = "import pyspark; pyspark.__version__ = '4.2.1'\nfrom tidelake import spark"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = "ImportError: tidelake.spark needs PySpark 4.3, and PySpark 4.2.1 is installed: "
    assert done.stderr.splitlines()[-1] == last + "pip install 'tidelake[spark]'"
