"""The facts of a violation by a Triton kernel that a CPU and a GPU know alike."""

from __future__ import annotations

import linecache
from abc import abstractmethod

from harness.sanitizer.check.tracked_memory import ProgramId, TrackedStorage
from harness.sanitizer.ir.graph import SourceLocation
from harness.sanitizer.ir.operation_sites import OperationSite
from harness.sanitizer.llvm.number_formats import size_of, triton_type_name
from harness.sanitizer.triton import line_tracing
from harness.sanitizer.violations.exceptions import KernelLocation
from harness.sanitizer.violations.facts import ViolationFacts, read_line, shorten_path
from harness.sanitizer.violations.kinds import FORBIDDEN
from harness.sanitizer.violations.named_memory import NamedMemory, name_element


class TritonFacts(ViolationFacts):
    span: NamedMemory | None  # memory of the argument that the pointer comes from
    storage: TrackedStorage | None  # the tracked one that it lies in

    def __init__(self, launched_kernel: str, site: OperationSite, program: ProgramId) -> None:
        self.launched_kernel, self.site, self.program = launched_kernel, site, program
        self.verb = self.message = site.label

    @property
    def location(self) -> KernelLocation:
        return locate_source(self.launched_kernel, self.site.source, self.program)

    @property
    def memory(self) -> NamedMemory | None:
        storage = self.storage
        if self.span is not None or storage is None:
            return self.span
        return NamedMemory(storage.name, storage.start, storage.end)

    @property
    def size(self) -> int:
        return size_of(self.site.element)

    # Access rules: the element is named by its index in the rule's tensor

    @property
    def element(self) -> str:
        if self.kind not in FORBIDDEN.values() or self.storage is None:
            return super().element
        access = next(verb for verb, kind in FORBIDDEN.items() if kind is self.kind)
        storage, offset = self.storage, self.address - self.storage.start
        tensor = next(
            rule.tensor
            for rule in storage.access_rules
            if rule.is_broken(access, self.program, storage, offset, self.size)
        )
        number = offset // tensor.element_size() - tensor.storage_offset()
        name = self.span.name if self.span is not None else storage.name
        return name_element(name, number, tuple(tensor.shape), tuple(tensor.stride()))

    # Integer overflow

    @property
    @abstractmethod
    def overflow(self) -> tuple[OperationSite, int, int, int]:
        """The operation that overflowed, its two operands and its result."""

    @property
    def overflow_location(self) -> KernelLocation:
        return locate_source(self.launched_kernel, self.overflow[0].source, self.program)

    @property
    def arithmetic(self) -> str:
        site, left, right, result = self.overflow
        kind = triton_type_name(site.element.removeprefix("u"))
        kind = f"u{kind}" if site.element[0] == "u" else kind
        if site.label == "narrowed":
            return f"{left} narrowed to {kind} became {result}"
        if site.label == "sum":
            return f"a sum of {left} became {result} in {kind}"
        return f"{left} {site.label} {right} became {result}: more than {kind} holds"


def locate_source(kernel: str, source: SourceLocation, program: ProgramId) -> KernelLocation:
    """Return the source line with its text; a called function is named with the kernel."""
    inner = _find_function(source.file, source.line) if source.caller is not None else None
    name = kernel if inner is None or inner == kernel else f"{kernel} (in {inner})"
    return KernelLocation(name, shorten_path(source.file), source.line, read_line(source), program)


def _find_function(file: str, line: int) -> str | None:
    """Find the innermost function that a line is in."""
    text = "".join(linecache.getlines(file))
    lengths = [
        (function.end_lineno - function.lineno, function.name)
        for function in line_tracing.find_functions(text, frozenset({line}))
        if function.end_lineno is not None and function.lineno <= line <= function.end_lineno
    ]
    return min(lengths)[1] if lengths else None
