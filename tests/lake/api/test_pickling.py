"""What was opened in a process stays there; pickle and copy are told so, once."""

import copy
import pickle
import uuid

import pytest

import tidelake
from tidelake.errors import StaysHere, TidelakeError


@pytest.mark.promise(
    "A handle is not pickled or copied: one error says to open the lake in the worker, and no "
    "credential travels",
    rule="`handle.py`",
)
def test_no_handle_goes_to_another_process():
    with tidelake.open(f"memory://{uuid.uuid4().hex}") as lake:
        rows = lake.create("rows", {"id": "int64"}, key=["id"])
        rows.append(_table())
        with rows.arrange() as arrangement, rows.reader("r") as reader, lake.transaction() as transaction:
            handles = [lake, rows, arrangement, reader, transaction, rows.distributed, rows.snapshot()]
            handles += [rows.writer("w")]
            for handle in handles:
                for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
                    with pytest.raises(StaysHere, match="open the lake in the worker") as caught:
                        attempt(handle)
                    assert isinstance(caught.value, TypeError)
                    assert isinstance(caught.value, TidelakeError)
                with pytest.raises(TypeError, match="open the lake"):
                    pickle.dumps({"nested": [handle]})
        reference = tidelake.arrangement_reference(rows)
        assert pickle.loads(pickle.dumps(reference)) == reference


def _table():
    import pyarrow as pa

    return pa.table({"id": [1]})
