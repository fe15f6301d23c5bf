"""Whole processes under check: every Triton launch on a GPU, from the first one on.

`activation` runs before the program and loads nothing; `checked_process` is loaded with the first
launch; `report_files` are the files that the processes leave for the one that started them.
"""
