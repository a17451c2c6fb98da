"""Tidelake beside other tables and engines: the same rows, the same answers, in environments of their own."""
