"""Records of other layers than the state, as bytes and back, in any thread.

Owns which types are known already; what a record is made of is `tidelake.state.codec`. INVARIANT: a type is
learned by one thread, and is decoded after that only.
"""

import threading
from typing import TypeVar

from tidelake.state.codec import decode_record, learn

T = TypeVar("T")

_turn = threading.Lock()
_learned: set[type] = set()


def decoded(kind: str, data: bytes, type_: type[T], name: str) -> T:
    """As `tidelake.state.codec.decode_record`, of any type."""
    if type_ not in _learned:
        with _turn:
            learn(type_)
            _learned.add(type_)
    return decode_record(kind, data, type_, name)
