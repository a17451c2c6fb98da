"""What the tests of the command line share: commands run in this process."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tidelake.cli.main import main


class Answer(NamedTuple):
    """What a command left with."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The document that it printed."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The documents that it printed, one a line."""
        return [json.loads(line) for line in self.out.split("\n") if line]  # a row may hold U+2028


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Runs a command in this process: exit code, output, errors."""

    def run(*arguments: object) -> Answer:
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        code = left.value.code or 0
        assert isinstance(code, int)
        return Answer(code, *capfd.readouterr())

    return run
