"""One durable collection: the only place with loops over I/O.

Joins the pure state, the Arrow kernels and the stores: machine and history commit and read states,
upload and read bring rows in and out, plan and compactor cut work into tasks, lease and keeper hold what
is read, collector and ending delete what nobody needs.
"""
