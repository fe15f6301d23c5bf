"""torch's operators on the virtual device: each runs the CPU's kernel on the same bytes.

Invariant: an operator does to device tensors what its CPU kernel does to CPU tensors. The kernels
are registered with torch's dispatcher under the key CUDA, of which a torch without CUDA has none;
so views, composite operators, autograd and dispatch modes stay torch's own. Worked example, for
`out.add_(other)`: torch calls `run_on_host(plan, out, other)`; both become CPU tensors over the
same bytes, the CPU's `add_` runs, and `out` itself is returned, since the schema says that the
result is the first argument.

What an operator of a GPU refuses is refused: operands on two devices, and operators that have no
kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Number
from typing import Any

import torch

from harness.sanitizer.device import device_guard, memory, streams
from harness.sanitizer.device.callers import find_caller
from harness.sanitizer.device.refusals import UnansweredName

_bindings: Any = torch._C
_CPU_KEYS = _bindings.DispatchKeySet(_bindings.DispatchKey.CPU)
_has_kernel = _bindings._dispatch_has_kernel_for_dispatch_key
_STRUCTURED = "CompositeExplicitAutogradNonFunctional"

# Their indices may be on the host.
_MIXED_DEVICES = frozenset(
    {
        "aten::index.Tensor",
        "aten::_index_put_impl_",
        "aten::index_put_",
        "aten::set_.source_Storage",
    }
)
# Their result, or its size, is read by the host: a GPU waits for them.
HOST_READS = frozenset(
    {
        "aten::_local_scalar_dense",
        "aten::equal",
        "aten::is_set_to",
        "aten::masked_select",
        "aten::nonzero",
        "aten::_unique2",
        "aten::unique_consecutive",
        "aten::unique_dim",
    }
)


@dataclass(frozen=True, slots=True)
class OperatorPlan:
    """What an operator's schema says about its arguments and results."""

    operator: Any
    name: str
    tensors: tuple[int, ...]  # positions of arguments that are tensors, or a number in place of one
    is_view: bool
    has_device: bool  # a factory: `device=` may name the device
    outputs: tuple[tuple[int, str], ...]  # arguments that are written, by position and name
    resizable: frozenset[str]  # the names among them that `out=` may resize
    returns: tuple[int | None, ...]  # for each result, which of `outputs` it is


# Called for each operator that ran on a device: the plan, its arguments, its results.
Observer = Callable[[OperatorPlan, tuple[Any, ...], dict[str, Any], Any], None]
OBSERVERS: list[Observer] = []

# Called with what a stand-in or a collective may have written: its arguments and results.
WRITE_OBSERVERS: list[Callable[[Any], None]] = []
# Called with results and outputs that nothing computed (`dry_run`, collectives).
UNCOMPUTED_OBSERVERS: list[Callable[[Any], None]] = []

# Gives an operator's result in another way, or NotImplemented to have its CPU kernel run.
Substitute = Callable[[OperatorPlan, tuple[Any, ...], dict[str, Any]], Any]
_substitute: Substitute | None = None


def set_substitute(substitute: Substitute | None) -> None:
    """Have every operator that is no view ask this function first (`dry_run`)."""
    global _substitute
    _substitute = substitute


