"""What errors carry."""

import pickle

from tidelake.errors import TidelakeError, UpperMismatch, WriterFenced
from tidelake.errors.base import Told


class Late(type):
    """Classes whose annotations are worked out when they are asked for, as all are from Python 3.14 on."""

    __annotations__ = property(lambda _: {"name": str, "at": int})  # type: ignore[assignment]


def test_fields_are_found_where_annotations_are_worked_out_late():
    made = Late("Made", (Told, TidelakeError), {"says": "{name!r} at {at}"})
    assert "__annotations__" not in vars(made)
    assert str(made("x", 2)) == "'x' at 2"


def test_a_copy_of_an_error_has_its_fields_and_unit():
    for error in (UpperMismatch(1, 2, name="x").of("date"), WriterFenced("w", 1, current_epoch=2)):
        copied = pickle.loads(pickle.dumps(error))
        assert (type(copied), str(copied), vars(copied)) == (type(error), str(error), vars(error))
