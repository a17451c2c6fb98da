"""`python -m demo`: see `demo.command`."""

from demo.command import demo
from tidelake.cli.main import run

if __name__ == "__main__":
    run(demo, "demo")
