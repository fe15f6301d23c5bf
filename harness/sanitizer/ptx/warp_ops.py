"""Instructions for which threads wait: barriers, shuffles, votes, reductions over a warp.

A thread puts its words into its frame and suspends. When all lanes of its mask wait at the same
instruction, the scheduler collects their words (`FrameField.EXCHANGE`), and each lane computes its
own result from them.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.sanitizer.ir.graph import IRValue
from harness.sanitizer.ptx.abi import (
    BarrierField,
    ContextField,
    FrameField,
    WaitKind,
)
from harness.sanitizer.ptx.async_ops import emit_cluster_barrier
from harness.sanitizer.ptx.instructions import Instruction
from harness.sanitizer.ptx.thread_code import ThreadCode
from harness.sanitizer.violations.kinds import ViolationKind

Living = Sequence[IRValue]
_ALL_LANES = (1 << 32) - 1


def wait_for_lanes(
    code: ThreadCode,
    instruction: Instruction,
    living: Living,
    words: Sequence[str],
    mask: str,
) -> None:
    code.set_payload(words)
    site = code.add_wait_site(instruction)
    code.suspend([*living, *instruction.operands], WaitKind.WARP, site, mask)


def wait_for_warp(
    code: ThreadCode, instruction: Instruction, living: Living, words: Sequence[str]
) -> None:
    """Wait for all 32 lanes; one that has exited, or that the block has not, is a report."""
    wait_for_lanes(code, instruction, living, words, str(_ALL_LANES))
    group = code.get_frame(FrameField.GROUP)
    with code.when(code.let(f"icmp ne i64 {group}, {_ALL_LANES}"), exits=True):
        site = code.add_wait_site(instruction)
        code.report(ViolationKind.MISSING_LANES, site, other=group)


def _get_mask(code: ThreadCode, value: IRValue) -> str:
    return code.resize(code.get(value, 32), 32, 64)


def get_lane(code: ThreadCode) -> str:
    thread = code.get_frame(FrameField.THREAD)
    return code.let(f"trunc i64 {code.let(f'and i64 {thread}, 31')} to i32")


def load_word(code: ThreadCode, lane: str, word: int = 0) -> str:
    """Load a word of another lane of the group."""
    base = code.to_pointer(code.get_frame(FrameField.EXCHANGE))
    place = code.let(f"add i32 {lane}, {32 * word}")
    return code.load_element("i32", base, code.let(f"zext i32 {place} to i64"))


def _is_in_group(code: ThreadCode, lane: str) -> str:
    group = code.let(f"trunc i64 {code.get_frame(FrameField.GROUP)} to i32")
    bit = code.extract_bits(group, lane, 1, "i32")
    return code.let(f"icmp ne i32 {bit}, 0")


def emit_shuffle(code: ThreadCode, instruction: Instruction, living: Living) -> None:
    if not instruction.has("sync"):
        raise instruction.refuse()
    value, other, control, mask = instruction.operands
    wait_for_lanes(code, instruction, living, [code.get(value, 32)], _get_mask(code, mask))
    lane = get_lane(code)
    distance = code.let(f"and i32 {code.get(other, 32)}, 31")
    limits = code.get(control, 32)
    clamp = code.let(f"and i32 {limits}, 31")
    segment = code.extract_bits(limits, 8, 31, "i32")
    outside = code.let(f"xor i32 {segment}, 31")
    first = code.let(f"and i32 {lane}, {segment}")
    last = code.let(f"or i32 {first}, {code.let(f'and i32 {clamp}, {outside}')}")
    if instruction.has("up"):
        target = code.let(f"sub i32 {lane}, {distance}")
        valid = code.let(f"icmp sge i32 {target}, {last}")
    else:
        if instruction.has("down"):
            target = code.let(f"add i32 {lane}, {distance}")
        elif instruction.has("bfly"):
            target = code.let(f"xor i32 {lane}, {distance}")
        else:
            target = code.let(f"or i32 {first}, {code.let(f'and i32 {distance}, {outside}')}")
        valid = code.let(f"icmp sle i32 {target}, {last}")
    target = code.let(f"select i1 {valid}, i32 {target}, i32 {lane}")
    # The word of a lane outside of the group has no defined value: a lane keeps its own.
    target = code.let(f"and i32 {target}, 31")
    present = _is_in_group(code, target)
    target = code.let(f"select i1 {present}, i32 {target}, i32 {lane}")
    code.set(instruction.results[0], load_word(code, target), 32)
    if len(instruction.results) > 1:
        code.set(instruction.results[1], valid, 1)


def emit_vote(code: ThreadCode, instruction: Instruction, living: Living) -> None:
    if not instruction.has("sync"):
        raise instruction.refuse()
    predicate, mask = instruction.operands
    word = code.let(f"zext i1 {code.get(predicate, 1)} to i32")
    wait_for_lanes(code, instruction, living, [word], _get_mask(code, mask))
    ballot, group = code.get_frame(FrameField.BALLOT), code.get_frame(FrameField.GROUP)
    if instruction.has("ballot"):
        code.set(instruction.results[0], code.let(f"trunc i64 {ballot} to i32"), 32)
        return
    everyone = code.let(f"icmp eq i64 {ballot}, {group}")
    nobody = code.let(f"icmp eq i64 {ballot}, 0")
    if instruction.has("all"):
        truth = everyone
    elif instruction.has("any"):
        truth = code.let(f"xor i1 {nobody}, true")
    else:
        truth = code.let(f"or i1 {everyone}, {nobody}")
    code.set(instruction.results[0], truth, 1)


def emit_warp_reduction(code: ThreadCode, instruction: Instruction, living: Living) -> None:
    verb = instruction.find("add", "min", "max", "and", "or", "xor")
    kind = instruction.modifiers[-1]
    if verb is None or kind not in ("u32", "s32", "b32"):
        raise instruction.refuse()
    value, mask = instruction.operands
    wait_for_lanes(code, instruction, living, [code.get(value, 32)], _get_mask(code, mask))
    signed = kind == "s32"
    start = {
        "and": "-1",
        "min": str((1 << 31) - 1) if signed else "-1",
        "max": str(-(1 << 31)) if signed else "0",
    }.get(verb, "0")
    total = code.alloca("i32", start)
    with code.loop(32) as index:
        lane = code.let(f"trunc i64 {index} to i32")
        with code.when(_is_in_group(code, lane)):
            word, so_far = load_word(code, lane), code.load("i32", total)
            if verb in ("min", "max"):
                name = f"{'s' if signed else 'u'}{verb}"
                combined = code.call_intrinsic(name, "i32", so_far, word)
            else:
                combined = code.let(f"{verb} i32 {so_far}, {word}")
            code.store("i32", combined, total)
    code.set(instruction.results[0], code.load("i32", total), 32)


def emit_match(code: ThreadCode, instruction: Instruction, living: Living) -> None:
    value, mask = instruction.operands
    wide = instruction.modifiers[-1] == "b64"
    own = code.get(value, 64 if wide else 32)
    words = code.split_halves(own, 32) if wide else [own]
    wait_for_lanes(code, instruction, living, words, _get_mask(code, mask))
    lane = get_lane(code)
    mine = [load_word(code, lane, word) for word in range(len(words))]
    equal = code.alloca("i32", "0")
    with code.loop(32) as index:
        other = code.let(f"trunc i64 {index} to i32")
        same = _is_in_group(code, other)
        for word, own_word in enumerate(mine):
            is_equal = code.let(f"icmp eq i32 {load_word(code, other, word)}, {own_word}")
            same = code.let(f"and i1 {same}, {is_equal}")
        bit = code.let(f"shl i32 {code.let(f'zext i1 {same} to i32')}, {other}")
        code.store("i32", code.let(f"or i32 {code.load('i32', equal)}, {bit}"), equal)
    found = code.load("i32", equal)
    if instruction.has("any"):
        code.set(instruction.results[0], found, 32)
        return
    group = code.let(f"trunc i64 {code.get_frame(FrameField.GROUP)} to i32")
    everyone = code.let(f"icmp eq i32 {found}, {group}")
    code.set(instruction.results[0], code.let(f"select i1 {everyone}, i32 {group}, i32 0"), 32)
    if len(instruction.results) > 1:
        code.set(instruction.results[1], everyone, 1)


def emit_active_mask(code: ThreadCode, instruction: Instruction, living: Living) -> None:
    code.set_payload(["1"])
    code.suspend(living, WaitKind.ACTIVE, code.add_wait_site(instruction))
    group = code.let(f"trunc i64 {code.get_frame(FrameField.GROUP)} to i32")
    code.set(instruction.results[0], group, 32)


def emit_elect(code: ThreadCode, instruction: Instruction, living: Living) -> None:
    [mask] = instruction.operands
    wait_for_lanes(code, instruction, living, ["1"], _get_mask(code, mask))
    group = code.let(f"trunc i64 {code.get_frame(FrameField.GROUP)} to i32")
    leader = code.let(f"call i32 @llvm.cttz.i32(i32 {group}, i1 false)")
    code.set(instruction.results[0], leader, 32)
    code.set(instruction.results[1], code.let(f"icmp eq i32 {leader}, {get_lane(code)}"), 1)


def emit_barrier(code: ThreadCode, instruction: Instruction, living: Living) -> None:
    if instruction.has("cluster"):
        emit_cluster_barrier(code, instruction, living)
        return
    if instruction.has("warp"):
        mask = _get_mask(code, instruction.operands[0])
        wait_for_lanes(code, instruction, living, ["1"], mask)
        _count_warp_sync(code)
        return
    operands = list(instruction.operands)
    predicate = operands.pop() if instruction.has("red") else None
    number = code.let(f"and i64 {code.get(operands[0], 64)}, 15")
    expected = code.resize(code.get(operands[1], 32), 32, 64) if len(operands) > 1 else "0"
    if instruction.has("arrive"):
        barriers = code.to_pointer(code.get_context(ContextField.BARRIERS))
        entry = code.element_pointer(barriers, f"[{len(BarrierField)} x i64]", number)
        place = code.element_pointer(entry, "i64", BarrierField.ARRIVED)
        code.increment(place, "1")
        return
    truth = "0" if predicate is None else code.let(f"zext i1 {code.get(predicate, 1)} to i64")
    code.set_payload([number, expected, truth], "i64")
    code.suspend(living, WaitKind.BARRIER, code.add_wait_site(instruction))
    if predicate is not None:
        total, count = code.get_frame(FrameField.BALLOT), code.get_frame(FrameField.GROUP)
        if instruction.has("popc"):
            code.set(instruction.results[0], code.let(f"trunc i64 {total} to i32"), 32)
        elif instruction.has("and"):
            code.set(instruction.results[0], code.let(f"icmp eq i64 {total}, {count}"), 1)
        else:
            code.set(instruction.results[0], code.is_nonzero(total), 1)


def _count_warp_sync(code: ThreadCode) -> None:
    """Count a synchronization of the warp; ten bits of the count are in the entries of accesses."""
    count = code.let(f"add i64 {code.get_frame(FrameField.WARP_SYNC)}, 1")
    code.set_frame(FrameField.WARP_SYNC, count)
    with code.when(code.is_equal(code.let(f"and i64 {count}, 1023"), 0)):
        code.advance_epoch()


def emit_spin(code: ThreadCode, instruction: Instruction, living: Living) -> None:
    """Let other threads run now and then, in a loop that may wait for one of them."""
    count = code.let(f"add i64 {code.get_frame(FrameField.SPINS)}, 1")
    code.set_frame(FrameField.SPINS, count)
    period = 1024 if instruction.opcode == "atom" else 16
    with code.when(code.is_equal(code.let(f"and i64 {count}, {period - 1}"), 0)):
        site = code.add_wait_site(instruction)
        code.suspend([*living, *instruction.operands], WaitKind.YIELD, site)
