"""Launches under check.

A session replaces methods on the interpreter's own builder object, so that Triton's front end
(types, broadcasting, casts) stays what it is and what a program does to memory is watched:

- a pointer remembers the argument it was made from, through the operations that carry pointers;
- an integer operation is done in a wider type, and lanes that do not fit are remembered until they
  reach an address;
- floats that numpy lacks are computed as compiled kernels compute them, or refused by name.

The language is patched once a session and not once a call, and nested kernels are called directly:
that pays for the checks.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import linecache
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter as stock

from harness.checking import arithmetic
from harness.checking.accesses import Access, Accesses
from harness.checking.interpreter import floats
from harness.checking.interpreter.carried import Carried
from harness.checking.launches import Launch, Launches, whole_grid
from harness.checking.memory import Array, Memory
from harness.checking.violations import CannotFollow, KernelAssertion, Place, Violation

Handle = stock.TensorHandle
builder = stock.interpreter_builder

_RANGE = "__unfix_range__"
_MISSING = object()


class _Loops(stock.ASTTransformer):  # type: ignore[misc]
    """Loop variables are integers of the kernel, as in a compiled one, and not Python's."""

    def visit_For(self, node: ast.For) -> ast.For:
        call = node.iter
        if isinstance(call, ast.Call):
            named = call.func
            is_range = isinstance(named, ast.Name) and named.id == "range"
            if is_range or (isinstance(named, ast.Attribute) and named.attr == "range"):
                call.func = ast.copy_location(ast.Name(id=_RANGE, ctx=ast.Load()), named)
        self.generic_visit(node)
        return node


# A function, its code and what became of it, from session to session: an example is a session.
_bodies: WeakKeyDictionary[Any, tuple[types.CodeType, Callable[..., Any]]] = WeakKeyDictionary()


def _rewritten(function: Any, **options: Any) -> Callable[..., Any]:
    """A kernel's or a helper's body as the interpreter runs it."""
    known = _bodies.get(function)
    if known is not None and known[0] is function.__code__:
        return known[1]
    rewriter = stock.FunctionRewriter(function, **options)
    rewriter.ast_transformer = _Loops()
    body: Callable[..., Any] = rewriter.rewrite_ast()
    body.__globals__[_RANGE] = _kernel_range
    _bodies[function] = function.__code__, body
    return body


def _kernel_range(*bounds: Any, **options: Any) -> Iterator[Any]:
    numbers = [options[name] for name in ("arg1", "arg2", "step") if name in options]
    values = [*bounds, *numbers]
    wide = any(
        value.dtype in (tl.int64, tl.uint32, tl.uint64)
        if isinstance(value, tl.tensor)
        else not -(2**31) <= int(value) < 2**31
        for value in values
    )
    kind, width = (tl.int64, np.int64) if wide else (tl.int32, np.int32)
    for number in range(*(int(value) for value in values)):
        yield tl.tensor(Handle(np.array([number], dtype=width), kind), kind)


def kernel_name(function: Any) -> str:
    return str(getattr(function, "__name__", function))


