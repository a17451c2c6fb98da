"""The command that shows a lake in the browser."""

import sys
from pathlib import Path

import click

from tidelake import errors
from tidelake.cli.group import LAKE, FilePath, cli


@cli.command()
@LAKE
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8433,
    show_default=True,
    help="Port; 0: any that is free.",
)
@click.option(
    "--token-file",
    type=FilePath(dir_okay=False),
    help="File with the token that every answer needs; or set TIDELAKE_TOKEN.",
)
@click.option(
    "--allow-write", is_flag=True, help="The page may start maintenance; otherwise it changes nothing."
)
def serve(lake: str, host: str, port: int, token_file: Path | None, allow_write: bool) -> None:
    """Show a lake in the browser, until it is interrupted.

    Only this machine is answered. Another --host needs a token: the browser asks for it, and other
    programs send the header "Authorization: Bearer TOKEN". Connections are not encrypted: put a proxy with
    TLS in front.
    """
    import os

    import tidelake

    try:
        from tidelake.web.serve import serve as run
        from tidelake.web.serve import token_for
    except ImportError as error:
        raise errors.UsageError(f"the page needs an extra: {errors.to_install('web')}") from error
    given = os.environ.get("TIDELAKE_TOKEN") if token_file is None else _token_in(token_file)
    token, made = token_for(host, given or None, may_show=sys.stderr.isatty())

    def ready(address: str) -> None:
        click.echo(f"{lake}: {address}")
        if made:
            click.echo(f"token: {token}", err=True)
        sys.stdout.flush()

    with tidelake.open(lake, create=False, read_only=not allow_write) as opened:
        run(opened, tidelake.__version__, host, port, token=token, ready=ready)


def _token_in(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise errors.UsageError(f"--token-file {str(file)!r} cannot be read: {error}") from error
