"""A whole process under check: every Triton launch on a GPU, from the first one on.

`boot` runs before the program and loads nothing; `process` is there once a kernel is launched;
`reports` are the files that processes leave, which whoever started them reads.
"""
