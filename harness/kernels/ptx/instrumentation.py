"""Writes checks into the text of a PTX module; what the kernels compute stays bit for bit.

In front of each access of global memory stands the question whether its address lies in a tensor
that its pointer may belong to. A kernel gets one more parameter for these tensors, which the
launch fills (`instrumented_kernel`). Invariant: an access that fails the check is reported and
skipped, and its results are 0. Example: `ld.global.f32 %f1, [%rd4+8];` becomes

    add.s64 %ufa, %rd4, 8;
    ld.param.u64 %ufs, [unfix_checks+16];  ld.param.u64 %ufe, [unfix_checks+24];
    sub.s64 %ufd, %ufa, %ufs;  setp.ge.u64 %ufp, %ufd, %ufe;
    @%ufp bra $UF_R0;
    $UF_A0: ld.global.f32 %f1, [%rd4+8];
    $UF_B0:

At the kernel's end stands `$UF_R0`, which writes the report and goes on at `$UF_B0`; in a launch
without a report table it goes back to `$UF_A0`, the access. Reports have the layout of Triton's
kernels (`gpu/report_assembly`), and the number of the thread besides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.core.code_digest import compute_digest, digest_code
from harness.kernels.gpu.report_assembly import (
    MAX_SITES,
    RECORD_BYTES,
    RECORDS_PER_SITE,
    KernelTable,
    RecordField,
    ReportBit,
)
from harness.kernels.ptx.basic_blocks import split_statement
from harness.kernels.ptx.instrumented_kernel import (
    CHECK_HEADER,
    ENTRY_BYTES,
    KEY_LENGTH,
    MARKER,
    CheckEntry,
    InstrumentedKernel,
    InstrumentedSite,
)
from harness.kernels.ptx.instrumented_overflow import OverflowInstrumentation, StatementCode
from harness.kernels.ptx.parser import (
    PtxKernel,
    PtxStatement,
    PtxSyntaxError,
    PtxText,
    bits_of_type,
    is_number,
    parse_number,
    parse_ptx,
    remove_block_comments,
)
from harness.kernels.ptx.pointer_roots import (
    LOADED,
    ON_CHIP,
    TABLE,
    UNKNOWN,
    VARIABLE,
    PointerRootTable,
    split_address,
)
from harness.kernels.ptx.statement_spans import (
    StatementSpan,
    iterate_statement_spans,
    split_operands,
)

PARAMETER = "unfix_checks"
_VERBS = {"ld": "read", "ldu": "read", "st": "write", "atom": "update", "red": "update"}
_SPACES = ("global", "shared", "local", "param", "const")
_MAX_ENTRIES = 1500  # of at most 32,764 bytes of parameters
_MAX_PARAMETER_BYTES = 32764
_REGISTERS = (
    ".reg .b64 %ufa;", ".reg .b64 %ufd;", ".reg .b64 %ufs;", ".reg .b64 %ufe;", ".reg .b64 %uft;",
    ".reg .b64 %ufg;", ".reg .b32 %ufc;", ".reg .b32 %ufw;", ".reg .b32 %ufh;", ".reg .b32 %ufi;",
    ".reg .pred %ufp;", ".reg .pred %ufo;",
)  # fmt: skip
_BULK = "it is a bulk copy"


@dataclass(frozen=True, slots=True)
class InstrumentedPtx:
    key: str
    text: str
    kernels: dict[str, InstrumentedKernel]


def make_key(text: str, checks: tuple[str, ...]) -> str:
    digest = compute_digest(text, " ".join(checks), digest_code("kernels"))
    return digest[:KEY_LENGTH]


def instrument_module(text: str, checks: tuple[str, ...]) -> InstrumentedPtx:
    """Write the checks (`bounds`, `wraps`) into every kernel of a module.

    A kernel that cannot have them stays as it is, and its `refusal` gives the reason.
    """
    key = make_key(text, checks)
    text = remove_block_comments(text)
    module = parse_ptx(text)
    kernels: dict[str, InstrumentedKernel] = {}
    parts, position = [], 0
    for kernel in module.kernels.values():
        head, start, end = kernel.positions
        layout = tuple((one.offset, one.size) for one in kernel.parameters)
        result = kernels[kernel.name] = InstrumentedKernel(kernel.name, layout)
        try:
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
    def __init__(
        self,
        module: PtxText,
        kernel: PtxKernel,
        checks: tuple[str, ...],
        result: InstrumentedKernel,
    ) -> None:
        self._kernel = kernel
        self.result = result
        self._has_bounds = "bounds" in checks
        self._roots = PointerRootTable(module, kernel)
        self._entries: dict[CheckEntry, int] = {}
        self._reports: list[str] = []
        self._overflow: OverflowInstrumentation | None = None
        if "wraps" in checks:
            self._overflow = OverflowInstrumentation(module, kernel, self.result.overflows)

    def rewrite(self, body: str) -> str:
        spans = list(iterate_statement_spans(body))
        if len(spans) != len(self._kernel.statements):
            raise PtxSyntaxError(f"{len(spans)} of {len(self._kernel.statements)} statements found")
        parts, position = [], 0
        for span, statement in zip(spans, self._kernel.statements, strict=True):
            text = body[span.start : span.end]
            parts += [body[position : span.start], self._rewrite_statement(statement, span, text)]
            position = span.end
        self.result.entries = list(self._entries)
        if len(self._entries) > _MAX_ENTRIES or self._parameter_bytes > _MAX_PARAMETER_BYTES:
            self.result.refusal = f"it has {len(self._entries)} kinds of accesses"
        declared = [*_REGISTERS]
        if self._overflow is not None:
            declared += self._overflow.declarations
        return "\n".join(
            ("", *declared, "".join(parts) + body[position:], "ret;", *self._reports, "")
        )

    @property
    def _parameter_bytes(self) -> int:
        own = max((one.offset + one.size for one in self._kernel.parameters), default=0)
        return own + 8 + self.result.check_bytes

    def _rewrite_statement(self, statement: PtxStatement, span: StatementSpan, text: str) -> str:
        names = _map_texts(statement, text)
        code = StatementCode()
        if self._overflow is not None:
            code = self._overflow.rewrite(statement, names)
        lines = [*code.before, *self._check_access(statement, span, text, names), *code.after]
        return "\n".join(lines)

    # Accesses

    def _get_state(self, register: str) -> str | None:
        """Return the register that says whether a number in this one overflowed, if one does."""
        return self._overflow.state_of(register) if self._overflow is not None else None

    def _check_access(
        self, statement: PtxStatement, span: StatementSpan, text: str, names: dict[str, str]
    ) -> list[str]:
        access = self._find_access(statement)
        if access is None:
            return [text]
        address, size, dynamic_size, verb = access
        roots = self._roots.find(address[0])
        reason = self._find_reason(statement, address[0])
        if reason is None:
            return [text]
        if reason:
            self.result.unchecked[reason] = self.result.unchecked.get(reason, 0) + 1
            return [text]
        if not self._has_bounds and self._get_state(address[0]) is None:
            return [text]
        number = len(self.result.sites)
        lines = tuple((one.file, one.line) for one in statement.source.chain)
        parameters = tuple(sorted(roots.parameters))
        self.result.sites.append(InstrumentedSite(lines, verb, size, statement.name, parameters))
        check = self._write_check(
            statement, address, parameters, 0 if dynamic_size else size, dynamic_size, names
        )
        report = self._write_report(statement, number, address[0], names)
        own, after = f"$UF_A{number}", f"$UF_B{number}"
        if span.depth:  # the labels of a scope are known inside of it alone
            skip = [f"@!%ufp bra {own};", *report, f"bra {after};"]
            return [*check, *skip, f"{own}:", text, f"{after}:"]
        self._reports += [f"$UF_R{number}:", *report, f"bra {after};"]
        return [*check, f"@%ufp bra $UF_R{number};", f"{own}:", text, f"{after}:"]

    def _find_access(self, statement: PtxStatement) -> tuple[tuple[str, int], int, str, str] | None:
        """Return the address of a global access, its bytes, a register with its bytes, the verb."""
        opcode, modifiers = statement.opcode, statement.modifiers
        spaces = {one.partition("::")[0] for one in modifiers}
        if opcode in _VERBS:
            if spaces & {"shared", "local", "param", "const"}:
                return None
            operands = split_statement(statement)[1]
            address = split_address(operands[0])
            if address is None:
                raise PtxSyntaxError(f"the address {operands[0]}")
            kind = next(
                one for one in reversed(modifiers) if re.fullmatch(r"(b|u|s|f|bf)\d+(x2)?", one)
            )
            count = next((int(one[1:]) for one in modifiers if re.fullmatch(r"v\d", one)), 1)
            return address, bits_of_type(kind) // 8 * count, "", _VERBS[opcode]
        if opcode == "cp" and modifiers[:1] == ("async",) and "bulk" not in modifiers:
            if "global" not in modifiers:
                return None  # of a group
            address = split_address(statement.operands[1])
            if address is None:
                raise PtxSyntaxError(f"the address {statement.operands[1]}")
            size = parse_number(statement.operands[2])
            given = statement.operands[3] if len(statement.operands) > 3 else ""
            if is_number(given) if given else False:
                size, given = parse_number(given), ""
            if given and self._kernel.register_types.get(given) in (None, "b64", "pred"):
                given = ""  # a cache policy, or a mask that ignores the source
            return address, size, given, "read"
        if opcode in ("multimem", "cp") and ("global" in modifiers or opcode == "multimem"):
            reason = _BULK if opcode == "cp" else "it is multimem"
            self.result.unchecked[reason] = self.result.unchecked.get(reason, 0) + 1
        return None

    def _find_reason(self, statement: PtxStatement, base: str) -> str | None:
        """Return why an access is not checked, "" if it is; None if it is none of global memory."""
        roots = self._roots.find(base)
        is_generic = "global" not in {one.partition("::")[0] for one in statement.modifiers}
        if is_generic and roots.elsewhere == {ON_CHIP} and not roots.parameters:
            return None
        if is_generic and roots.addresses and not roots.parameters:
            return None  # of the parameters themselves
        for reason in (LOADED, VARIABLE, TABLE, ON_CHIP, UNKNOWN):
            if reason in roots.elsewhere:
                return reason
        return "" if roots.parameters else UNKNOWN

    def _write_check(
        self,
        statement: PtxStatement,
        address: tuple[str, int],
        roots: tuple[int, ...],
        size: int,
        dynamic_size: str,
        names: dict[str, str],
    ) -> list[str]:
        """Set %ufp if the access is to be reported, and %ufa to its address."""
        base = names.get(address[0], address[0])
        code = [f"add.s64 %ufa, {base}, {address[1]};"]
        if dynamic_size:
            code += [f"cvt.u64.u32 %ufg, {names.get(dynamic_size, dynamic_size)};"]
        if not self._has_bounds:
            code.append("setp.ne.s64 %ufp, %ufa, %ufa;")
        for place in range(len(roots) if self._has_bounds else 0):
            entry = CheckEntry(roots, place, size)
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
        state = self._get_state(address[0])
        if state is not None:
            code.append(f"setp.ne.or.u32 %ufp, {state}, 0, %ufp;")
        if statement.predicate:
            guard = names.get(statement.predicate, statement.predicate)
            if statement.is_negated:
                code.append(f"not.pred %ufo, {guard};")
                guard = "%ufo"
            code.append(f"and.pred %ufp, %ufp, {guard};")
        return code

    def _write_report(
        self, statement: PtxStatement, site: int, base: str, names: dict[str, str]
    ) -> list[str]:
        """Write a record and set the results to 0; the layout is that of `report_assembly`."""
        slot = site % MAX_SITES
        end = f"$UF_E{site}"
        state = self._get_state(base)
        word = int(ReportBit.OUT_OF_BOUNDS)
        code = [
            f"ld.param.u64 %uft, [{PARAMETER}];",
            "setp.eq.u64 %ufo, %uft, 0;",
            f"@%ufo bra $UF_A{site};",  # a launch without a table runs as it would
            f"atom.global.add.u32 %ufc, [%uft+{KernelTable.COUNTS + 4 * slot}], 1;",
            f"setp.ge.u32 %ufo, %ufc, {RECORDS_PER_SITE};",
            f"@%ufo bra {end};",
            f"mov.b32 %ufw, {word};",
        ]
        if state is not None:
            code += [f"setp.ne.u32 %ufo, {state}, 0;", f"selp.b32 %ufw, {state}, %ufw, %ufo;"]
        code += [
            f"ld.global.u64 %ufg, [%uft+{int(KernelTable.RECORDS)}];",
            f"mul.wide.u32 %ufd, %ufc, {RECORD_BYTES};",
            "add.s64 %ufg, %ufg, %ufd;",
            f"add.s64 %ufg, %ufg, {slot * RECORDS_PER_SITE * RECORD_BYTES};",
            f"ld.param.u64 %ufd, [{PARAMETER}+8];",
            f"st.volatile.global.u64 [%ufg+{int(RecordField.LAUNCH)}], %ufd;",
            f"st.volatile.global.u64 [%ufg+{int(RecordField.ADDRESS)}], %ufa;",
            f"st.volatile.global.u32 [%ufg+{int(RecordField.WORD)}], %ufw;",
            f"mov.u32 %ufh, {site};",
            f"st.volatile.global.u32 [%ufg+{int(RecordField.SITE)}], %ufh;",
        ]
        for axis, field in zip("xyz", (RecordField.X, RecordField.Y, RecordField.Z), strict=True):
            code += [
                f"mov.u32 %ufh, %ctaid.{axis};",
                f"st.volatile.global.u32 [%ufg+{int(field)}], %ufh;",
            ]
        code += [
            "mov.u32 %ufh, %tid.z;", "mov.u32 %ufi, %ntid.y;", "mul.lo.u32 %ufh, %ufh, %ufi;",
            "mov.u32 %ufi, %tid.y;", "add.u32 %ufh, %ufh, %ufi;",
            "mov.u32 %ufi, %ntid.x;", "mul.lo.u32 %ufh, %ufh, %ufi;",
            "mov.u32 %ufi, %tid.x;", "add.u32 %ufh, %ufh, %ufi;",
            f"st.volatile.global.u32 [%ufg+{int(RecordField.THREAD)}], %ufh;",
        ]  # fmt: skip
        code += [
            "mov.u32 %ufh, %ntid.y;", "shl.b32 %ufh, %ufh, 16;", "mov.u32 %ufi, %ntid.x;",
            "or.b32 %ufh, %ufh, %ufi;",
            f"st.volatile.global.u32 [%ufg+{int(RecordField.SIDES)}], %ufh;",
        ]  # fmt: skip
        if state is not None:
            code += [
                f"setp.eq.u32 %ufo, %ufv, {state};",
                "selp.b64 %ufd, %ufl, 0, %ufo;",
                f"st.volatile.global.u64 [%ufg+{int(RecordField.LEFT)}], %ufd;",
                "selp.b64 %ufd, %ufr, 0, %ufo;",
                f"st.volatile.global.u64 [%ufg+{int(RecordField.RIGHT)}], %ufd;",
            ]
        code += [
            "membar.sys;",
            "mov.u32 %ufh, 1;",
            f"st.volatile.global.u32 [%ufg+{int(RecordField.WRITTEN)}], %ufh;",
            "membar.sys;",
            f"ld.global.u64 %ufg, [%uft+{int(KernelTable.BELL)}];",
            "st.volatile.global.u32 [%ufg], %ufh;",
            f"{end}:",
            *self._clear_results(statement, names),
        ]
        return code

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
        words = [re.findall(r"[%$A-Za-z_][\w$%@]*", one) for one in (known, own)]
        names.update(zip(*words, strict=True))
    return names
