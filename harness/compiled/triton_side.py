"""How Triton is made to compile a kernel with checks: a twin of it, its IR rewritten.

The twin is a `JITFunction` of the same code whose parameters begin with the check's; binding,
keys, caches and the launcher are Triton's own. Their names hold what the rewriting depends on, so
that Triton's cache on disk never hands out one for the other. What a report needs to be told
travels in the kernel's metadata.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any

from triton._C.libtriton import ir
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler.compiler import ASTSource

from harness.compiled import Asked, rewriting
from harness.kernels import frontend, loosening, parsing, printing
from harness.kernels.graph import Source
from harness.native.lanes import Site
from harness.patching import kernels as patching

KEY = "unfix"  # in a compiled kernel's metadata
_asked = threading.local()


class Unforeseen(Exception):
    """What cannot be compiled with numbers in the place of constants as it was read here."""


def version(asked: Asked) -> str:
    return hashlib.sha256(f"{_code()}{sorted(asked.checks)}{asked.beside}".encode()).hexdigest()[
        :10
    ]


@functools.cache
def _code() -> str:
    """What the rewriting is made of."""
    here = Path(__file__).parent
    files = sorted([*here.glob("*.py"), *(here.parent / "kernels").glob("*.py")])
    return "".join(file.read_text() for file in files)


def twin(kernel: Any, asked: Asked) -> Any:
    """The same kernel, with what is asked for, that many extents, and a parameter for each number
    in the place of a constant before all else."""
    mark = version(asked)
    names = [f"unfix_{name}_{mark}" for name in asked.heads]
    names += [f"unfix_extent{number}_{mark}" for number in range(asked.pointers)]
    kinds = ["i64"] * len(names) + [kind for _, kind in asked.numbers]
    names += [f"unfix_number{number}_{mark}" for number in range(len(asked.numbers))]
    own = list(kernel.signature.parameters.values())
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    heads = [
        inspect.Parameter(name, kind, annotation=annotation)
        for name, annotation in zip(names, kinds, strict=True)
    ]
    old = kernel.fn
    made = FunctionType(old.__code__, old.__globals__, old.__name__, None, old.__closure__)
    made.__qualname__, made.__module__, made.__doc__ = old.__qualname__, old.__module__, old.__doc__
    made.__signature__ = inspect.Signature([*heads, *own])  # type: ignore[attr-defined]
    singled = [one.name for one in kernel.params if one.do_not_specialize]
    unaligned = [one.name for one in kernel.params if one.do_not_specialize_on_alignment]
    fresh = patching.another(kernel, made, [*names, *singled], [*names, *unaligned])
    head = re.compile(r"^(\s*def\s+\w+\s*\()", re.MULTILINE)
    fresh._unsafe_update_src(head.sub(rf"\1{', '.join(names)}, ", kernel.src, count=1))
    fresh.raw_src, fresh.starting_line_number = kernel.raw_src, kernel.starting_line_number
    return fresh


@contextmanager
def compiling(asked: Asked | None) -> Iterator[None]:
    """What this thread compiles meanwhile gets checks."""
    _asked.now = asked
    try:
        yield
    finally:
        _asked.now = None


def prepare() -> None:
    """Have Triton ask here after the first stage of what it compiles for CUDA. Once a process."""
    before = CUDABackend.add_stages
    if getattr(before, "by_unfix", False):
        return

    @functools.wraps(before)
    def add_stages(backend: Any, stages: dict[str, Any], *more: Any, **named: Any) -> None:
        before(backend, stages, *more, **named)
        asked = getattr(_asked, "now", None)
        if asked is None or "ttir" not in stages:
            return
        first = stages["ttir"]
        stages["ttir"] = lambda module, metadata: checked(first(module, metadata), metadata, asked)

    add_stages.by_unfix = True  # type: ignore[attr-defined]
    CUDABackend.add_stages = add_stages
    read = ASTSource.make_ir

    def make_ir(source: Any, *how: Any, **named: Any) -> Any:
        asked = getattr(_asked, "now", None)
        if asked is None or not asked.numbers:
            return read(source, *how, **named)
        heard: dict[str, bool] = {}
        first = asked.before + len(asked.numbers)
        constants, loose = source.constants, loosening.given(asked.way.values, heard)
        source.constants = constants | {(first + place,): one for place, one in loose.items()}
        try:
            with frontend.loosely():
                module = read(source, *how, **named)
        finally:
            source.constants = constants
        if not asked.way.foresaw(heard):
            raise Unforeseen("Triton asks more of its constants for this GPU")
        return module

    ASTSource.make_ir = make_ir


def checked(module: Any, metadata: dict[str, Any], asked: Asked) -> Any:
    """The module with checks, or as it was; the metadata say which."""
    context = module.context
    module.set_attr("generic", ir.builder(context).get_int32_attr(1))
    text = str(module.str())
    try:
        graph = parsing.parsed(text)
        if asked.numbers:
            given = graph.parameters[asked.before :]
            graph = loosening.filled(graph, dict(zip(asked.numbers, given, strict=False)))
        found = rewriting.rewritten(graph, asked, 32 * metadata["num_warps"])
    except (rewriting.CannotInstrument, parsing.Unreadable) as error:
        if asked.numbers:
            raise Unforeseen(str(error)) from error
        metadata[KEY] = {"refused": str(error)}
        return _parsed(text.replace("generic = 1 : i32", ""), context)
    metadata[KEY] = told_of(found)
    return _parsed(printing.printed(found.graph), context)


def told_of(found: rewriting.Rewritten) -> dict[str, Any]:
    return {
        "sites": [_as_data(site) for site in found.sites],
        "wraps": [_as_data(site) for site in found.wraps],
        "unchecked": found.unchecked,
    }


def _parsed(text: str, context: Any) -> Any:
    with tempfile.NamedTemporaryFile("w", suffix=".ttir") as file:
        file.write(text)
        file.flush()
        module = ir.parse_mlir_module(file.name, context)
    module.context = context
    return module


# Sites, as the metadata keep them


def _as_data(site: Site) -> list[Any]:
    lines = []
    source: Source | None = site.source
    while source is not None:
        lines.append([source.file, source.line, source.column])
        source = source.caller
    return [site.what, site.element, lines, site.argument]


def sites(compiled: Any, which: str) -> list[Site]:
    return [_site(*data) for data in getattr(compiled.metadata, KEY)[which]]


def _site(what: str, element: str, lines: list[list[Any]], argument: int | None) -> Site:
    source = None
    for file, line, column in reversed(lines):
        source = Source(file, line, column, source)
    return Site(what, element, source or Source(), argument)
