"""Finding a collection: Spark's path as a lake and a name in it.

    <lake>/<name>          the name is what follows the nearest folder above that is a lake
    file:///<lake>/<name>  the same as a URL, with % escapes: `a%2Fb` is the name `a/b`
    file:/<lake>/<name>    as Spark itself rewrites a path: without escapes
    path=<lake>, collection=<name>

With the option `collection` the path is the lake, and the name may be any; without it the name cannot end
in a slash. The option `storeOptions` names the function that gives the options of an object store; it is then
part of the URL of the lake, for all processes.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from urllib.parse import unquote

import pyarrow as pa

from tidelake.config import Config
from tidelake.errors import NotALake, UsageError
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.lake import Lake, open_lake
from tidelake.spark.source.target import Target
from tidelake.store.access import is_provider
from tidelake.store.url import with_provider


def places(options: Mapping[str, str]) -> list[tuple[str, str]]:
    """The possible readings of a path as (lake, collection), the shortest name first.

    Each lake is a path or URL, with the provider of its options if there is one.
    """
    provider = {key.lower(): text for key, text in options.items()}.get("storeoptions")
    if provider is not None and not is_provider(provider):
        raise UsageError("storeOptions must be 'module:function'; values are given by the environment")
    return [(with_provider(lake, provider), name) for lake, name in _readings(options)]


def _readings(options: Mapping[str, str]) -> list[tuple[str, str]]:
    """The possible readings of a path, without the provider."""
    given = {key.lower(): text for key, text in options.items()}
    path, name = given.get("path", ""), given.get("collection")
    if not path:
        raise UsageError(
            "no path: write load('<lake>/<collection>'), such as load('/data/lake/prices'). A table of "
            "Spark's catalog (CREATE TABLE ... USING tidelake) does not keep its path and options: write "
            "CREATE TEMPORARY VIEW ... USING tidelake OPTIONS (path '<lake>/<collection>'), or use "
            "tidelake.spark.sql"
        )
    if path.startswith("memory:"):
        raise UsageError(
            f"{path!r} is in the memory of one process, and Spark reads in others: use a directory"
        )
    is_url = "://" in path
    if path.startswith("file:/") and not is_url:
        path = path.removeprefix("file:")
    if name is not None:
        return [(path, name)]
    # The root cannot be a lake: look below the first slash, if the path begins with one.
    first = path.find("/", path.find("://") + 3) if is_url else 0 if path.startswith("/") else -1
    ends = [i for i in range(len(path) - 1, 0, -1) if path[i] == "/" and i > first]
    candidates = [(path[:end], path[end + 1 :].rstrip("/")) for end in ends]
    candidates = [(lake, unquote(name) if is_url else name) for lake, name in candidates if name]
    if not candidates and not is_url and path.rstrip("/"):
        lake, _, name = path.rstrip("/").rpartition("/")
        candidates = [(lake or ("/" if path.startswith("/") else "."), name)]
    if not candidates:
        raise UsageError(f"path {path!r} names no collection: write load('<lake>/<collection>')")
    return candidates


@contextmanager
def opened(options: Mapping[str, str]) -> Iterator[tuple[Lake, Collection]]:
    """The lake and collection that options name; the lake is closed afterwards. A few store calls."""
    lake, name = _lake_of(places(options))
    with lake:
        yield lake, lake.collection(name)


def located(options: Mapping[str, str]) -> Target:
    """The collection that has the name now, as a `Target`. A few store calls; errors as for `opened`."""
    lake, name = _lake_of(places(options))
    with lake:
        return Target(lake.url, lake.id_of(name), name, Config())


def create(options: Mapping[str, str], columns: pa.Schema, key: Sequence[str], time_unit: str | None) -> None:
    """Make the collection that options name, if it is not there. The lake must be. A few store calls."""
    lake, name = _lake_of(places(options))
    with lake:
        lake.create(name, columns, key=key, time=time_unit or "counter")


def _lake_of(candidates: Sequence[tuple[str, str]]) -> tuple[Lake, str]:
    """Open the first candidate that is a lake. Returns it, open, and the name in it."""
    refused: list[NotALake] = []
    for url, name in candidates:
        try:
            return open_lake(url, create=False), name
        except NotALake as error:
            refused.append(error)
    # The first error names the folder that was most likely meant.
    raise refused[0]
