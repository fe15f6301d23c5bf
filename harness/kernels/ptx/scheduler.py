"""The scheduler in LLVM: blocks one after another, a block warp by warp, a warp lane by lane.

A lane runs until it exits or waits. When no lane of a warp can run, groups of lanes that wait at
the same instruction go on together; when no warp can run, complete barriers let their threads go
on. Example: 64 threads shuffle, then synchronize: warp 0 runs up to its shuffle, exchanges, runs up
to the barrier; warp 1 does the same; then the barrier lets all 64 go on, in a new epoch.
"""

from __future__ import annotations

from harness.kernels.ptx.abi import (
    BARRIER_COUNT,
    EXCHANGE_BYTES,
    BarrierField,
    ContextField,
    FrameField,
    ThreadOutcome,
    ThreadStatus,
    WaitKind,
)
from harness.kernels.ptx.scheduler_code import SchedulerFunction

_MAX_IDLE_ROUNDS = 1 << 16  # rounds in which threads only ask whether they may go on


def build_scheduler() -> str:
    return "\n".join(
        str(function)
        for function in (
            _build_launch(),
            _build_run_block(),
            _build_run_warp(),
            _build_release_lanes(),
            _build_release_barriers(),
        )
    )


def _build_launch() -> SchedulerFunction:
    code = SchedulerFunction("define i32 @ptx_launch(ptr %context)")
    fields = (ContextField.CTA_Z, ContextField.CTA_Y, ContextField.CTA_X)
    counts = (ContextField.GRID_Z, ContextField.GRID_Y, ContextField.GRID_X)
    chosen = code.context(ContextField.CHOSEN_COUNT)
    with code.when(code.let(f"icmp ne i64 {chosen}, 0"), exits=True):
        _run_chosen_blocks(code, fields, chosen)
    code.set_context(ContextField.BLOCK_ORDINAL, "0")
    with code.loop(code.context(counts[0])) as z:
        code.set_context(fields[0], z)
        with code.loop(code.context(counts[1])) as y:
            code.set_context(fields[1], y)
            with code.loop(code.context(counts[2])) as x:
                code.set_context(fields[2], x)
                outcome = code.let("call i32 @ptx_run_block(ptr %context)")
                with code.when(code.let(f"icmp ne i32 {outcome}, 0"), exits=True):
                    code.emit(f"ret i32 {outcome}")
                place = code.element_pointer("%context", "i64", ContextField.BLOCK_ORDINAL)
                code.increment(place, "1")
    code.emit("ret i32 0")
    return code


def _run_chosen_blocks(
    code: SchedulerFunction, fields: tuple[ContextField, ...], count: str
) -> None:
    """Run the blocks of a table, each in its place of the launch."""
    table = code.to_pointer(code.context(ContextField.CHOSEN))
    with code.loop(count) as number:
        row = code.element_pointer(table, "[3 x i64]", number)
        z, y, x = (code.load_field(row, place) for place in (2, 1, 0))
        for field, value in zip(fields, (z, y, x), strict=True):
            code.set_context(field, value)
        width, height = (
            code.context(field) for field in (ContextField.GRID_X, ContextField.GRID_Y)
        )
        rows = code.let(f"add i64 {code.let(f'mul i64 {z}, {height}')}, {y}")
        ordinal = code.let(f"add i64 {code.let(f'mul i64 {rows}, {width}')}, {x}")
        code.set_context(ContextField.BLOCK_ORDINAL, ordinal)
        outcome = code.let("call i32 @ptx_run_block(ptr %context)")
        with code.when(code.let(f"icmp ne i32 {outcome}, 0"), exits=True):
            code.emit(f"ret i32 {outcome}")
    code.emit("ret i32 0")


