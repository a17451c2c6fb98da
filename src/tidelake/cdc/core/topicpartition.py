"""The partitions of Kafka's topics, and how far a stream has read each of them."""

from typing import NamedTuple

# The position of a partition that has no event of the log, and of a partition of heartbeats.
UNPASSED, HEARTBEATS = -1, -2


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"topic {self.topic!r}, partition {self.partition}"


class Reached(NamedTuple):
    """How far a partition is.

    Attributes:
        offset: of its last message; -1: unknown, or it had none.
        start: position of the last transaction in it; `UNPASSED`, `HEARTBEATS`.
        end: position of the last event of that transaction.
    """

    offset: int = -1
    start: int = UNPASSED
    end: int = UNPASSED