def run_substitute(plan: OperatorPlan, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return what the substitute gives for an operator: NotImplemented if it has to be computed."""
    return NotImplemented if _substitute is None else _substitute(plan, args, options)


def register_operators(
    special_kernels: Mapping[str, Callable[..., Any]],
    autograd_kernels: Mapping[str, Callable[..., Any]],
) -> None:
    """Register a kernel of the key CUDA for each operator of torch that has one for the CPU."""
    device_guard.install_device_guard()
    library = torch.library.Library("aten", "IMPL", "CUDA")
    for name, kernel in special_kernels.items():
        library.impl(name, kernel)
    above = torch.library.Library("aten", "IMPL", "AutogradCUDA")
    for name, kernel in autograd_kernels.items():
        above.impl(name, kernel)
    for name in _list_operators():
        if name.removeprefix("aten::") not in special_kernels:
            library.m.impl(name, "CUDA", functools.partial(_run_named, name))
    fallback = torch.library.Library("_", "IMPL", "CUDA")
    fallback.fallback(_refuse_operator)
    _libraries.extend((library, above, fallback))


_libraries: list[Any] = []  # a library that is garbage-collected removes its kernels


def _list_operators() -> Iterator[str]:
    for name in _bindings._dispatch_get_all_op_names():
        is_free = name.startswith("aten::") and not _has_kernel(name, "CUDA")
        if is_free and (_has_kernel(name, "CPU") or _has_kernel(name, _STRUCTURED)):
            yield name


def _refuse_operator(operator: Any, *args: Any, **options: Any) -> Any:
    raise UnansweredName(
        f"{operator.name()} has no kernel for the virtual device, called at {find_caller()}: "
        "give it one in harness/sanitizer/device/special_operators.py"
    )


@functools.cache
def make_plan(name: str) -> OperatorPlan:
    """Read the schema of an operator, by its name with the overload."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    operator = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    arguments = operator._schema.arguments
    results = operator._schema.returns
    written = [
        (place, argument)
        for place, argument in enumerate(arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    reads = any(one.alias_info is not None and not one.alias_info.is_write for one in arguments)
    aliases = [frozenset(argument.alias_info.before_set) for _, argument in written]
    return OperatorPlan(
        operator,
        name,
        tuple(place for place, one in enumerate(arguments) if str(one.type) == "Tensor"),
        is_view=(reads and any(result.alias_info is not None for result in results))
        or rest.startswith(("set_", "as_strided_")),
        has_device=any(argument.name == "device" for argument in arguments),
        outputs=tuple((place, argument.name) for place, argument in written),
        resizable=frozenset(argument.name for _, argument in written if argument.is_out),
        returns=tuple(
            next(
                (n for n, alias in enumerate(aliases) if alias & result.alias_info.before_set),
                None,
            )
            if result.alias_info is not None
            else None
            for result in results
        ),
    )


class _HostArguments:
    """Converts the device tensors of one call, and remembers the device."""

    __slots__ = ("host_tensor", "index")

    def __init__(self) -> None:
        self.index: int | None = None
        self.host_tensor: torch.Tensor | None = None  # one on the host with dimensions

    def convert(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if value.is_cuda:
                index = value.get_device()
                if self.index is None:
                    self.index = index
                elif self.index != index:
                    raise RuntimeError(_describe_devices(f"cuda:{self.index}", f"cuda:{index}"))
                return memory.to_host(value)
            if value.dim():
                self.host_tensor = value
            return value
        if isinstance(value, (list, tuple)):
            return [self.convert(one) for one in value]
        return value


def _run_named(name: str, /, *args: Any, **options: Any) -> Any:
    return run_on_host(make_plan(name), *args, **options)


def run_on_host(plan: OperatorPlan, *args: Any, **options: Any) -> Any:
    """Run an operator's CPU kernel on the bytes of its device tensors."""
    with _bindings.DisableTorchFunction():
        if plan.is_view:
            result = plan.operator.redispatch(_CPU_KEYS, *args, **options)
        elif (result := run_substitute(plan, args, options)) is NotImplemented:
            result = _compute_operator(plan, args, options)
        report_operator(plan, args, options, result)
        if plan.name in HOST_READS:
            streams.current_stream().synchronize()
        return result


def report_operator(
    plan: OperatorPlan, args: tuple[Any, ...], options: dict[str, Any], result: Any
) -> None:
    """Report an operator that ran on the device to whoever observes it."""
    for observe in tuple(OBSERVERS):
        observe(plan, args, options, result)


def report_writes(*values: Any) -> None:
    """Report what a launch may have written that is no operator of torch."""
    for observe in tuple(WRITE_OBSERVERS):
        observe(values)


def report_derived(output: torch.Tensor, source: torch.Tensor) -> None:
    """Report an output whose values a stand-in made of a tensor's, without operators of torch."""
    report_operator(make_plan("aten::copy_"), (output, source), {}, output)


def report_uncomputed(*values: Any) -> None:
    """Report tensors whose values nothing computed, though a GPU would."""
    for observe in tuple(UNCOMPUTED_OBSERVERS):
        observe(values)


def _compute_operator(plan: OperatorPlan, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    call = _HostArguments()
    host_args = [call.convert(value) for value in args]
    host_options = {name: call.convert(value) for name, value in options.items()}
    if call.index is None:
        call.index = _take_device(host_options)
    elif call.host_tensor is not None and plan.name not in _MIXED_DEVICES:
        raise RuntimeError(_describe_devices(f"cuda:{call.index}", str(call.host_tensor.device)))
    elif plan.has_device:
        _take_device(host_options)
    resized = _replace_empty_outputs(plan, host_args, host_options) if plan.resizable else []
    operator = plan.operator
    if any(isinstance(host_args[place], Number) for place in plan.tensors if place < len(args)):
        operator = operator.overloadpacket  # it finds the overload for a number
    result = operator(*host_args, **host_options)
    for place, name, host in resized:
        output = args[place] if place < len(args) else options[name]
        if host.numel():
            resize_tensor(output, host.shape)
            memory.to_host(output).copy_(host)
    return _wrap_results(plan, result, args, options, call.index)


def _take_device(options: dict[str, Any]) -> int:
    device = options.get("device")
    if device is not None:
        options["device"] = torch.device("cpu")
        options.pop("pin_memory", None)
    return get_index(device)


def get_index(device: Any) -> int:
    """Return the index of a CUDA device, by default of this thread's current one."""
    index = None if device is None else torch.device(device).index
    return int(torch.cuda.current_device()) if index is None else index


def _replace_empty_outputs(
    plan: OperatorPlan, args: list[Any], options: dict[str, Any]
) -> list[tuple[int, str, torch.Tensor]]:
    """Give `out=` tensors without elements a CPU tensor that can be resized."""
    replaced = []
    for place, name in plan.outputs:
        if name not in plan.resizable:
            continue
        value = args[place] if place < len(args) else options[name]
        if isinstance(value, torch.Tensor) and not value.numel():
            fresh = torch.empty(0, dtype=value.dtype)
            if place < len(args):
                args[place] = fresh
            else:
                options[name] = fresh
            replaced.append((place, name, fresh))
    return replaced


def _wrap_results(
    plan: OperatorPlan, result: Any, args: tuple[Any, ...], options: dict[str, Any], index: int
) -> Any:
    sources = plan.returns
    if not sources:
        return result
    results = (result,) if len(sources) == 1 else result
    wrapped = []
    for source, value in zip(sources, results, strict=True):
        if source is not None:
            place, name = plan.outputs[source]
            wrapped.append(args[place] if place < len(args) else options[name])
        elif isinstance(value, torch.Tensor):
            wrapped.append(memory.to_device(value, index))
        elif isinstance(value, (list, tuple)):
            wrapped.append([memory.to_device(one, index) for one in value])
        else:
            wrapped.append(value)
    return wrapped[0] if len(sources) == 1 else tuple(wrapped)


def resize_tensor(tensor: torch.Tensor, size: Any) -> None:
    """Give a device tensor another size, and new memory if its own is too small."""
    fresh = memory.allocate_tensor(size, None, tensor.dtype, tensor.get_device())
    needed = fresh.untyped_storage().nbytes()
    if needed + tensor.storage_offset() * tensor.itemsize > tensor.untyped_storage().nbytes():
        copied_count = min(tensor.numel(), fresh.numel())
        if copied_count and tensor.is_contiguous():
            memory.to_host(fresh).view(-1)[:copied_count] = memory.to_host(tensor).reshape(-1)[
                :copied_count
            ]
        make_plan("aten::set_.source_Storage_storage_offset").operator.redispatch(
            _CPU_KEYS, tensor, fresh.untyped_storage(), 0, fresh.size(), fresh.stride()
        )
    else:
        tensor.as_strided_(fresh.size(), fresh.stride())


def _describe_devices(first: str, second: str) -> str:
    return (
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{first} and {second}!"
    )