def _build_run_block() -> SchedulerFunction:
    code = SchedulerFunction("define internal i32 @ptx_run_block(ptr %context)")
    epoch = code.add_epoch()
    code.set_context(ContextField.BLOCK_EPOCH, epoch)
    threads = code.context(ContextField.THREADS)
    shadow = code.context(ContextField.SHARED_SHADOW)
    with code.when(code.let(f"icmp ne i64 {shadow}, 0")):
        size = code.context(ContextField.SHARED_SIZE)
        bytes_shadow = code.to_pointer(shadow)
        code.emit(f"call void @llvm.memset.p0.i64(ptr {bytes_shadow}, i8 1, i64 {size}, i1 false)")
    # What a block finds in shared memory is not what the block before it left there.
    memory, size = code.context(ContextField.SHARED), code.context(ContextField.SHARED_SIZE)
    code.emit(
        f"call void @llvm.memset.p0.i64(ptr {code.to_pointer(memory)}, i8 -1, i64 {size}, i1 false)"
    )
    barriers = code.to_pointer(code.context(ContextField.BARRIERS))
    size = str(BARRIER_COUNT * len(BarrierField) * 8)
    code.emit(f"call void @llvm.memset.p0.i64(ptr {barriers}, i8 0, i64 {size}, i1 false)")
    with code.loop(threads) as thread:
        frame = code.frame_of(thread)
        for field in (
            FrameField.RESUME,
            FrameField.STATUS,
            FrameField.WARP_SYNC,
            FrameField.SPINS,
            FrameField.COPY_GROUPS,
            FrameField.COPY_GROUPS_DONE,
            FrameField.COPY_GROUPS_ORDERED,
            FrameField.COPY_EPOCH,
            FrameField.COPY_SYNC,
        ):
            code.store_element("i64", "0", frame, field)
    warps = code.let(f"lshr i64 {code.let(f'add i64 {threads}, 31')}, 5")
    idle, last_epoch = code.alloca("i64", "0"), code.alloca("i64", "0")
    head, end = code.repeat()
    live, ran = code.alloca("i64"), code.alloca("i64")
    code.store("i64", "0", ran)
    code.store("i64", "0", live)
    with code.loop(warps) as warp:
        outcome = code.let(f"call i64 @ptx_run_warp(ptr %context, i64 {warp})")
        with code.when(code.let(f"icmp slt i64 {outcome}, 0"), exits=True):
            code.emit(f"ret i32 {int(ThreadOutcome.VIOLATED)}")
        code.increment(live, code.let(f"and i64 {outcome}, 255"))
        code.increment(ran, code.let(f"lshr i64 {outcome}, 8"))
    none = code.equals(code.load("i64", live), 0)
    with code.when(none, exits=True):
        code.emit("ret i32 0")
    living = code.load("i64", live)
    released = code.let(f"call i64 @ptx_release_barriers(ptr %context, i64 {living})")
    with code.when(code.let(f"icmp slt i64 {released}, 0"), exits=True):
        code.emit(f"ret i32 {int(ThreadOutcome.VIOLATED)}")
    progress = code.let(f"and i64 {released}, 1")
    yielded = code.let(f"lshr i64 {released}, 1")
    with code.when(code.let(f"icmp ne i64 {progress}, 0"), exits=True):
        code.store("i64", "0", idle)
        code.jump(head)
    # Only threads that ask again are left, or none. A phase of an mbarrier has raised the epoch.
    now = code.context(ContextField.EPOCH)
    moved = code.let(f"icmp ne i64 {code.load('i64', last_epoch)}, {now}")
    code.store("i64", now, last_epoch)
    rounds = code.let(f"select i1 {moved}, i64 0, i64 {code.load('i64', idle)}")
    waits = code.let(f"add i64 {rounds}, 1")
    code.store("i64", waits, idle)
    patient = code.both(
        code.let(f"icmp ne i64 {yielded}, 0"),
        code.let(f"icmp ult i64 {waits}, {_MAX_IDLE_ROUNDS}"),
    )
    with code.when(patient, exits=True):
        code.jump(head)
    with code.loop(threads) as thread:
        frame = code.frame_of(thread)
        exited = code.equals(code.load_field(frame, FrameField.STATUS), ThreadStatus.EXITED)
        with code.when(code.let(f"xor i1 {exited}, true"), exits=True):
            code.emit(f"call void @ptx_report_wait(ptr %context, ptr {frame}, i64 {yielded})")
            code.emit(f"ret i32 {int(ThreadOutcome.VIOLATED)}")
    code.emit("ret i32 0")
    code.start_block(end)
    code.emit("ret i32 0")
    return code


