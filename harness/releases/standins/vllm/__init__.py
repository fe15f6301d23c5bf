"""Stands in for the one name that SGLang's RotaryEmbedding imports from vLLM on a CPU.

SGLang also probes `from vllm import _custom_ops` and, finding it, prefers vLLM's kernels to its
own; so that form raises ImportError, and only `vllm._custom_ops.…` can be imported.
"""

import sys
from types import ModuleType
from typing import NoReturn


class _Absent(ModuleType):
    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ImportError(f"vllm is not installed: this is a stand-in, without {name!r}")

    def __setattr__(self, name: str, value: object) -> None:
        """Store nothing: the import system would bind `_custom_ops` here."""


sys.modules[__name__].__class__ = _Absent
