"""`python -m tidelake`: the command line."""

from tidelake.cli.main import main

if __name__ == "__main__":
    main()