def _build_run_warp() -> SchedulerFunction:
    """Run a warp as far as it gets: return its living lanes, and 256 for each call of a lane."""
    code = SchedulerFunction("define internal i64 @ptx_run_warp(ptr %context, i64 %warp)")
    threads = code.context(ContextField.THREADS)
    first = code.let("shl i64 %warp, 5")
    count = code.minimum(code.let(f"sub i64 {threads}, {first}"), "32")
    function = code.to_pointer(code.context(ContextField.THREAD_FUNCTION))
    live, calls = code.alloca("i64"), code.alloca("i64", "0")
    head, end = code.repeat()
    code.store("i64", "0", live)
    before = code.load("i64", calls)
    with code.loop(count) as lane:
        frame = code.frame_of(code.let(f"add i64 {first}, {lane}"))
        status = code.element_pointer(frame, "i64", FrameField.STATUS)
        with code.when(code.equals(code.load("i64", status), ThreadStatus.READY)):
            code.increment(calls, "1")
            outcome = code.let(f"call i32 {function}(ptr %context, ptr {frame})")
            violated = code.let(f"icmp eq i32 {outcome}, {int(ThreadOutcome.VIOLATED)}")
            with code.when(violated, exits=True):
                code.emit("ret i64 -1")
            exited = code.let(f"icmp eq i32 {outcome}, {int(ThreadOutcome.EXITED)}")
            new = code.let(
                f"select i1 {exited}, i64 {int(ThreadStatus.EXITED)},"
                f" i64 {int(ThreadStatus.WAITING)}"
            )
            code.store("i64", new, status)
        alive = code.let(f"icmp ne i64 {code.load('i64', status)}, {int(ThreadStatus.EXITED)}")
        code.increment(live, code.let(f"zext i1 {alive} to i64"))
    ran = code.let(f"icmp ne i64 {code.load('i64', calls)}, {before}")
    with code.when(ran, exits=True):
        code.emit(f"call void @ptx_release_lanes(ptr %context, i64 {first}, i64 {count})")
        code.jump(head)
    shifted = code.let(f"shl i64 {code.load('i64', calls)}, 8")
    code.emit(f"ret i64 {code.let(f'or i64 {shifted}, ' + code.load('i64', live))}")
    code.start_block(end)
    code.emit("ret i64 0")
    return code


def _build_release_lanes() -> SchedulerFunction:
    """Let groups of lanes go on that wait at the same instruction and are all of its mask."""
    code = SchedulerFunction(
        "define internal void @ptx_release_lanes(ptr %context, i64 %first, i64 %count)"
    )
    with code.loop("%count") as lane:
        leader = code.frame_of(code.let(f"add i64 %first, {lane}"))
        kind = code.load_field(leader, FrameField.KIND)
        is_warp = code.equals(kind, WaitKind.WARP)
        is_active = code.equals(kind, WaitKind.ACTIVE)
        waiting = code.both(
            code.equals(code.load_field(leader, FrameField.STATUS), ThreadStatus.WAITING),
            code.let(f"or i1 {is_warp}, {is_active}"),
        )
        with code.when(waiting):
            _release_group(code, leader, lane, is_active)
    code.emit("ret void")
    return code


