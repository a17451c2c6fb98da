"""How processes reach stores, and what of it leaves a process."""

import pickle
import sys
import traceback
from types import ModuleType

import pytest

from tidelake.errors import UsageError
from tidelake.store.access import OPTIONS_VARIABLE, StoreAccess
from tidelake.store.url import normalize_url, with_provider

SECRET = "the-planted-secret"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType("options_of_a_test")

    def fails() -> None:
        raise RuntimeError(SECRET)

    made.good = lambda: {"region": "x"}  # type: ignore[attr-defined]
    made.none = lambda: None  # type: ignore[attr-defined]
    made.fails = fails  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "options_of_a_test", made)
    return made


def test_options_stay_and_a_provider_travels() -> None:
    access = StoreAccess(store_options={"secret_access_key": SECRET})
    assert access.options() == {"secret_access_key": SECRET}
    assert pickle.loads(pickle.dumps(access)) == StoreAccess()
    assert SECRET not in repr(access) + str(access) + repr(pickle.dumps(access))
    assert pickle.loads(pickle.dumps(StoreAccess(store_options="here:there"))).provider == "here:there"


def test_a_provider_is_called_for_options(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert StoreAccess(store_options="options_of_a_test:good").options() == {"region": "x"}
    for bad in ("options_of_a_test:none", "options_of_a_test:absent", "no_such_module:f"):
        with pytest.raises(UsageError, match=bad):
            StoreAccess(store_options=bad).options()
    monkeypatch.setenv(OPTIONS_VARIABLE, "options_of_a_test:good")
    assert StoreAccess().options() == {"region": "x"}
    assert StoreAccess(store_options={}).options() == {}


def test_what_a_provider_raises_is_not_told(module: ModuleType) -> None:
    with pytest.raises(UsageError, match="raises RuntimeError") as caught:
        StoreAccess(store_options="options_of_a_test:fails").options()
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None


@pytest.mark.parametrize("options", [f"no provider {SECRET}", 7, ["region"]])
def test_other_options_are_refused(options: object) -> None:
    with pytest.raises(UsageError, match="store_options") as caught:
        StoreAccess(store_options=options)  # type: ignore[arg-type]
    assert SECRET not in str(caught.value)


def test_the_url_of_a_lake_names_its_provider_for_other_processes() -> None:
    url = with_provider("s3://bucket/a b", "some.module:function")
    assert url == "s3://bucket/a b#store_options=some.module:function" == normalize_url(url)
    assert with_provider(url, "another:one") == url
    assert with_provider("s3://bucket", None) == "s3://bucket"
    assert normalize_url("S3A://bucket/x/") == "s3://bucket/x"
