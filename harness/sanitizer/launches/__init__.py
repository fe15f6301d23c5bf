"""Launches of a whole process, whatever compiled them: which memory each uses, when, in what order.

Two checks stand on that. `graphs`: a captured launch keeps addresses and numbers, and both may be
out of date when the graph is replayed. `streams`: launches of two streams have no order unless an
event gives them one. They take events from a source, and do not know which of the two it is:
`virtual_source` (the virtual GPU) or `card_source` (a GPU, through torch).
"""

LAUNCH_CHECKS = ("graphs", "streams")
