"""Random operations on each store beside a dictionary."""

import shutil
import tempfile
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from store_kit import BLOB_STORES, VERSION_LOGS

from tidelake.errors import BlobExists, BlobNotFound, UsageError
from tiers import examples

NAMES = st.sampled_from(["a", "b-1", "c/d", "c/e", "c/f/g", "c.x"])
PREFIXES = st.sampled_from(["", "a", "c", "c/", "c/f", "z"])
DATA = st.binary(max_size=40)
SETTINGS = settings(
    max_examples=examples(20), stateful_step_count=25, suppress_health_check=list(HealthCheck)
)


def blob_machine(variant: str) -> Any:
    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.root = tempfile.mkdtemp()
            self.store = BLOB_STORES[variant](self.root)
            self.model: dict[str, bytes] = {}

        @rule(name=NAMES, data=DATA)
        def put(self, name: str, data: bytes) -> None:
            if name in self.model:
                with suppress(BlobExists) if data == self.model[name] else pytest.raises(BlobExists):
                    self.store.put(name, data)
            else:
                self.store.put(name, data)
                self.model[name] = data

        @rule(name=NAMES, start=st.integers(0, 50), length=st.none() | st.integers(0, 50))
        def get(self, name: str, start: int, length: int | None) -> None:
            if name in self.model:
                end = None if length is None else start + length
                assert self.store.get(name, start, length) == self.model[name][start:end]
                with self.store.open(name) as file:
                    file.seek(start)
                    assert file.read(-1 if length is None else length) == self.model[name][start:end]
            else:
                with pytest.raises(BlobNotFound):
                    self.store.get(name, start, length)

        @rule(name=NAMES)
        def delete(self, name: str) -> None:
            assert self.store.delete(name) == (self.model.pop(name, None) is not None)

        @rule(prefix=PREFIXES)
        def listing(self, prefix: str) -> None:
            found = [(info.name, info.size_bytes) for info in self.store.list(prefix)]
            assert found == sorted((n, len(d)) for n, d in self.model.items() if n.startswith(prefix))

        def teardown(self) -> None:
            self.store.close()
            shutil.rmtree(self.root)

    return Machine


def log_machine(variant: str) -> Any:
    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.root = tempfile.mkdtemp()
            self.log = VERSION_LOGS[variant](self.root)
            self.model: dict[str, dict[int, bytes]] = {}
            self.deleted: set[str] = set()

        @rule(key=NAMES, off=st.sampled_from([0, 0, 0, 0, -1, 1]), data=DATA)
        def compare_and_set(self, key: str, off: int, data: bytes) -> None:
            entries = self.model.get(key, {})
            head = max(entries, default=None)
            expected = head if head is None or head + off < 0 else head + off
            won = self.log.compare_and_set(key, expected, data)
            assert won == (expected == head) or (key in self.deleted and expected is None)
            if won:
                self.model[key] = {**entries, (0 if head is None else head + 1): data}

        @rule(key=NAMES)
        def create(self, key: str) -> None:
            won = self.log.compare_and_set(key, None, b"new")
            assert won == (key not in self.model) or key in self.deleted
            if won:
                self.model[key] = {0: b"new"}

        @rule(key=NAMES, start=st.integers(0, 20), limit=st.none() | st.integers(0, 5))
        def scan(self, key: str, start: int, limit: int | None) -> None:
            expected = [pair for pair in sorted(self.model.get(key, {}).items()) if pair[0] >= start][:limit]
            assert [(e.seqno, e.data) for e in self.log.scan(key, start, limit)] == expected
            head = self.log.head(key)
            assert (head and (head.seqno, head.data)) == max(self.model.get(key, {}).items(), default=None)

        @rule(key=NAMES, seqno=st.integers(0, 12))
        def truncate(self, key: str, seqno: int) -> None:
            entries = self.model.get(key, {})
            if seqno > max(entries, default=-1):
                with pytest.raises(UsageError):
                    self.log.truncate(key, seqno)
            else:
                assert self.log.truncate(key, seqno) == sum(s < seqno for s in entries)
                self.model[key] = {s: data for s, data in entries.items() if s >= seqno}

        @rule(key=NAMES)
        def delete(self, key: str) -> None:
            assert self.log.delete(key) == (self.model.pop(key, None) is not None)
            if "objects" in variant:
                self.deleted.add(key)  # an object store does not create it again

        @rule(prefix=PREFIXES)
        def keys(self, prefix: str) -> None:
            assert list(self.log.keys(prefix)) == sorted(k for k in self.model if k.startswith(prefix))

        @rule()
        def reopen(self) -> None:
            if "memory" not in variant:
                self.log.close()
                self.log = VERSION_LOGS[variant](self.root)

        def teardown(self) -> None:
            self.log.close()
            shutil.rmtree(self.root)

    return Machine


@pytest.mark.grows
@pytest.mark.parametrize("variant", BLOB_STORES)
def test_a_blob_store_is_a_dictionary(variant: str) -> None:
    run_state_machine_as_test(blob_machine(variant), settings=SETTINGS)


@pytest.mark.grows
@pytest.mark.parametrize("variant", VERSION_LOGS)
def test_a_version_log_is_a_dictionary_of_lists(variant: str) -> None:
    run_state_machine_as_test(log_machine(variant), settings=SETTINGS)