def _release_group(code: SchedulerFunction, leader: str, lane: str, is_active: str) -> None:
    site = code.load_field(leader, FrameField.SITE)
    own_mask = code.load_field(leader, FrameField.MASK)
    mask = code.let(f"select i1 {is_active}, i64 4294967295, i64 {own_mask}")
    kind = code.load_field(leader, FrameField.KIND)
    group, missing = code.alloca("i64"), code.alloca("i64")
    ballot = code.alloca("i64")
    for slot in (group, missing, ballot):
        code.store("i64", "0", slot)
    words = code.load_field(leader, FrameField.WORDS)
    leader_thread = code.let(f"add i64 %first, {lane}")
    tables = code.to_pointer(code.context(ContextField.EXCHANGES))
    offset = code.let(f"mul i64 {leader_thread}, {EXCHANGE_BYTES}")
    table = code.element_pointer(tables, "i8", offset)
    with code.loop("%count") as other:
        frame = code.frame_of(code.let(f"add i64 %first, {other}"))
        bit = code.let(f"shl i64 1, {other}")
        named = code.let(f"icmp ne i64 {code.let(f'and i64 {mask}, {bit}')}, 0")
        status = code.load_field(frame, FrameField.STATUS)
        alive = code.let(f"icmp ne i64 {status}, {int(ThreadStatus.EXITED)}")
        with code.when(code.both(named, alive)):
            same = code.both(
                code.equals(status, ThreadStatus.WAITING),
                code.equals(code.load_field(frame, FrameField.KIND), kind),
                code.equals(code.load_field(frame, FrameField.SITE), site),
                code.equals(code.load_field(frame, FrameField.MASK), own_mask),
            )
            chosen = code.let(f"select i1 {same}, i64 {bit}, i64 0")
            lost = code.let(f"select i1 {same}, i64 0, i64 {bit}")
            code.store("i64", code.let(f"or i64 {code.load('i64', group)}, {chosen}"), group)
            code.store("i64", code.let(f"or i64 {code.load('i64', missing)}, {lost}"), missing)
    complete = code.equals(code.load("i64", missing), 0)
    with code.when(code.let(f"or i1 {complete}, {is_active}")):
        with code.loop("%count") as other:
            frame = code.frame_of(code.let(f"add i64 %first, {other}"))
            bit = code.let(f"shl i64 1, {other}")
            inside = code.let(f"and i64 {code.load('i64', group)}, {bit}")
            with code.when(code.let(f"icmp ne i64 {inside}, 0")):
                payload = code.element_pointer(frame, "i64", FrameField.PAYLOAD)
                with code.loop(words) as word:
                    place = code.let(f"add i64 {code.let(f'shl i64 {word}, 5')}, {other}")
                    value = code.load_element("i32", payload, word)
                    code.store_element("i32", value, table, place)
                odd = code.let(f"and i32 {code.load('i32', payload)}, 1")
                vote = code.let(f"select i1 {code.let(f'icmp ne i32 {odd}, 0')}, i64 {bit}, i64 0")
                code.store("i64", code.let(f"or i64 {code.load('i64', ballot)}, {vote}"), ballot)
                code.store_element(
                    "i64", code.let(f"ptrtoint ptr {table} to i64"), frame, FrameField.EXCHANGE
                )
                code.store_element("i64", code.load("i64", group), frame, FrameField.GROUP)
                code.store_element("i64", str(int(ThreadStatus.READY)), frame, FrameField.STATUS)
        with code.loop("%count") as other:
            frame = code.frame_of(code.let(f"add i64 %first, {other}"))
            bit = code.let(f"shl i64 1, {other}")
            inside = code.let(f"and i64 {code.load('i64', group)}, {bit}")
            with code.when(code.let(f"icmp ne i64 {inside}, 0")):
                code.store_element("i64", code.load("i64", ballot), frame, FrameField.BALLOT)


