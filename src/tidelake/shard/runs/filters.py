"""Filters of parts that look-ups have read, kept in memory: a part without the keys is not opened again.

Owns which filters are kept; must not know how parts are read.

They are optional: a look-up without them reads the filter, or the rows.
"""

import threading
from collections import OrderedDict

from tidelake.data.keys.keyset import KeySet
from tidelake.data.part.partfilter import PartFilter
from tidelake.model.batch import Part
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.runs.cache import Identity, identity


class PartFilters:
    """The filters that a process keeps, of all lakes. Thread-safe.

    Attributes:
        hits: how often a filter showed that a part has none of the keys.
        misses: how often it did not, or was not here.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        # Least recently used first.
        self._kept: OrderedDict[Identity, PartFilter] = OrderedDict()
        self._size_bytes = 0
        self.hits = self.misses = 0

    def among(self, spec: ShardSpec, part: Part, keys: KeySet) -> KeySet | None:
        """Those of some keys that a part may have, as far as is known here; None: it has none of them."""
        id_ = identity(spec, part)
        with self._lock:
            found = self._kept.get(id_)
            if found is None:
                self.misses += 1
                return keys
            self._kept.move_to_end(id_)
        left = found.among(keys, spec.written_under(part.schema_id))
        with self._lock:
            self.hits += left is None
            self.misses += left is not None
        return left

    def has(self, id_: Identity) -> bool:
        """Whether the filter of a part is here, so that `among` has asked it."""
        with self._lock:
            return id_ in self._kept

    def keep(self, id_: Identity, found: PartFilter) -> None:
        """Keep a filter that was read, and drop those that were not used for longest."""
        with self._lock:
            if id_ in self._kept:
                return
            self._kept[id_] = found
            self._size_bytes += found.size_bytes
            while self._size_bytes > self._bytes_max:
                self._size_bytes -= self._kept.popitem(last=False)[1].size_bytes

    def forget(self, id_: Identity) -> None:
        """Drop the filter of a part."""
        with self._lock:
            found = self._kept.pop(id_, None)
            if found is not None:
                self._size_bytes -= found.size_bytes
