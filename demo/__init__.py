"""The demo: a git history as change files, in a lake, checked against git's own answers.

An example, which `make demo` runs in the checkout. It uses what a library user can use, and the output of the
command line. `command` and `job` run and judge it; the rest knows neither Spark nor a lake.

Layers, lowest first: `git` (the subprocess), `rows` (what a path and its row look like), `history`
(commits and their changes), `export` (change files), `truth` (what git says), `repository`, `job`, `command`.
INVARIANT: `export` and `truth` share no code that reads git objects, only the runner in `git`: the
demo compares two independent readings of one repository.
"""
