"""Stand-ins for operators of CUDA binaries: one module an operator or family, by name.

A module here registers functions of torch operations, each with the names it stands in for and the
specification it follows. `fixtures/stand_ins` draws their calls, on which a test compares them with
SGLang's own fallbacks and `bench/cases/stand_ins.py` with the operators on a card. See
docs/explanation/virtual-device.md.
"""
