"""Writes checks into the text of a PTX module; what the kernels compute stays bit for bit.

In front of each access of global memory stands a check that its address lies in a tensor that its
pointer may belong to. A kernel gets one more parameter for these tensors, which the
launch fills (`instrumented_kernel`). Invariant: an access that fails the check is reported and
skipped, and its results are 0. Example: `ld.global.f32 %f1, [%rd4+8];` becomes

    add.s64 %ufa, %rd4, 8;
    ld.param.u64 %ufs, [unfix_checks+16];  ld.param.u64 %ufe, [unfix_checks+24];
    sub.s64 %ufd, %ufa, %ufs;  setp.ge.u64 %ufp, %ufd, %ufe;
    @%ufp bra $UF_R0;
    $UF_A0: ld.global.f32 %f1, [%rd4+8];
    $UF_B0:

At the kernel's end stands `$UF_R0`, which writes the report (`instrumented_records`) and goes on at
`$UF_B0`; in a launch without a report table it goes back to `$UF_A0`. There stand the checks for
races and uninitialized memory (`instrumented_races`, `instrumented_reads`), if the call has them:
they report, and the access happens.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.core.code_digest import compute_digest, digest_code
from harness.sanitizer.gpu.report_assembly import RecordField
from harness.sanitizer.ptx import instrumented_races, instrumented_reads
from harness.sanitizer.ptx.basic_blocks import split_statement
from harness.sanitizer.ptx.global_accesses import GlobalAccess, GlobalAccesses
from harness.sanitizer.ptx.instrumented_kernel import (
    CHECK_HEADER,
    ENTRY_BYTES,
    KEY_LENGTH,
    MARKER,
    CheckEntry,
    InstrumentedKernel,
    InstrumentedSite,
)
from harness.sanitizer.ptx.instrumented_overflow import OverflowInstrumentation, StatementCode
from harness.sanitizer.ptx.instrumented_races import RaceInstrumentation
from harness.sanitizer.ptx.instrumented_records import (
    PARAMETER,
    REGISTERS,
    apply_guard,
    make_guard,
    select_place_slot,
    write_record,
)
from harness.sanitizer.ptx.module_text import PtxText
from harness.sanitizer.ptx.parser import (
    PtxKernel,
    PtxStatement,
    PtxSyntaxError,
    bits_of_type,
    remove_block_comments,
)
from harness.sanitizer.ptx.pointer_roots import PointerRootTable
from harness.sanitizer.ptx.statement_spans import (
    StatementSpan,
    iterate_statement_spans,
    split_operands,
)
from harness.sanitizer.violations.kinds import ViolationKind, to_word_bit

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
        self._has_bounds, self._has_reads = "bounds" in checks, "uninitialized" in checks
        accesses = GlobalAccesses(kernel, PointerRootTable(module, kernel))
        self._accesses, self.result.unchecked = accesses.by_place, dict(accesses.unchecked)
        self._races: RaceInstrumentation | None = None
        if "races" in checks:
            self._prepare_races(module)
        self._entries: dict[CheckEntry, int] = {}
        self._reports: list[str] = []
        self._overflow: OverflowInstrumentation | None = None
        if "overflow" in checks:
            self._overflow = OverflowInstrumentation(module, kernel, self.result.overflows)

    def _prepare_races(self, module: PtxText) -> None:
        accesses = self._accesses.values()
        groups = instrumented_races.group_accesses(accesses)
        has_writes = any("write" in group.verbs for group in groups)
        wide = sum(not instrumented_races.is_checked(access) for access in accesses)
        if not has_writes and not wide:
            return
        if instrumented_races.may_synchronize_blocks(module, self._kernel):
            self.result.unchecked[instrumented_races.MAY_SYNCHRONIZE] = len(self._accesses)
            return
        if wide:
            self.result.unchecked[instrumented_races.TOO_WIDE] = wide
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
        if self._overflow is not None:
            declared += self._overflow.declarations
        if self._races is not None:
            declared += [*instrumented_races.REGISTERS, *self._races.entry_code]
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

    # Accesses

    def _get_state(self, register: str) -> str | None:
        """Return the register that says whether a number in this one overflowed, if one does."""
        return self._overflow.state_of(register) if self._overflow is not None else None

    def _check_access(
        self, access: GlobalAccess, span: StatementSpan, text: str, names: dict[str, str]
    ) -> list[str]:
        """Write the checks of an access in front of it: where it goes, races, what it reads."""
        checks_place = self._has_bounds or self._get_state(access.base) is not None
        checks_read = self._has_reads and instrumented_reads.is_checked(access)
        group = self._races.find_group(access) if self._races is not None else None
        if not checks_place and not checks_read and group is None:
            return [text]
        number, statement = len(self.result.sites), access.statement
        lines = tuple((location.file, location.line) for location in statement.source.chain)
        self.result.sites.append(
            InstrumentedSite(lines, access.verb, access.size, statement.name, access.roots)
        )
        guard = make_guard(statement, names)
        code = [f"add.s64 %ufa, {names.get(access.base, access.base)}, {access.offset};"]
        own, after = f"$UF_A{number}", f"$UF_B{number}"
        if checks_place:
            code += self._write_place_condition(access, names, guard)
            report = self._write_place_report(access, number, names)
            if span.depth:  # the labels of a scope are known inside of it alone
                code += [f"@!%ufp bra {own};", *report, f"bra {after};", f"{own}:"]
            else:
                self._reports += [f"$UF_R{number}:", *report, f"bra {after};"]
                code += [f"@%ufp bra $UF_R{number};", f"{own}:"]
        if group is not None:
            assert self._races is not None
            back = f"$UF_D{number}"
            code += self._races.write_condition(group, guard)
            report = self._races.write_report(access, group, number, back, names)
            code += self._branch_to(f"$UF_C{number}", back, report, span)
        if checks_read:
            back = f"$UF_V{number}"
            code += instrumented_reads.write_condition(access, guard, names)
            report = instrumented_reads.write_report(
                access, number, back, self._find_entry_offset(access)
            )
            code += self._branch_to(f"$UF_U{number}", back, report, span)
        return [*code, text, f"{after}:"] if checks_place else [*code, text]

    def _branch_to(
        self, label: str, back: str, report: list[str], span: StatementSpan
    ) -> list[str]:
        """Write code for where %ufp is set: at the kernel's end, in a scope right here."""
        if span.depth:
            return [f"@!%ufp bra {back};", *report, f"{back}:"]
        self._reports += [f"{label}:", *report, f"bra {back};"]
        return [f"@%ufp bra {label};", f"{back}:"]

    def _find_entry_offset(self, access: GlobalAccess) -> int | None:
        """Return where the parameter of the checks has an access's tensor, if it is one."""
        if len(access.roots) != 1:
            return None
        entry = CheckEntry(access.roots, 0, access.size)
        return CHECK_HEADER + ENTRY_BYTES * self._entries.setdefault(entry, len(self._entries))

    def _write_place_condition(
        self, access: GlobalAccess, names: dict[str, str], guard: str
    ) -> list[str]:
        """Set %ufp if the access at %ufa is to be reported."""
        dynamic_size = names.get(access.dynamic_size, access.dynamic_size)
        size = 0 if dynamic_size else access.size
        code = [f"cvt.u64.u32 %ufg, {dynamic_size};"] if dynamic_size else []
        if not self._has_bounds:
            code.append("setp.ne.s64 %ufp, %ufa, %ufa;")
        for place in range(len(access.roots) if self._has_bounds else 0):
            entry = CheckEntry(access.roots, place, size)
            number = self._entries.setdefault(entry, len(self._entries))
            offset = CHECK_HEADER + ENTRY_BYTES * number
            target = "%ufo" if place else "%ufp"
            code += [
                f"ld.param.u64 %ufs, [{PARAMETER}+{offset}];",
                f"ld.param.u64 %ufe, [{PARAMETER}+{offset + 8}];",
                "sub.s64 %ufd, %ufa, %ufs;",
                f"setp.ge.u64 {target}, %ufd, %ufe;",
            ]
            if dynamic_size:  # the limit is for the start of the access, and also for its end
                code.append("add.s64 %ufd, %ufd, %ufg;")
                code.append(f"setp.ge.or.u64 {target}, %ufd, %ufe, {target};")
            if place:
                code.append("and.pred %ufp, %ufp, %ufo;")
        if dynamic_size:
            code += ["setp.ne.and.u64 %ufp, %ufg, 0, %ufp;"]
        state = self._get_state(access.base)
        if state is not None:
            code.append(f"setp.ne.or.u32 %ufp, {state}, 0, %ufp;")
        return [*code, *apply_guard(guard)]

    def _write_place_report(
        self, access: GlobalAccess, site: int, names: dict[str, str]
    ) -> list[str]:
        """Write a record and set the results to 0; a launch without a table runs as it would."""
        state = self._get_state(access.base)
        word = [f"mov.b32 %ufw, {to_word_bit(ViolationKind.OUT_OF_BOUNDS)};"]
        operands: list[str] = []
        if state is not None:
            word += [f"setp.ne.u32 %ufo, {state}, 0;", f"selp.b32 %ufw, {state}, %ufw, %ufo;"]
            operands = [
                f"setp.eq.u32 %ufo, %ufv, {state};",
                "selp.b64 %ufd, %ufl, 0, %ufo;",
                f"st.volatile.global.u64 [%ufg+{RecordField.LEFT}], %ufd;",
                "selp.b64 %ufd, %ufr, 0, %ufo;",
                f"st.volatile.global.u64 [%ufg+{RecordField.RIGHT}], %ufd;",
            ]
        slot = select_place_slot(site, self._has_reads or self._races is not None)
        record = write_record(site, slot, f"$UF_A{site}", f"$UF_E{site}", "%ufa", operands, word)
        return [*record, *self._clear_results(access.statement, names)]

    def _clear_results(self, statement: PtxStatement, names: dict[str, str]) -> list[str]:
        kinds = self._kernel.register_types
        return [
            f"mov.b{bits_of_type(kinds[name])} {names.get(name, name)}, 0;"
            for name in split_statement(statement)[0]
            if name in kinds
        ]


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
