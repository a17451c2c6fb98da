"""Tidelake: collections that change over time.

    import tidelake
    lake = tidelake.open("my-lake")

Importing this module is cheap: it loads neither Arrow nor Spark until the first name is used.
"""

import gc
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelake.arrangement.arrangement import Arrangement
    from tidelake.arrangement.merge.settings import ArrangementConfig
    from tidelake.arrangement.read.retention import bottom_n, last_n, top_n
    from tidelake.config import Config
    from tidelake.lake.api.collection import Collection
    from tidelake.lake.api.lake import Lake
    from tidelake.lake.api.lake import open_lake as open
    from tidelake.lake.api.reference import arrangement_reference
    from tidelake.model.frontier import Frontier
    from tidelake.shard.writing.batch import Batch
    from tidelake.shard.writing.builder import BatchBuilder

_WHERE = {
    "Arrangement": ("tidelake.arrangement.arrangement", "Arrangement"),
    "ArrangementConfig": ("tidelake.arrangement.merge.settings", "ArrangementConfig"),
    "Batch": ("tidelake.shard.writing.batch", "Batch"),
    "BatchBuilder": ("tidelake.shard.writing.builder", "BatchBuilder"),
    "Collection": ("tidelake.lake.api.collection", "Collection"),
    "Config": ("tidelake.config", "Config"),
    "Frontier": ("tidelake.model.frontier", "Frontier"),
    "Lake": ("tidelake.lake.api.lake", "Lake"),
    "arrangement_reference": ("tidelake.lake.api.reference", "arrangement_reference"),
    "bottom_n": ("tidelake.arrangement.read.retention", "bottom_n"),
    "errors": ("tidelake.errors", None),
    "last_n": ("tidelake.arrangement.read.retention", "last_n"),
    "open": ("tidelake.lake.api.lake", "open_lake"),
    "top_n": ("tidelake.arrangement.read.retention", "top_n"),
}

__all__ = [
    "Arrangement",
    "ArrangementConfig",
    "Batch",
    "BatchBuilder",
    "Collection",
    "Config",
    "Frontier",
    "Lake",
    "arrangement_reference",
    "bottom_n",
    "errors",
    "last_n",
    "open",
    "top_n",
]
__version__ = "0.1.0"


def __dir__() -> list[str]:
    """All public names, also those that are not loaded yet."""
    return sorted(_WHERE)


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'tidelake' has no attribute {name!r}")
    module, attribute = _WHERE[name]
    # What is loaded stays: looking for garbage in it meanwhile takes a seventh of the time of a first read.
    collects = gc.isenabled()
    gc.disable()
    try:
        found = import_module(module)
    finally:
        if collects:
            gc.enable()
    return found if attribute is None else getattr(found, attribute)