def _build_release_barriers() -> SchedulerFunction:
    """Let the threads of complete barriers go on.

    Bit 0 of the result says that some went on, the bits above it count threads that ask again; it
    is negative if lanes of a warp wait at different barriers.
    """
    code = SchedulerFunction("define internal i64 @ptx_release_barriers(ptr %context, i64 %live)")
    barriers = code.to_pointer(code.context(ContextField.BARRIERS))
    threads = code.context(ContextField.THREADS)
    progress, yielded = code.alloca("i64", "0"), code.alloca("i64", "0")

    def entry_of(number: str) -> str:
        return code.element_pointer(barriers, f"[{len(BarrierField)} x i64]", number)

    with code.loop(BARRIER_COUNT) as number:
        entry = entry_of(number)
        for field in (BarrierField.WAITING, BarrierField.EXPECTED, BarrierField.TRUE):
            code.store_element("i64", "0", entry, field)
    with code.loop(threads) as thread:
        frame = code.frame_of(thread)
        waits = code.equals(code.load_field(frame, FrameField.STATUS), ThreadStatus.WAITING)
        kind = code.load_field(frame, FrameField.KIND)
        with code.when(code.both(waits, code.equals(kind, WaitKind.BARRIER))):
            payload = code.element_pointer(frame, "i64", FrameField.PAYLOAD)
            entry = entry_of(code.load_field(payload, 0))
            code.increment(code.element_pointer(entry, "i64", BarrierField.WAITING), "1")
            code.store_element("i64", code.load_field(payload, 1), entry, BarrierField.EXPECTED)
            true = code.element_pointer(entry, "i64", BarrierField.TRUE)
            code.increment(true, code.load_field(payload, 2))
        with code.when(code.both(waits, code.equals(kind, WaitKind.YIELD))):
            code.increment(yielded, "1")
            code.store_element("i64", str(int(ThreadStatus.READY)), frame, FrameField.STATUS)
    with code.loop(threads) as thread:
        frame = code.frame_of(thread)
        waits = code.both(
            code.equals(code.load_field(frame, FrameField.STATUS), ThreadStatus.WAITING),
            code.equals(code.load_field(frame, FrameField.KIND), WaitKind.BARRIER),
        )
        with code.when(waits):
            payload = code.element_pointer(frame, "i64", FrameField.PAYLOAD)
            entry = entry_of(code.load_field(payload, 0))
            arrived = code.load_field(entry, BarrierField.ARRIVED)
            waiting = code.load_field(entry, BarrierField.WAITING)
            named = code.load_field(entry, BarrierField.EXPECTED)
            expected = code.let(f"select i1 {code.equals(named, 0)}, i64 %live, i64 {named}")
            total = code.let(f"add i64 {arrived}, {waiting}")
            with code.when(code.let(f"icmp uge i64 {total}, {expected}")):
                _check_same_barrier(code, thread, frame, payload)
                code.store("i64", "1", progress)
                true = code.load_field(entry, BarrierField.TRUE)
                code.store_element("i64", true, frame, FrameField.BALLOT)
                code.store_element("i64", waiting, frame, FrameField.GROUP)
                code.store_element("i64", str(int(ThreadStatus.READY)), frame, FrameField.STATUS)
    released = code.load("i64", progress)
    with code.when(code.let(f"icmp ne i64 {released}, 0")):
        code.add_epoch()
        with code.loop(BARRIER_COUNT) as number:
            entry = entry_of(number)
            waiting = code.load_field(entry, BarrierField.WAITING)
            named = code.load_field(entry, BarrierField.EXPECTED)
            arrived = code.load_field(entry, BarrierField.ARRIVED)
            expected = code.let(f"select i1 {code.equals(named, 0)}, i64 %live, i64 {named}")
            total = code.let(f"add i64 {arrived}, {waiting}")
            complete = code.both(
                code.let(f"icmp ne i64 {waiting}, 0"),
                code.let(f"icmp uge i64 {total}, {expected}"),
            )
            rest = code.let(f"select i1 {complete}, i64 0, i64 {arrived}")
            code.store_element("i64", rest, entry, BarrierField.ARRIVED)
    shifted = code.let(f"shl i64 {code.load('i64', yielded)}, 1")
    code.emit(f"ret i64 {code.let(f'or i64 {shifted}, {released}')}")
    return code


def _check_same_barrier(code: SchedulerFunction, thread: str, frame: str, payload: str) -> None:
    """Report a lane that waits at another instruction than the lane before it, at one barrier."""
    inside = code.let(f"icmp ne i64 {code.let(f'and i64 {thread}, 31')}, 0")
    with code.when(inside):
        before = code.frame_of(code.let(f"sub i64 {thread}, 1"))
        other_payload = code.element_pointer(before, "i64", FrameField.PAYLOAD)
        both_wait = code.both(
            code.equals(code.load_field(before, FrameField.KIND), WaitKind.BARRIER),
            code.let(
                f"icmp ne i64 {code.load_field(before, FrameField.STATUS)},"
                f" {int(ThreadStatus.EXITED)}"
            ),
            code.equals(code.load_field(other_payload, 0), code.load_field(payload, 0)),
        )
        site, other = (code.load_field(one, FrameField.SITE) for one in (frame, before))
        with code.when(code.both(both_wait, code.let(f"icmp ne i64 {site}, {other}")), exits=True):
            code.emit(f"call void @ptx_report_divergence(ptr %context, ptr {frame}, i64 {other})")
            code.emit("ret i64 -1")
