"""Writes checks into the text of a PTX module; what the kernels compute stays bit for bit.

In front of each access of global memory stands a check that its address lies in a tensor that its
pointer may belong to. A kernel gets one more parameter for these tensors, which the
launch fills (`instrumented_kernel`). Invariant: an access that fails the check is reported and
skipped, and its results are 0. Example: `ld.global.f32 %f1, [%rd4+8];` becomes

    add.s64 %ufa, %rd4, 8;
    ld.param.u64 %ufm0, [unfix_checks+48];  ld.param.u64 %ufm1, [unfix_checks+56];
    sub.s64 %ufm2, %ufa, %ufm0;  setp.ge.u64 %ufp0, %ufm2, %ufm1;
    @%ufp0 bra $UF_R0;
    $UF_A0: ld.global.f32 %f1, [%rd4+8];
    $UF_B0:

At the kernel's end stands `$UF_R0`, which writes the report (`instrumented_records`) and goes on at
`$UF_B0`; in a launch without a report table it goes back to `$UF_A0`. There stand the checks for
races and uninitialized memory (`instrumented_entries`, `instrumented_reads`), if the call has them:
they report, and the access happens.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.core.code_digest import compute_digest, digest_code
from harness.sanitizer.checks import add_checks
from harness.sanitizer.ptx import instrumented_entries
from harness.sanitizer.ptx.global_accesses import GlobalAccess, GlobalAccesses
from harness.sanitizer.ptx.instrumented_access import CheckedGlobalAccess
from harness.sanitizer.ptx.instrumented_entries import RaceInstrumentation
from harness.sanitizer.ptx.instrumented_kernel import (
    KEY_LENGTH,
    MARKER,
    CheckEntry,
    InstrumentedKernel,
    InstrumentedSite,
)
from harness.sanitizer.ptx.instrumented_overflow import OverflowInstrumentation, StatementCode
from harness.sanitizer.ptx.instrumented_records import (
    PARAMETER,
    REGISTERS,
)
from harness.sanitizer.ptx.module_text import PtxText
from harness.sanitizer.ptx.parser import (
    PtxKernel,
    PtxStatement,
    PtxSyntaxError,
    remove_block_comments,
)
from harness.sanitizer.ptx.pointer_roots import PointerRootTable
from harness.sanitizer.ptx.statement_spans import (
    StatementSpan,
    iterate_statement_spans,
    split_operands,
)
from harness.sanitizer.violations.targets import Target, list_kinds

_MAX_ENTRIES = 1500  # of at most 32,764 bytes of parameters
_MAX_PARAMETER_BYTES = 32764


@dataclass(frozen=True, slots=True)
class InstrumentedPtx:
    key: str
    text: str
    kernels: dict[str, InstrumentedKernel]


def make_key(text: str, checks: tuple[str, ...]) -> str:
    return compute_digest(text, " ".join(checks), digest_code("sanitizer"))[:KEY_LENGTH]


def instrument_module(text: str, checks: tuple[str, ...]) -> InstrumentedPtx:
    """Write checks (of `gpu.ALL_CHECKS`) into every kernel of a module.

    A kernel that cannot have them stays as it is, and its `refusal` gives the reason.
    """
    key = make_key(text, checks)
    text = remove_block_comments(text)
    module = PtxText(text)
    kernels: dict[str, InstrumentedKernel] = {}
    parts, position = [], 0
    for name, kernel_head in module.heads.items():
        head, start, end = kernel_head.positions
        layout = tuple((one.offset, one.size) for one in kernel_head.parameters)
        result = kernels[name] = InstrumentedKernel(name, layout)
        try:
            kernel = module.read_kernel(name)
            new_body = _KernelRewriter(module, kernel, checks, result).rewrite(text[start:end])
            new_head = _add_parameter(text[head:start], kernel, result.check_bytes)
        except PtxSyntaxError as error:
            result.refusal = f"its PTX is not understood: {error}"
        except Exception as error:  # the other kernels are to be checked
            result.refusal = f"its PTX is not understood: {error!r}"
        if result.refusal or not result.sites:
            continue
        parts += [text[position:head], new_head, new_body]
        position = end
    parts.append(text[position:])
    return InstrumentedPtx(key, _add_marker("".join(parts), key), kernels)


def _add_marker(text: str, key: str) -> str:
    """Add the variable that names the module's file of kernels."""
    head = re.search(r"^\.address_size[^\n]*\n", text, re.MULTILINE)
    if head is None:
        raise PtxSyntaxError("a module without .address_size")
    marker = f".visible .global .align 8 .u64 {MARKER}{key} = 1;\n"
    return text[: head.end()] + marker + text[head.end() :]


def _add_parameter(head: str, kernel: PtxKernel, size: int) -> str:
    own = f".param .align 8 .b8 {PARAMETER}[{size}]"
    opening = head.find("(")
    if opening < 0:
        place = head.index(kernel.name) + len(kernel.name)
        return f"{head[:place]}({own}){head[place:]}"
    closing = head.index(")", opening)
    comma = "," if kernel.parameters else ""
    return f"{head[:closing]}{comma}\n\t{own}\n{head[closing:]}"


