"""Loads, stores and addresses: the space of each address, and the call of its checks.

Addresses of all spaces but one are addresses of this process; a shared one counts from the start of
the block's shared memory, since it has to fit into 32 bits.
"""

from __future__ import annotations

from harness.sanitizer.ir.graph import IRValue
from harness.sanitizer.ptx.abi import ContextField, FrameField
from harness.sanitizer.ptx.instructions import Instruction, space_of
from harness.sanitizer.ptx.parser import bits_of_type
from harness.sanitizer.ptx.thread_code import PtxSite, ThreadCode
from harness.sanitizer.ptx.used_bytes import ALL_BYTES

_ORDERED = ("volatile", "relaxed", "acquire", "release")  # accesses that may synchronize


def emit_address(code: ThreadCode, instruction: Instruction) -> str:
    """Return the address of the first operand in this process."""
    return emit_space_address(code, instruction, 0, space_of(instruction))


def emit_space_address(code: ThreadCode, instruction: Instruction, place: int, space: str) -> str:
    value = instruction.operands[place]
    bits = 32 if space == "shared" and value.type.bits == 32 else 64
    address = code.get(value, bits)
    offset = int(instruction.operation.attributes.get(f"offset{place}", "0"))
    if offset:  # a sum of 32 bits may have begun below 0
        address = code.let(f"add i{bits} {address}, {offset}")
    address = code.resize(address, bits, 64)
    if space == "shared":
        address = code.let(f"add i64 {address}, {code.get_context(ContextField.SHARED)}")
    return address


def emit_check(
    code: ThreadCode,
    instruction: Instruction,
    verb: str,
    address: str,
    size: int | str,
    pointer: IRValue,
    *,
    new_bytes: str = "null",
    used_bytes: int = ALL_BYTES,
) -> int:
    """Call the checks of an access; return its site.

    Of a write `new_bytes` is the address of what is written, of a read `used_bytes` the mask of the
    bytes that count.
    """
    source = instruction.operation.source
    label = {"peek": "read", "poke": "write"}.get(verb, verb)
    site = code.add_site(
        PtxSite(source, label, size if isinstance(size, int) else 0, instruction.name)
    )
    region = code.get_companion(pointer, "r")
    state = code.get_companion(pointer, "o")
    known = new_bytes if used_bytes == ALL_BYTES else f"inttoptr (i64 {used_bytes} to ptr)"
    code.return_if_violated(
        f"call i32 @ptx_{verb}(ptr %context, ptr %frame, i64 {site}, i64 {address}, i64 {size},"
        f" i32 {region}, i32 {state}, ptr {known})"
    )
    return site


