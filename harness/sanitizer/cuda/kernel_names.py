"""Names of kernels for people: from mangled to `store_kvcache_kernel<1024, 1024, 128, true>`."""

from __future__ import annotations

import ctypes
import functools
import re

from harness.sanitizer import plugins

_ENUM_CAST = re.compile(r"\((?:unsigned |signed )?(?:int|long|char|short|bool)(?: long)?\)(?=-?\d)")
_NUMBER_SUFFIX = re.compile(r"(?<=\d)(?:ull|ul|ll|l|u)\b")


@functools.cache
def unmangle_name(name: str) -> str:
    """Return a C++ name with its template arguments, without its namespaces and parameters."""
    library = ctypes.CDLL("libstdc++.so.6")
    demangle = library.__cxa_demangle
    demangle.restype = ctypes.c_void_p
    demangle.argtypes = [ctypes.c_char_p, *(3 * [ctypes.c_void_p])]
    status = ctypes.c_int()
    address = demangle(name.encode(), None, None, ctypes.addressof(status))
    if not address:
        return name  # of C, or of a compiler's own scheme
    text = ctypes.string_at(address).decode()
    free = library.free
    free.argtypes = [ctypes.c_void_p]
    free(address)
    text = text.replace("(anonymous namespace)::", "").removeprefix("void ")
    text = _compile_namespaces().sub("", _ENUM_CAST.sub("", _cut_parameters(text)))
    return _NUMBER_SUFFIX.sub("", text)


@functools.cache
def _compile_namespaces() -> re.Pattern[str]:
    """Return a pattern of the namespaces that are left out."""
    known = [name for plugin in plugins.list_all() for name in plugin.kernel_namespaces]
    return re.compile(rf"\b(?:{'|'.join(known)})::")


def find_plain_name(name: str) -> str:
    """Return the function's own name: `verify_kernel` of `canary::verify_kernel<true>`."""
    return name.partition("<")[0].rpartition("::")[2]


def _cut_parameters(text: str) -> str:
    depth = 0
    for index, character in enumerate(text):
        if character == "(" and depth == 0:
            return text[:index]
        depth += (character in "<([") - (character in ">)]")
    return text
