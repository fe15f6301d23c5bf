"""Triton's kernel objects: who launches them, what they call, how one is made from other source.

A `@triton.jit` object holds its Python function, the function's source, a hash over that source
and its callees', and a cache of compiled kernels per device, whose keys do not contain the source.

Invariant: no launch uses a kernel that was compiled from other source than its object has now.
Whoever changes an object replaces all its attributes by those of an object that is built from the
new function, and drops the hashes and compiled kernels of its callers. Example: `f` calls `g` and
`h`; changing `h` rebuilds `h` and makes `f` compile again, and `g` keeps its kernels.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

CountLaunch = Callable[[int], None]

_lock = threading.RLock()
_watched_kernels: dict[int, tuple[Any, list[int], CountLaunch]] = {}
_reached_slots: dict[int, tuple[Any, list[tuple[int, CountLaunch]]]] = {}
_original_runs: dict[Any, Any] = {}  # by class, while launches are counted
_triton_runs: dict[Any, Any] = {}  # by class: Triton's own, which the first replacement found
# By module name: its identity and number of names, and its names bound to a kernel or to None.
_MODULE_KERNELS: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {}


def get_kernel_classes() -> tuple[Any, ...]:
    """Return Triton's kernel classes that are loaded; empty without Triton."""
    found = []
    for module, name in (
        ("triton.runtime.jit", "JITFunction"),
        ("triton.runtime.interpreter", "InterpretedFunction"),
    ):
        cls = getattr(sys.modules.get(module), name, None)
        if isinstance(cls, type):
            found.append(cls)
    return tuple(found)


def unwrap_kernel(wrapped: Any) -> Any:
    """Return the jitted object under autotuning, heuristics or other wrappers, if there is one."""
    classes = get_kernel_classes()
    for _ in range(16):
        if isinstance(wrapped, classes):
            return wrapped
        wrapped = getattr(wrapped, "fn", None) or getattr(wrapped, "__wrapped__", None)
        if wrapped is None:
            return None
    return None


def list_wrappers(wrapped: Any) -> list[Any]:
    """List the wrappers of a jitted object that have their own caches, outermost first."""
    around = []
    while wrapped is not None and not isinstance(wrapped, get_kernel_classes()):
        if not isinstance(wrapped, FunctionType):
            around.append(wrapped)
        wrapped = getattr(wrapped, "fn", None) or getattr(wrapped, "__wrapped__", None)
    return around


def find_kernel(module: ModuleType, qualname: str) -> Any:
    """Find the object that a kernel's name is bound to; None where no module or class holds it."""
    found: Any = module
    for name in qualname.split("."):
        found = inspect.getattr_static(found, name, None)
        if isinstance(found, staticmethod):
            found = found.__func__
    return found if unwrap_kernel(found) is not None else None


def iterate_callees(kernel: Any, unwrap: Callable[[Any], Any] = unwrap_kernel) -> Iterator[Any]:
    """Yield the jitted functions that a kernel's code refers to."""
    function = kernel.fn
    names, free = function.__code__.co_names, function.__code__.co_freevars
    cells = dict(zip(free, function.__closure__ or ()))  # noqa: B905
    for name in (*names, *free):
        cell = cells.get(name)
        value = function.__globals__.get(name) if cell is None else cell.cell_contents
        if isinstance(value, ModuleType):
            for attribute in names:
                if (inner := unwrap(getattr(value, attribute, None))) is not None:
                    yield inner
        elif value is not None and (inner := unwrap(value)) is not None:
            yield inner


def collect_called_kernels(kernel: Any) -> list[Any]:
    """Collect a kernel and every jitted function that it calls, directly or indirectly."""
    found: dict[int, Any] = {}
    waiting = [kernel]
    while waiting:
        current = waiting.pop()
        if id(current) not in found:
            found[id(current)] = current
            waiting += iterate_callees(current)
    return list(found.values())


# Launches


def count_launches(
    module: ModuleType, slots: dict[str, list[int]], count_launch: CountLaunch
) -> None:
    """Count every launch of these kernels, and of kernels that call them, into these slots."""
    for qualname, numbers in slots.items():
        found = find_kernel(module, qualname)
        if found is not None:  # a kernel without a name is not counted, and counts as unreached
            watch_kernel(unwrap_kernel(found), numbers, count_launch)


