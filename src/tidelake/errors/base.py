"""What all errors have in common: their fields, and their messages."""

import typing

from tidelake.timetext import shown


class TidelakeWarning(UserWarning):
    """Something was not done, which costs no correctness, such as a batch that was never appended."""


def to_install(extra: str) -> str:
    """How to install an extra, for messages. Tidelake is on no package index yet."""
    return (
        f"install tidelake[{extra}]: pip install '.[{extra}]' in a checkout of Tidelake, or "
        f"pip install 'WHEEL[{extra}]' with the path of its wheel"
    )


_MESSAGE_MAX = 4_000


class TidelakeError(Exception):
    """The root of all errors that Tidelake raises on purpose."""

    def __init_subclass__(cls) -> None:
        """Tracebacks and pickles know an error by the package, as users do."""
        super().__init_subclass__()
        if cls.__module__.startswith(__package__):
            cls.__module__ = __package__

    def __str__(self) -> str:
        """The message, without the middle if it is very long, as of a value that is quoted in it."""
        text, half = self._said(), _MESSAGE_MAX // 2
        return text if len(text) <= _MESSAGE_MAX else f"{text[:half]} ... {text[-half:]}"

    def _said(self) -> str:
        return Exception.__str__(self)


class UsageError(TidelakeError, ValueError):
    """The call cannot be carried out as given. Nothing was written."""


CLOSED_FOR_GOOD = "all times are closed for good (upper=[]): make another collection for further updates"


@typing.dataclass_transform(eq_default=False)
class Told:
    """An error whose annotations are its fields, in the order of its arguments; `says` is its message."""

    says: typing.ClassVar[str]
    _fields: typing.ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # Not by its namespace, which has no annotations from Python 3.14 on.
        cls._fields += tuple(cls.__annotations__)

    def __init__(self, *given: object, **named: object) -> None:
        super().__init__(*given)
        vars(self).update(zip(self._fields, given, strict=False), **named)

    def _said(self) -> str:
        return self.says.format(**{name: self._text(getattr(self, name)) for name in self._fields})

    def _text(self, value: typing.Any) -> typing.Any:
        return value


class TimedError(Told):
    """An error that names times. The fields stay as they are stored; only the message depends on the unit.

    Attributes:
        unit: the unit of the times; `""` if it is unknown.
    """

    unit = ""

    def of(self, unit: str) -> typing.Self:
        """The same error, whose message shows times of this unit."""
        self.unit = unit
        return self

    def _text(self, value: typing.Any) -> typing.Any:
        return shown(value, self.unit)
