"""Stand-ins for operators of CUDA binaries: one module an operator or family, by name.

A module here registers functions of torch operations, each with the names it stands in for, the
specification it follows and, where SGLang has one, its own native fallback, which a test compares
it with. See docs/explanation/virtual-device.md.
"""
