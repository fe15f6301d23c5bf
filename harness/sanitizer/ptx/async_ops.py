"""Asynchronous copies, mbarriers, and clusters of one block.

A copy happens where it is issued; `copy_checks` finds a read before its wait. An mbarrier is 64
bits of shared memory, laid out here as: phase (1 bit), expected arrivals (20), pending arrivals
(20), bytes that are still to come (23, signed). A phase ends when nothing is pending; that is an
order between threads, so it raises the epoch as a barrier does.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.sanitizer.ir.graph import IRValue
from harness.sanitizer.ptx.abi import WaitKind
from harness.sanitizer.ptx.copy_checks import emit_begin, emit_commit, emit_wait
from harness.sanitizer.ptx.instructions import Instruction
from harness.sanitizer.ptx.llvm_code import PtxFunction
from harness.sanitizer.ptx.memory_ops import emit_address, emit_check, emit_space_address
from harness.sanitizer.ptx.thread_code import ThreadCode

_COUNT_BITS, _COUNT_MASK = 20, (1 << 20) - 1
_EXPECTED, _PENDING, _BYTES = 1, 1 + _COUNT_BITS, 1 + 2 * _COUNT_BITS
CLUSTER_BARRIER = 16  # the barrier beside the 16 of a block


def build_mbarrier_functions() -> str:
    """Build the function that changes an mbarrier and returns the number it had before."""
    code = PtxFunction(
        "define i64 @ptx_mbarrier(ptr %context, i64 %address, i64 %arrivals, i64 %drops,"
        " i64 %bytes)"
    )
    place = code.to_pointer("%address")
    old = code.load("i64", place)

    def field(start: int) -> str:
        return code.extract_bits(old, start, _COUNT_MASK)

    phase = code.let(f"and i64 {old}, 1")
    expected = code.let(f"sub i64 {field(_EXPECTED)}, %drops")
    gone = code.let("add i64 %arrivals, %drops")
    pending = code.let(f"sub i64 {field(_PENDING)}, {gone}")
    to_come = code.let(f"add i64 {code.let(f'ashr i64 {old}, {_BYTES}')}, %bytes")
    left = code.let(f"or i64 {pending}, {to_come}")
    complete = code.is_equal(left, 0)
    with code.when(complete):
        code.advance_epoch()
    flip = code.let(f"zext i1 {complete} to i64")
    phase = code.let(f"xor i64 {phase}, {flip}")
    pending = code.let(f"select i1 {complete}, i64 {expected}, i64 {pending}")
    new = phase
    for value, start in ((expected, _EXPECTED), (pending, _PENDING)):
        count = code.let(f"and i64 {value}, {_COUNT_MASK}")
        new = code.let(f"or i64 {new}, {code.let(f'shl i64 {count}, {start}')}")
    new = code.let(f"or i64 {new}, {code.let(f'shl i64 {to_come}, {_BYTES}')}")
    code.store("i64", new, place)
    code.emit(f"ret i64 {old}")
    return str(code)


def _change_barrier(
    code: ThreadCode, address: str, arrivals: str = "0", drops: str = "0", count: str = "0"
) -> str:
    return code.let(
        f"call i64 @ptx_mbarrier(ptr %context, i64 {address}, i64 {arrivals}, i64 {drops},"
        f" i64 {count})"
    )


def emit_mbarrier(code: ThreadCode, instruction: Instruction, living: Sequence[IRValue]) -> None:
    address = emit_address(code, instruction)
    pointer = instruction.operands[0]
    verb = "poke" if instruction.has("init") else "peek"
    emit_check(code, instruction, verb, address, 8, pointer)
    rest = instruction.operands[1:]
    if instruction.has("init"):
        count = code.let(f"and i64 {code.get(rest[0], 64)}, {_COUNT_MASK}")
        number = code.let(f"shl i64 {count}, {_EXPECTED}")
        number = code.let(f"or i64 {number}, {code.let(f'shl i64 {count}, {_PENDING}')}")
        code.store("i64", number, code.to_pointer(address))
    elif instruction.has("inval"):
        return
    elif instruction.has("test_wait", "try_wait"):
        _emit_wait(code, instruction, living, address)
    elif instruction.has("pending_count"):
        raise instruction.refuse()
    else:
        _emit_arrival(code, instruction, address, rest)


def _emit_arrival(
    code: ThreadCode, instruction: Instruction, address: str, rest: Sequence[IRValue]
) -> None:
    amount = code.resize(code.get(rest[0], 32), 32, 64) if rest else "1"
    if instruction.has("arrive", "arrive_drop"):
        arrivals = "1" if instruction.has("expect_tx") else amount
        count = amount if instruction.has("expect_tx") else "0"
        if instruction.has("arrive_drop"):
            old = _change_barrier(code, address, "0", arrivals, count)
        else:
            old = _change_barrier(code, address, arrivals, "0", count)
        if instruction.results:
            code.set(instruction.results[0], old, 64)
    elif instruction.has("expect_tx"):
        _change_barrier(code, address, count=amount)
    elif instruction.has("complete_tx"):
        _change_barrier(code, address, count=code.let(f"sub i64 0, {amount}"))
    else:
        raise instruction.refuse()


def _emit_wait(
    code: ThreadCode, instruction: Instruction, living: Sequence[IRValue], address: str
) -> None:
    """Ask whether a phase is over; if it is not, let other threads run and ask again."""

    def emit_is_over() -> str:
        current = code.let(f"and i64 {code.load('i64', code.to_pointer(address))}, 1")
        state = code.get(instruction.operands[1], 64)
        return code.let(f"icmp ne i64 {current}, {code.let(f'and i64 {state}, 1')}")

    slot = code.alloca("i1")
    code.store("i1", emit_is_over(), slot)
    waits = code.let(f"xor i1 {code.load('i1', slot)}, true")
    with code.when(waits):
        site = code.add_wait_site(instruction)
        code.suspend([*living, *instruction.operands], WaitKind.YIELD, site)
        address = emit_address(code, instruction)
        code.store("i1", emit_is_over(), slot)
    code.set(instruction.results[0], code.load("i1", slot), 1)


# Copies


def emit_copy(code: ThreadCode, instruction: Instruction) -> None:
    if instruction.has("commit_group", "wait_group", "wait_all"):
        if not instruction.has("bulk"):
            _emit_groups(code, instruction)
        return
    if instruction.has("tensor", "reduce", "multicast::cluster", "prefetch"):
        raise instruction.refuse()
    if instruction.has("mbarrier"):
        _emit_copy_arrival(code, instruction)
    elif instruction.has("bulk"):
        _emit_bulk_copy(code, instruction)
    elif len(instruction.operands) >= 3:
        _emit_small_copy(code, instruction)
    else:
        raise instruction.refuse()


def _emit_groups(code: ThreadCode, instruction: Instruction) -> None:
    if instruction.has("commit_group", "wait_all"):
        emit_commit(code)
    if instruction.has("wait_all"):
        emit_wait(code, 0)
    elif instruction.has("wait_group"):
        in_progress = code.constant_of(instruction.operands[0])
        if in_progress is None:
            raise instruction.refuse()
        emit_wait(code, in_progress)


def _emit_copy_arrival(code: ThreadCode, instruction: Instruction) -> None:
    """Arrive for the copies before: who waits for the mbarrier waits for them.

    They are done, so without `.noinc` nothing is left to do.
    """
    emit_commit(code)
    emit_wait(code, 0)
    address = emit_address(code, instruction)
    emit_check(code, instruction, "peek", address, 8, instruction.operands[0])
    if instruction.has("noinc"):
        _change_barrier(code, address, "1")


def _emit_small_copy(code: ThreadCode, instruction: Instruction) -> None:
    """Copy 4, 8 or 16 bytes to shared memory; of fewer in the source, the rest becomes 0."""
    target, source = instruction.operands[:2]
    size = code.constant_of(instruction.operands[2])
    if size not in (4, 8, 16):
        raise instruction.refuse()
    to = emit_space_address(code, instruction, 0, "shared")
    origin = emit_space_address(code, instruction, 1, "global")
    buffer = code.alloca(f"[{size} x i8]")
    code.store(f"i{8 * size}", "0", f"{buffer}, align 1")
    source_size = instruction.operands[3] if len(instruction.operands) > 3 else None
    if source_size is not None and source_size.type.bits == 1:
        raise instruction.refuse("a predicate")
    count = str(size)
    if source_size is not None and not _is_cache_policy(code, source_size):
        count = code.resize(code.get(source_size, 32), 32, 64)
        count = code.call_intrinsic("umin", "i64", count, size)
    with code.when(code.is_nonzero(count)):
        emit_check(code, instruction, "read", origin, count, source)
        code.copy_bytes(buffer, code.to_pointer(origin), count)
    emit_check(code, instruction, "write", to, size, target, new_bytes=buffer)
    code.copy_bytes(code.to_pointer(to), buffer, size)
    emit_begin(code, to, size)


def _is_cache_policy(code: ThreadCode, operand: IRValue) -> bool:
    return operand.type.bits == 64 and code.constant_of(operand) is None


def _emit_bulk_copy(code: ThreadCode, instruction: Instruction) -> None:
    names = (modifier.partition("::")[0] for modifier in instruction.modifiers)
    spaces = [name for name in names if name in ("shared", "global")]
    if len(spaces) != 2:
        raise instruction.refuse()
    to = emit_space_address(code, instruction, 0, spaces[0])
    origin = emit_space_address(code, instruction, 1, spaces[1])
    size = code.resize(code.get(instruction.operands[2], 32), 32, 64)
    emit_check(code, instruction, "read", origin, size, instruction.operands[1])
    source = code.to_pointer(origin)
    emit_check(code, instruction, "write", to, size, instruction.operands[0], new_bytes=source)
    code.copy_bytes(code.to_pointer(to), source, size)
    if any(modifier.startswith("mbarrier::") for modifier in instruction.modifiers):
        barrier = emit_space_address(code, instruction, 3, "shared")
        emit_check(code, instruction, "peek", barrier, 8, instruction.operands[3])
        _change_barrier(code, barrier, count=code.let(f"sub i64 0, {size}"))


# Clusters of one block


def emit_mapa(code: ThreadCode, instruction: Instruction) -> None:
    bits = 32 if instruction.has("u32") else 64
    code.set(instruction.results[0], code.get(instruction.operands[0], bits), bits)


def emit_cluster_barrier(
    code: ThreadCode, instruction: Instruction, living: Sequence[IRValue]
) -> None:
    """Wait for all threads of the block, which is the cluster; arriving alone waits for none."""
    if instruction.has("arrive"):
        return
    code.set_payload([str(CLUSTER_BARRIER), "0", "0"], "i64")
    code.suspend(living, WaitKind.BARRIER, code.add_wait_site(instruction))