def watch_kernel(kernel: Any, slots: list[int], count_launch: CountLaunch) -> None:
    with _lock:
        _watched_kernels[id(kernel)] = (kernel, slots, count_launch)
        _reached_slots.clear()
        for cls in get_kernel_classes():
            if cls not in _original_runs:
                _original_runs[cls] = cls.__dict__["run"]
                cls.run = _make_counting_run(cls)


def unwatch_kernel(kernel: Any) -> None:
    with _lock:
        _watched_kernels.pop(id(kernel), None)
        _reached_slots.clear()
        if not _watched_kernels:
            for cls, run in _original_runs.items():
                cls.run = run
            _original_runs.clear()


def _make_counting_run(cls: Any) -> Callable[..., Any]:
    @functools.wraps(_original_runs[cls])
    def count_and_run(self: Any, *arguments: Any, **options: Any) -> Any:
        if not options.get("warmup"):
            for slot, ran in _find_reached_slots(self):
                ran(slot)
        return _original_runs[cls](self, *arguments, **options)

    return count_and_run


def get_run(cls: Any) -> Callable[..., Any]:
    """Return the function that launches a kernel class's kernels."""
    with _lock:
        return _original_runs.get(cls) or cls.__dict__["run"]  # type: ignore[no-any-return]


def replace_run(cls: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """Replace how a kernel class launches, and return the previous function; counts go on."""
    with _lock:
        if cls in _original_runs:
            before, _original_runs[cls] = _original_runs[cls], run
        else:
            before, cls.run = cls.__dict__["run"], run
        _triton_runs.setdefault(cls, before)
        return before  # type: ignore[no-any-return]


def get_original_run(cls: Any) -> Callable[..., Any]:
    """Return Triton's own function, whatever launches kernels now."""
    with _lock:
        return _triton_runs.get(cls) or get_run(cls)


def _find_reached_slots(kernel: Any) -> list[tuple[int, CountLaunch]]:
    known = _reached_slots.get(id(kernel))
    if known is None or known[0] is not kernel:
        # A test may run a kernel's function in Triton's interpreter, as an object of its own.
        called = {id(each.fn) for each in collect_called_kernels(kernel)}
        reached = [
            (slot, ran)
            for watched, slots, ran in _watched_kernels.values()
            if id(watched.fn) in called
            for slot in slots
        ]
        known = _reached_slots[id(kernel)] = (kernel, reached)
    return known[1]


# Swapping


def rebuild_attributes(kernel: Any, function: FunctionType) -> dict[str, Any]:
    """Build the attributes of a kernel of the same class and options from another function."""
    cls = type(kernel)
    wanted = inspect.signature(cls.__init__).parameters
    if any(p.kind is p.VAR_KEYWORD for p in wanted.values()):
        fresh = cls(function, **kernel.kwargs)
    else:
        options = {
            name: vars(kernel).get(f"_{name}", vars(kernel).get(name))
            for name in wanted
            if name not in ("self", "fn")
        }
        fresh = _make_unregistered(cls, function, **options)
        # The binder is a method of the object, so it must come from the original kernel.
        fresh.device_caches = defaultdict(kernel.create_binder)
    attributes = dict(vars(fresh))
    attributes["pre_run_hooks"] = kernel.pre_run_hooks
    return attributes


def copy_with_signature(
    kernel: Any,
    signature: inspect.Signature,
    source: str,
    unspecialized: list[str],
    unaligned: list[str],
) -> Any:
    """Copy a kernel, with another signature and the source that belongs to it."""
    old = kernel.fn
    function = FunctionType(old.__code__, old.__globals__, old.__name__, None, old.__closure__)
    for name in ("__qualname__", "__module__", "__doc__"):
        setattr(function, name, getattr(old, name))
    function.__signature__ = signature  # type: ignore[attr-defined]
    copy = make_similar_kernel(kernel, function, unspecialized, unaligned)
    copy._unsafe_update_src(source)
    copy.raw_src, copy.starting_line_number = kernel.raw_src, kernel.starting_line_number
    return copy


def make_similar_kernel(
    kernel: Any,
    function: FunctionType,
    do_not_specialize: list[str],
    do_not_specialize_on_alignment: list[str],
) -> Any:
    """Make a new kernel from another function, with the same options but for these."""
    return _make_unregistered(
        type(kernel),
        function,
        version=kernel.version,
        do_not_specialize=do_not_specialize,
        do_not_specialize_on_alignment=do_not_specialize_on_alignment,
        debug=kernel.debug,
        noinline=kernel.noinline,
        repr=vars(kernel).get("_repr"),
        launch_metadata=kernel.launch_metadata,
    )


def _make_unregistered(cls: Any, function: FunctionType, **options: Any) -> Any:
    """Make a kernel object that Triton's registry of kernels does not list."""
    registry = getattr(sys.modules[cls.__module__], "_triton_jit_function_registry", {})
    before = dict(registry)
    kernel = cls(function, **options)
    registry.clear()
    registry.update(before)
    return kernel


def make_uncompiled_attributes(kernel: Any) -> dict[str, Any]:
    """Make the attributes with which a kernel compiles again at its next launch."""
    return {
        "hash": None,
        "used_global_vals": {},
        "device_caches": defaultdict(kernel.create_binder),
    }


def make_untuned_attributes(wrapper: Any) -> dict[str, Any]:
    """Make the attributes of an autotuner that has not chosen a configuration."""
    return {**vars(wrapper), **({"cache": {}} if "cache" in vars(wrapper) else {})}


def iterate_loaded_kernels() -> Iterator[Any]:
    """Yield every jitted object that is bound to a name of a loaded module.

    Reading every name of every module in a fork copies most of its memory. A module is therefore
    searched again only if its number of names has changed, or a name bound to a kernel or None.
    """
    seen: set[int] = set()
    kinds = set(
        _iterate_subclasses(getattr(sys.modules.get("triton.runtime.jit"), "KernelInterface", None))
    )
    for name, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", {})
        now = (id(module), len(names))
        before, known_names = _MODULE_KERNELS.get(name, (None, {}))
        if before != now or any(names.get(key) is not one for key, one in known_names.items()):
            # `isinstance` would call the object's __class__, and some modules then print a warning.
            known_names = {
                key: value
                for key, value in list(names.items())
                if type(value) in kinds or (value is None and not key.startswith("__"))
            }
            _MODULE_KERNELS[name] = now, known_names
        for value in known_names.values():
            if value is not None and id(value) not in seen:
                seen.add(id(value))
                inner = unwrap_kernel(value)
                if inner is not None:
                    yield inner


def _iterate_subclasses(base_class: Any) -> Iterator[Any]:
    """Yield a class and its subclasses."""
    if base_class is not None:
        yield base_class
        for other in base_class.__subclasses__():
            yield from _iterate_subclasses(other)


def find_compiled_callers(kernel: Any) -> list[Any]:
    """Find compiled kernels that contain this one; the interpreter looks callees up itself."""
    if not hasattr(kernel, "device_caches"):
        return []
    return [
        other for other in _find_kernels_leading_to(lambda k: k is kernel) if other is not kernel
    ]


def find_compiled_readers(scope: dict[str, Any], name: str) -> list[Any]:
    """Find compiled kernels that contain a module's constant, directly or through a callee."""
    return _find_kernels_leading_to(
        lambda kernel: kernel.fn.__globals__ is scope and name in kernel.fn.__code__.co_names
    )


def _find_kernels_leading_to(is_target: Callable[[Any], bool]) -> list[Any]:
    """Find compiled kernels that are targets, or that call one, directly or indirectly."""
    loaded = {id(kernel): kernel for kernel in iterate_loaded_kernels()}
    unwrapped: dict[int, tuple[Any, Any]] = {}  # most kernels refer to the same few functions

    def unwrap_once(value: Any) -> Any:
        if id(value) not in unwrapped:
            unwrapped[id(value)] = value, unwrap_kernel(value)
        return unwrapped[id(value)][1]

    called_by: dict[int, list[int]] = defaultdict(list)
    known, waiting = dict(loaded), list(loaded.values())
    while waiting:  # visits each kernel once
        current = waiting.pop()
        for called in iterate_callees(current, unwrap_once):
            called_by[id(called)].append(id(current))
            if id(called) not in known:
                known[id(called)] = called
                waiting.append(called)
    leading = {number for number, kernel in known.items() if is_target(kernel)}
    further = list(leading)
    while further:
        new = set(called_by[further.pop()]) - leading
        leading |= new
        further += new
    return [
        kernel
        for number, kernel in loaded.items()
        if number in leading and hasattr(kernel, "device_caches")
    ]


def drop_rewritten_function(function: FunctionType) -> None:
    """Drop the interpreter's rewritten copy of a function that is gone."""
    interpreter = sys.modules.get("triton.runtime.interpreter")
    cls = getattr(interpreter, "InterpretedFunction", None)
    if cls is not None:
        cls.rewritten_fn.pop(function, None)