class _KernelRewriter:
    """Writes the checks into one kernel's body; `result` gets what the launches need of them."""

    def __init__(
        self,
        module: PtxText,
        kernel: PtxKernel,
        checks: tuple[str, ...],
        result: InstrumentedKernel,
    ) -> None:
        self._kernel = kernel
        self.result = result
        self._kinds = list_kinds(Target.CUDA_GPU, checks)
        accesses = GlobalAccesses(kernel, PointerRootTable(module, kernel))
        self._accesses, self.result.unchecked = accesses.by_place, dict(accesses.unchecked)
        self._races: RaceInstrumentation | None = None
        if "races" in checks:
            self._prepare_races(module)
        self._entries: dict[CheckEntry, int] = {}
        self._reports: list[str] = []
        self._number_count = self._condition_count = 0  # registers of the checks of one access
        self._overflow: OverflowInstrumentation | None = None
        if "overflow" in checks:
            self._overflow = OverflowInstrumentation(module, kernel, self.result.overflows)

    def _prepare_races(self, module: PtxText) -> None:
        accesses = self._accesses.values()
        groups = instrumented_entries.group_accesses(accesses)
        has_writes = any("write" in group.verbs for group in groups)
        wide = sum(not instrumented_entries.is_checked(access) for access in accesses)
        if not has_writes and not wide:
            return
        if instrumented_entries.may_synchronize_blocks(module, self._kernel):
            self.result.unchecked[instrumented_entries.MAY_SYNCHRONIZE] = len(self._accesses)
            return
        if wide:
            self.result.unchecked[instrumented_entries.TOO_WIDE] = wide
        if has_writes:
            self.result.race_groups = groups
            self._races = RaceInstrumentation(self._kernel, groups)

    def rewrite(self, body: str) -> str:
        spans = list(iterate_statement_spans(body))
        if len(spans) != len(self._kernel.statements):
            raise PtxSyntaxError(f"{len(spans)} of {len(self._kernel.statements)} statements found")
        parts, position = [], 0
        for place, span in enumerate(spans):
            text = body[span.start : span.end]
            parts += [body[position : span.start], self._rewrite_statement(place, span, text)]
            position = span.end
        self.result.entries = list(self._entries)
        if len(self._entries) > _MAX_ENTRIES or self._parameter_bytes > _MAX_PARAMETER_BYTES:
            self.result.refusal = f"it has {len(self._entries)} kinds of accesses"
        declared = [*REGISTERS]
        declared.append(f".reg .b64 %ufm<{self._number_count + 1}>;")
        declared.append(f".reg .pred %ufp<{self._condition_count + 1}>;")
        if self._overflow is not None:
            declared += self._overflow.declarations
        if self._races is not None:
            declared += [*instrumented_entries.REGISTERS, *self._races.entry_code]
        return "\n".join(
            ("", *declared, "".join(parts) + body[position:], "ret;", *self._reports, "")
        )

    @property
    def _parameter_bytes(self) -> int:
        own = max(
            (parameter.offset + parameter.size for parameter in self._kernel.parameters), default=0
        )
        return own + 8 + self.result.check_bytes

    def _rewrite_statement(self, place: int, span: StatementSpan, text: str) -> str:
        statement = self._kernel.statements[place]
        names = _map_texts(statement, text)
        code = StatementCode()
        if self._overflow is not None:
            code = self._overflow.rewrite(statement, names)
        access = self._accesses.get(place)
        own = [text] if access is None else self._check_access(access, span, text, names)
        return "\n".join([*code.before, *own, *code.after])

    def _check_access(
        self, access: GlobalAccess, span: StatementSpan, text: str, names: dict[str, str]
    ) -> list[str]:
        """Write the checks of an access in front of it."""
        state = self._overflow.state_of(access.base) if self._overflow is not None else None
        checked = CheckedGlobalAccess(
            access,
            len(self.result.sites),
            names,
            state,
            self._races,
            self._kinds,
            self._entries,
            self._kernel.register_types,
            is_in_scope=span.depth > 0,
        )
        add_checks(checked)
        if not checked.code.lines:
            return [text]
        statement = access.statement
        lines = tuple((location.file, location.line) for location in statement.source.chain)
        self.result.sites.append(
            InstrumentedSite(lines, access.verb, access.size, statement.name, access.roots)
        )
        self._reports += checked.reports
        self._number_count = max(self._number_count, checked.code.number_count)
        self._condition_count = max(self._condition_count, checked.code.condition_count)
        return checked.surround(text)


def _map_texts(statement: PtxStatement, text: str) -> dict[str, str]:
    """Map the registers of a statement, which an inner scope may rename, to their names there."""
    guard = re.match(r"@!?\s*([%\w$]+)\s+", text)
    names: dict[str, str] = {}
    if guard is not None:
        names[statement.predicate] = guard[1]
        text = text[guard.end() :]
    head = re.match(r"[\w.:]+", text)
    if head is None or statement.opcode == "call":
        return names
    written = split_operands(text[head.end() :].rstrip(";").strip())
    for known, own in zip(statement.operands, written, strict=True):
        words = [re.findall(r"[%$A-Za-z_][\w$%@]*", operand) for operand in (known, own)]
        names.update(zip(*words, strict=True))
    return names
