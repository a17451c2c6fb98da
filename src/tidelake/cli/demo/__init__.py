"""The demo's input: a git history as change files, and git's own answers to check the lake against.

Owns how a repository is read, exported and asked for the truth; must not know Spark or a lake. The
pipeline needs a `Source` (`source.py`): `open_source(repo)` returns one, from a repository or from the
small export that ships with the package.

Layers, lowest first: `git` (the subprocess), `rows` (what a path and its row look like), `history`
(commits and their changes), `export` (change files), `truth` (what git says), `source`, `bundle`.
INVARIANT: `export` and `truth` share no code that reads git objects, only the runner in `git`: the
demo compares two independent readings of one repository.
"""
