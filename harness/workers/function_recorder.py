"""The functions of SGLang that ran in a block: modules with the qualified names of functions.

On Python 3.12 and later `sys.monitoring` reports the first start of each function and no other.
CPython 3.11 counts the starts of each code object itself, up to the eighth, when it specializes
the code. There each of SGLang's functions that has run gets a copy of its code before the block, so
that a count which has moved at its end says that the function ran. Both cost next to nothing, and
see every thread of the process; a profiler in C took 28 % of the time of a rehearsal. On another
interpreter, or where other tools hold the places of `sys.monitoring`, the functions stay unknown,
and the log says so. On 3.11 the bodies of modules and classes are left out.

Example: {"sglang.srt.layers.rotary": ["Rotary.forward"]}
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType

from harness.patching.import_hook import SGLANG_PACKAGE
from harness.sanitizer.triton.recorded_reach import shorten_to_package

TOOL_IDS = (3, 4)  # of sys.monitoring; the others are for a debugger, a profiler and the like

# The path of a file of SGLang from the package on; '' for any other file.
_shorten = functools.partial(shorten_to_package, package=SGLANG_PACKAGE)


@contextlib.contextmanager
def record_functions() -> Iterator[dict[str, list[str]]]:
    """Fill a dictionary at the end of a block with the functions that ran in it.

    These are the functions that any thread of the process ran. Where they stay unknown, the block
    runs all the same.
    """
    functions: dict[str, list[str]] = {}
    codes: set[CodeType] = set()
    record = _monitor_starts if sys.version_info >= (3, 12) else _compare_counts
    with record(codes):
        yield functions
    functions |= _name_functions(codes)


@contextlib.contextmanager
def _monitor_starts(codes: set[CodeType]) -> Iterator[None]:
    monitoring = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    tool = next((one for one in TOOL_IDS if monitoring.get_tool(one) is None), None)
    if tool is None:
        _report_unknown("both free places of sys.monitoring are taken")
        yield
        return

    def note_start(code: CodeType, _offset: int) -> object:
        codes.add(code)
        return monitoring.DISABLE  # one start of a function is enough

    event = monitoring.events.PY_START
    monitoring.use_tool_id(tool, "unfix")
    try:
        monitoring.register_callback(tool, event, note_start)
        monitoring.set_events(tool, event)
        monitoring.restart_events()  # those that an earlier block has seen, too
        yield
    finally:
        monitoring.set_events(tool, 0)
        monitoring.register_callback(tool, event, None)
        monitoring.free_tool_id(tool)


# What CPython 3.11 counts

# Where a code object has its count: behind its header, three pointers and its flags.
_COUNT_OFFSET = (
    tuple.__basicsize__ + 3 * ctypes.sizeof(ctypes.c_void_p) + ctypes.sizeof(ctypes.c_int)
)
_functions: dict[int, FunctionType] = {}  # of SGLang, by their ids


def find_functions() -> None:
    """Find SGLang's functions, for a process that is about to freeze its objects.

    Frozen objects are in no list of the garbage collector, so nothing finds them later.
    """
    for value in gc.get_objects() if _counts_starts() else ():
        if type(value) is FunctionType and _shorten(value.__code__.co_filename):
            _functions[id(value)] = value


@contextlib.contextmanager
def _compare_counts(codes: set[CodeType]) -> Iterator[None]:
    if not _counts_starts():
        _report_unknown("this interpreter counts no starts as CPython 3.11 does")
        yield
        return
    find_functions()
    _renew_codes()
    try:
        yield
    finally:
        find_functions()  # of modules that were imported meanwhile
        own = (function.__code__ for function in _functions.values())
        codes |= {code for code in _list_codes(own) if _has_run(code)}


def _read_count(code: CodeType) -> int:
    return ctypes.c_short.from_address(id(code) + _COUNT_OFFSET).value


@functools.cache
def _get_first_count() -> int:
    """Return the count of code that has never run."""
    return _read_count(compile("0", "", "eval"))


def _has_run(code: CodeType) -> bool:
    return _read_count(code) != _get_first_count()


@functools.cache
def _counts_starts() -> bool:
    """Return whether this interpreter counts the starts of code where CPython 3.11 does."""
    if sys.implementation.name != "cpython" or sys.version_info[:2] != (3, 11):
        return False
    code = compile("0", "", "eval")
    counts = [_read_count(code)]
    for _ in range(2):
        eval(code)
        counts.append(_read_count(code))
    return counts == [counts[0], counts[0] + 1, counts[0] + 2]


def _list_codes(codes: Iterable[CodeType]) -> Iterable[CodeType]:
    """List code objects, and those of the functions that they define."""
    found: dict[int, CodeType] = {}
    waiting = list(codes)
    while waiting:
        code = waiting.pop()
        if id(code) not in found:
            found[id(code)] = code
            waiting += [one for one in code.co_consts if isinstance(one, CodeType)]
    return found.values()


def _renew_codes() -> None:
    """Give each function that has run, or defines one that has, a copy of its code."""
    renewed: dict[int, tuple[CodeType, CodeType]] = {}  # by id, with the old one: ids are reused
    for function in _functions.values():
        code = _renew_code(function.__code__, renewed)
        if code is not function.__code__:
            function.__code__ = code


def _renew_code(code: CodeType, renewed: dict[int, tuple[CodeType, CodeType]]) -> CodeType:
    if id(code) not in renewed:
        constants = tuple(
            _renew_code(one, renewed) if isinstance(one, CodeType) else one
            for one in code.co_consts
        )
        pairs = zip(constants, code.co_consts, strict=True)
        is_old = _has_run(code) or any(new is not old for new, old in pairs)
        renewed[id(code)] = code, code.replace(co_consts=constants) if is_old else code
    return renewed[id(code)][1]


def _report_unknown(reason: str) -> None:
    print(f"unfix: the functions that ran are not recorded: {reason}", file=sys.stderr)


def _name_functions(codes: set[CodeType]) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    for code in codes:
        if path := _shorten(code.co_filename):
            module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            found.setdefault(module, set()).add(code.co_qualname)
    return {module: sorted(found[module]) for module in sorted(found)}