def emit_load(code: ThreadCode, instruction: Instruction) -> None:
    if not instruction.operands:  # the result of a call
        for result in instruction.results:
            code.set(result, "0", 64)
        return
    kind = instruction.type
    bits = bits_of_type(kind)
    count = len(instruction.results)
    space = space_of(instruction)
    address = emit_address(code, instruction)
    size = bits // 8 * count
    if space not in ("param", "const"):
        verb = "peek" if instruction.has(*_ORDERED) else "read"
        used = code.used_bytes.find_mask(instruction, bits // 8) if code.used_bytes else ALL_BYTES
        pointer_value = instruction.operands[0]
        emit_check(code, instruction, verb, address, size, pointer_value, used_bytes=used)
    pointer = code.to_pointer(address)
    ordering = " volatile" if instruction.has(*_ORDERED) else ""
    for place, result in enumerate(instruction.results):
        part = code.element_pointer(pointer, f"i{bits}", place)
        name = code.let(f"load{ordering} i{bits}, ptr {part}, align 1")
        code.set(result, name, bits, kind[0] == "s")
        if code.has_companion(result, "r") and bits == 64:
            region = code.let(
                f"call i32 @ptx_classify(ptr %context, i64 {name}, i64 {address}, i1"
                f" {'true' if space in ('param', 'generic') else 'false'})"
            )
            code.set_companion(result, "r", region)


def emit_store(code: ThreadCode, instruction: Instruction) -> None:
    bits = bits_of_type(instruction.type)
    values = instruction.operands[1:]
    space = space_of(instruction)
    if space == "param":
        name = instruction.operation.attributes["symbol"]
        code.call_arguments[name] = instruction.operands[-1]
        return
    address = emit_address(code, instruction)
    names = [code.get(value, bits) for value in values]
    buffer = code.alloca(f"[{len(values)} x i{bits}]")
    for place, name in enumerate(names):
        code.store_element(f"i{bits}", name, buffer, place)
    size = bits // 8 * len(values)
    verb = "poke" if instruction.has(*_ORDERED) else "write"
    site = emit_check(
        code, instruction, verb, address, size, instruction.operands[0], new_bytes=buffer
    )
    pointer = code.to_pointer(address)
    for place, name in enumerate(names):
        target = code.element_pointer(pointer, f"i{bits}", place)
        code.emit(f"store i{bits} {name}, ptr {target}, align 1")
        depends = code.join_companions(values[place : place + 1], "u")
        part = code.let(f"add i64 {address}, {place * bits // 8}")
        emit_uninitialized_store(code, instruction, site, part, bits // 8, depends)


def emit_uninitialized_store(
    code: ThreadCode, instruction: Instruction, site: int, address: str, size: int, depends: str
) -> None:
    """Report a store, or mark it, if its value depends on uninitialized memory."""
    if depends == "0":
        return
    region = code.get_companion(instruction.operands[0], "r")
    with code.when(code.let(f"icmp ne i32 {depends}, 0")):
        code.return_if_violated(
            f"call i32 @ptx_store_uninitialized(ptr %context, ptr %frame, i64 {site},"
            f" i64 {address}, i64 {size}, i32 {region})"
        )


def emit_cvta(code: ThreadCode, instruction: Instruction) -> None:
    space = space_of(instruction)
    [value] = instruction.operands
    bits = bits_of_type(instruction.type)
    address = code.get(value, bits)
    if space == "shared":
        base = code.resize(code.get_context(ContextField.SHARED), 64, bits)
        verb = "sub" if instruction.has("to") else "add"
        address = code.let(f"{verb} i{bits} {address}, {base}")
    code.set(instruction.results[0], address, bits)


def emit_isspacep(code: ThreadCode, instruction: Instruction) -> None:
    space = space_of(instruction)
    areas = {
        "shared": (code.get_context(ContextField.SHARED), ContextField.SHARED_SIZE),
        "local": (code.get_frame(FrameField.LOCAL), ContextField.LOCAL_SIZE),
    }
    address = code.get(instruction.operands[0], 64)
    inside = {}
    for name, (start, size) in areas.items():
        offset = code.let(f"sub i64 {address}, {start}")
        inside[name] = code.let(f"icmp ult i64 {offset}, {code.get_context(size)}")
    if space in inside:
        code.set(instruction.results[0], inside[space], 1)
    elif space == "global":
        either = code.let(f"or i1 {inside['shared']}, {inside['local']}")
        code.set(instruction.results[0], code.let(f"xor i1 {either}, true"), 1)
    else:
        raise instruction.refuse()


def emit_move(code: ThreadCode, instruction: Instruction) -> None:
    """Copy a register, or take it apart, or put it together."""
    results, operands = instruction.results, instruction.operands
    bits = bits_of_type(instruction.type)
    if bits > 64:
        raise instruction.refuse()
    if len(results) == len(operands) == 1:
        code.set(results[0], code.get(operands[0], bits), bits)
    elif len(operands) == 1:
        part = bits // len(results)
        value = code.get(operands[0], bits)
        sinks = instruction.operation.attributes.get("sinks", "").split(",")
        for place, result in enumerate(results):
            if str(place) in sinks:
                continue
            moved = code.let(f"lshr i{bits} {value}, {place * part}")
            code.set(result, code.resize(moved, bits, part), part)
    else:
        part = bits // len(operands)
        total = "0"
        for place, operand in enumerate(operands):
            wide = code.resize(code.get(operand, part), part, bits)
            moved = code.let(f"shl i{bits} {wide}, {place * part}")
            total = code.let(f"or i{bits} {total}, {moved}")
        code.set(results[0], total, bits)
