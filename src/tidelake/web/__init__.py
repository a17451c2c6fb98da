"""A page in the browser for a lake, and the JSON that it is made of; needs the extra `web`.

`guard` decides who gets an answer, `describe` says what a collection is in plain values, `graph` of which
collections views are made, `download` writes rows as files, `api` answers requests, `app` puts them together,
`serve` listens.
"""