class Interpreter:
    """Launches under check, from `__enter__` to `__exit__`."""

    def __init__(self, memory: Memory, launches: Launches) -> None:
        self._memory = memory
        self._launches = launches
        self._undo: list[tuple[Any, str, Any]] = []
        self._codes: dict[types.CodeType, str] = {}
        self._running: Launch | None = None
        self._accesses = Accesses(memory, self._place, _peek)
        self._carried = Carried(self._place)

    # Installing

    def __enter__(self) -> Interpreter:
        if not self.interprets():
            raise CannotFollow(
                "Triton is not interpreting: set TRITON_INTERPRET=1 before it is imported"
            )
        self._patch_language()
        self._replace(
            builder,
            "options",
            # Wraps are watched here; a kernel's own assertions are worth having.
            dataclasses.replace(builder.options, sanitize_overflow=False, debug=True),
        )
        for name, method in self._methods().items():
            self._replace(builder, name, method)
        session = self
        self._replace(
            stock.GridExecutor,
            "__call__",
            lambda executor, *args, **kwargs: session._launch(executor, args, kwargs),
        )
        self._replace(
            stock.InterpretedFunction,
            "__call__",
            lambda kernel, *args, **kwargs: session._body(kernel)(*args, **kwargs),
        )
        self._replace(stock.InterpretedFunction, "rewrite", lambda kernel: session._body(kernel))
        return self

    def __exit__(self, *error: object) -> None:
        while self._undo:
            holder, name, value = self._undo.pop()
            if value is _MISSING:
                delattr(holder, name)
            else:
                setattr(holder, name, value)
        if self._language is not None:
            self._language.restore()

    @staticmethod
    def interprets() -> bool:
        return isinstance(tl.sum, stock.InterpretedFunction)

    def _replace(self, holder: Any, name: str, value: Any) -> None:
        self._undo.append((holder, name, vars(holder).get(name, _MISSING)))
        setattr(holder, name, value)

    def _patch_language(self) -> None:
        visible = types.FunctionType((lambda: None).__code__, {"tl": tl, "core": tl.core})
        # Older versions patch for good and return nothing to restore.
        self._language = stock._patch_lang(visible)
        for module in (tl, tl.core):
            for name in ("reduce", "associative_scan"):
                self._replace(module, name, self._carried.folding(getattr(module, name)))
        self._replace(tl.tensor, "T", self._carried.transposed(vars(tl.tensor)["T"]))
        for kind in ("BlockPointerHandle", "TensorDescHandle"):
            block = getattr(stock, kind, None)
            if block is not None:
                made = self._carried.materializing(block.materialize_pointers)
                self._replace(block, "materialize_pointers", made)

    # Launching

    def _body(self, kernel: Any) -> Callable[..., Any]:
        function = kernel.fn
        body = _rewritten(function, **kernel.kwargs)
        self._codes[body.__code__] = kernel_name(function)
        return body

    def _launch(self, executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if kwargs.pop("warmup", False):
            return
        function = executor.fn
        if self._running is not None:
            raise CannotFollow(f"{kernel_name(function)}: a launch inside a launch")
        accepted = inspect.getfullargspec(function)
        names = {*accepted.args, *accepted.kwonlyargs}
        kwargs = {name: value for name, value in kwargs.items() if name in names}
        for hook in getattr(executor, "pre_run_hooks", ()):
            hook(*args, **kwargs)
        given = inspect.getcallargs(function, *args, **kwargs)
        grid = executor.grid(given) if callable(executor.grid) else executor.grid
        launch = Launch(kernel_name(function), whole_grid(grid), given)
        self._running = launch
        try:
            self._launches.starts(launch, self._memory)
            values = {
                name: value if name in executor.constexprs else self._value(name, value)
                for name, value in given.items()
            }
            builder.set_grid_dim(*launch.grid)
            self._accesses.launch_starts()
            for program in self._launches.programs(launch):
                builder.set_grid_idx(*program)
                self._accesses.program_starts(program)
                self._carried.program_starts()
                self._program(function, values)
        except (Violation, CannotFollow) as error:
            self._launches.refused.append(error)
            raise
        finally:
            self._running = None
            self._launches.ends(launch)

    def _program(self, function: Callable[..., Any], values: dict[str, Any]) -> None:
        try:
            with np.errstate(**arithmetic.QUIET):
                function(**values)
        except (Violation, CannotFollow):
            raise
        except AssertionError as error:
            place = self._place_of(error)
            raise KernelAssertion(
                f"{place.kernel}: its own assertion fails: {error}", place
            ) from error
        except Exception as error:
            place = self._place_of(error)
            raise CannotFollow(
                f"{place.kernel}: the checker cannot follow it: {type(error).__name__}: {error}\n"
                f"  {place}"
            ) from error

    def _value(self, name: str, value: Any) -> Any:
        """An argument as the program sees it, with pointers that know where they come from."""
        if isinstance(value, float):
            return tl.tensor(Handle(np.array([value], dtype=np.float32), tl.float32), tl.float32)
        if isinstance(value, tuple):
            parts = [self._value(f"{name}[{place}]", part) for place, part in enumerate(value)]
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        seen = stock._implicit_cvt(value)
        base = getattr(value, "base", value)  # of a reinterpreted tensor, or of a descriptor
        if isinstance(base, torch.Tensor):
            if base.device.type != "cpu":
                raise CannotFollow(f"{name} is on {base.device}: the interpreter runs on the CPU")
            element = seen.dtype.element_ty if isinstance(seen, tl.tensor) else None
            bits = element.primitive_bitwidth if element is not None else 8 * base.element_size()
            handle = seen.handle if isinstance(seen, tl.tensor) else seen.handle.base
            handle.origin = self._memory.span_of(base, name, max(1, bits // 8))
        elif isinstance(seen, tl.tensor):
            seen.handle.data = seen.handle.data.astype(stock._get_np_dtype(seen.dtype))
        return seen

    # Where we are

    def _place(self) -> Place:
        frame = sys._getframe(1)
        while frame is not None and frame.f_code not in self._codes:
            frame = frame.f_back  # type: ignore[assignment]
        return (
            self._place_at(frame.f_code, frame.f_lineno) if frame is not None else self._nowhere()
        )

    def _place_of(self, error: BaseException) -> Place:
        place, trace = self._nowhere(), error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code in self._codes:
                place = self._place_at(trace.tb_frame.f_code, trace.tb_lineno)
            trace = trace.tb_next
        return place

    def _place_at(self, code: types.CodeType, line: int) -> Place:
        text = linecache.getline(code.co_filename, line).strip()
        short = "/".join(Path(code.co_filename).parts[-3:])
        outer = self._running.kernel if self._running else self._codes[code]
        inner = self._codes[code]
        name = outer if inner == outer else f"{outer} (in {inner})"
        return Place(name, short, line, text, self._accesses.program)

    def _nowhere(self) -> Place:
        name = self._running.kernel if self._running else "a kernel"
        return Place(name, "?", 0, "", self._accesses.program)

    # Operations

    def _methods(self) -> dict[str, Callable[..., Any]]:
        """What the session puts in place of the builder's own methods."""
        return {
            **self._carried.methods(builder),
            **floats.methods(builder),
            "create_masked_load": self._load,
            "create_masked_store": self._store,
            "create_atomic_rmw": self._atomic(builder.create_atomic_rmw, pointer=1),
            "create_atomic_cas": self._atomic(builder.create_atomic_cas, pointer=0),
        }

    # Memory

    def _check(self, verb: str, ptr: Any, mask: Any, value: Any = None) -> Array:
        """Refuse a wrong access; the lanes that are on, as an array."""
        lanes = mask.data if type(mask) is Handle else mask
        if lanes.dtype != bool:
            raise CannotFollow(f"a mask of {lanes.dtype}: Triton wants int1")
        size = max(1, ptr.get_element_ty().primitive_bitwidth // 8)
        bits = None
        if value is not None:
            bits = np.broadcast_to(value.data.view(f"u{value.data.dtype.itemsize}"), ptr.data.shape)
        marks = ptr.__dict__
        access = Access(verb, ptr.data, size, marks.get("origin"), bits)
        self._accesses.check(access, lanes, marks.get("wrap"))
        return lanes

    def _load(self, ptrs: Any, mask: Any, other: Any, *rest: Any, **options: Any) -> Any:
        lanes = self._check("read", ptrs, mask)
        kind = ptrs.get_element_ty()
        dtype = stock._get_np_dtype(kind)
        filler = np.zeros(ptrs.data.shape, dtype=dtype) if other is None else other.data
        return Handle(stock._interpreter.load(ptrs.data, lanes, filler, dtype), kind)

    def _store(self, ptrs: Any, value: Any, mask: Any, *rest: Any, **options: Any) -> Any:
        lanes = self._check("write", ptrs, mask, value)
        return stock._interpreter.store(ptrs.data, value.data, lanes)

    def _atomic(self, method: Any, pointer: int) -> Callable[..., Any]:
        def atomic(*args: Any) -> Any:
            mask = args[3] if pointer == 1 else np.ones(args[pointer].data.shape, dtype=bool)
            value = args[2]
            if value.dtype.scalar.name in arithmetic.PACKED:
                raise CannotFollow(f"an atomic on {value.dtype}")
            self._check("update", args[pointer], mask)
            return method(*args)

        return atomic


def _peek(addresses: Array, dtype: Any) -> Array:
    every = np.ones(addresses.shape, dtype=bool)
    return stock._interpreter.load(addresses, every, np.zeros(addresses.shape, dtype=dtype), dtype)
