"""The functions of SGLang that ran in a block: modules with the qualified names of functions.

On Python 3.12 and later `sys.monitoring` reports the first start of each function and no other, so
it costs next to nothing, and it sees every thread of the process. On 3.11 a profiler in C records
those of this thread. Neither slows kernels' launches and PyTorch's operators; lines would need a
tracer in Python. Where another tool holds the place, the functions stay unknown, and the log says
so. Example: {"sglang.srt.layers.rotary": ["Rotary.forward"]}
"""

from __future__ import annotations

import contextlib
import cProfile
import sys
from collections.abc import Iterator
from types import CodeType

from harness.kernels.triton.recorded_reach import shorten_to_package

TOOL_IDS = (3, 4)  # of sys.monitoring; the others are for a debugger, a profiler and the like


@contextlib.contextmanager
def record_functions() -> Iterator[dict[str, list[str]]]:
    """Fill a dictionary at the end of a block with the functions that ran in it.

    On Python 3.12 and later these are the functions that any thread of the process ran. They stay
    unknown if another tool records at the same time; the block runs all the same.
    """
    functions: dict[str, list[str]] = {}
    codes: set[CodeType] = set()
    record = _monitor_starts if sys.version_info >= (3, 12) else _profile_thread
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


@contextlib.contextmanager
def _profile_thread(codes: set[CodeType]) -> Iterator[None]:
    if sys.getprofile() is not None:
        _report_unknown("another profiler is active")
        yield
        return
    profiler = cProfile.Profile(subcalls=False, builtins=False)
    profiler.enable()
    try:
        yield
    finally:
        profiler.disable()
        # A function in C has its name in place of its code.
        codes |= {entry.code for entry in profiler.getstats() if not isinstance(entry.code, str)}


def _report_unknown(reason: str) -> None:
    print(f"unfix: the functions that ran are not recorded: {reason}", file=sys.stderr)


def _name_functions(codes: set[CodeType]) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    for code in codes:
        if path := shorten_to_package(code.co_filename):
            module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            found.setdefault(module, set()).add(code.co_qualname)
    return {module: sorted(found[module]) for module in sorted(found)}
