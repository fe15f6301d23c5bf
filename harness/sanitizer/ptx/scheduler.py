"""The scheduler in LLVM: blocks one after another, a block warp by warp, a warp lane by lane.

A lane runs until it exits or waits. When no lane of a warp can run, groups of lanes that wait at
the same instruction go on together; when no warp can run, complete barriers let their threads go
on. Example: 64 threads shuffle, then synchronize: warp 0 runs up to its shuffle, exchanges, runs up
to the barrier; warp 1 does the same; then the barrier lets all 64 go on, in a new epoch.
"""

from __future__ import annotations

from harness.sanitizer.ptx.abi import (
    BARRIER_COUNT,
    EXCHANGE_BYTES,
    BarrierField,
    ContextField,
    FrameField,
    ThreadOutcome,
    ThreadStatus,
    WaitKind,
)
from harness.sanitizer.ptx.llvm_code import PtxFunction
from harness.sanitizer.violations.kinds import ViolationKind

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
            _build_wait_report("ptx_report_wait", ViolationKind.DEADLOCK),
            _build_wait_report("ptx_report_divergence", ViolationKind.DIVERGENT_BARRIER),
        )
    )


def _build_launch() -> PtxFunction:
    """Build the function that runs all blocks of a launch, or those of its table, by ordinal."""
    code = PtxFunction("define i32 @ptx_launch(ptr %context)")
    width, height, depth = (
        code.get_context(field)
        for field in (ContextField.GRID_X, ContextField.GRID_Y, ContextField.GRID_Z)
    )
    chosen = code.get_context(ContextField.CHOSEN_COUNT)
    has_table = code.is_nonzero(chosen)
    rows = code.let(f"mul i64 {height}, {depth}")
    blocks = code.let(f"mul i64 {width}, {rows}")
    count = code.let(f"select i1 {has_table}, i64 {chosen}, i64 {blocks}")
    table = code.to_pointer(code.get_context(ContextField.CHOSEN))
    with code.loop(count) as number:
        code.set_context(ContextField.BLOCK_ORDINAL, number)
        with code.when(has_table):
            code.set_context(ContextField.BLOCK_ORDINAL, code.load_field(table, number))
        ordinal = code.get_context(ContextField.BLOCK_ORDINAL)
        row = code.let(f"udiv i64 {ordinal}, {width}")
        code.set_context(ContextField.CTA_X, code.let(f"urem i64 {ordinal}, {width}"))
        code.set_context(ContextField.CTA_Y, code.let(f"urem i64 {row}, {height}"))
        code.set_context(ContextField.CTA_Z, code.let(f"udiv i64 {row}, {height}"))
        outcome = code.let("call i32 @ptx_run_block(ptr %context)")
        with code.when(code.let(f"icmp ne i32 {outcome}, 0"), exits=True):
            code.emit(f"ret i32 {outcome}")
    code.emit("ret i32 0")
    return code


def _build_run_block() -> PtxFunction:
    code = PtxFunction("define internal i32 @ptx_run_block(ptr %context)")
    epoch = code.advance_epoch()
    code.set_context(ContextField.BLOCK_EPOCH, epoch)
    threads = code.get_context(ContextField.THREADS)
    shadow = code.get_context(ContextField.SHARED_SHADOW)
    with code.when(code.is_nonzero(shadow)):
        size = code.get_context(ContextField.SHARED_SIZE)
        code.fill_bytes(code.to_pointer(shadow), 1, size)
    # What a block finds in shared memory is not what the block before it left there.
    memory, size = code.get_context(ContextField.SHARED), code.get_context(ContextField.SHARED_SIZE)
    code.fill_bytes(code.to_pointer(memory), -1, size)
    barriers = code.to_pointer(code.get_context(ContextField.BARRIERS))
    code.fill_bytes(barriers, 0, BARRIER_COUNT * len(BarrierField) * 8)
    with code.loop(threads) as thread:
        frame = code.find_frame(thread)
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
    head, end = code.start_loop()
    live, ran = code.alloca("i64", "0"), code.alloca("i64", "0")
    with code.loop(warps) as warp:
        outcome = code.let(f"call i64 @ptx_run_warp(ptr %context, i64 {warp})")
        with code.when(code.let(f"icmp slt i64 {outcome}, 0"), exits=True):
            code.emit(f"ret i32 {ThreadOutcome.VIOLATED}")
        code.increment(live, code.let(f"and i64 {outcome}, 255"))
        code.increment(ran, code.let(f"lshr i64 {outcome}, 8"))
    living = code.load("i64", live)
    with code.when(code.is_equal(living, 0), exits=True):
        code.emit("ret i32 0")
    released = code.let(f"call i64 @ptx_release_barriers(ptr %context, i64 {living})")
    with code.when(code.let(f"icmp slt i64 {released}, 0"), exits=True):
        code.emit(f"ret i32 {ThreadOutcome.VIOLATED}")
    progress = code.let(f"and i64 {released}, 1")
    yielded = code.let(f"lshr i64 {released}, 1")
    with code.when(code.is_nonzero(progress), exits=True):
        code.store("i64", "0", idle)
        code.jump(head)
    # Only threads that ask again are left, or none. A phase of an mbarrier has raised the epoch.
    now = code.get_context(ContextField.EPOCH)
    moved = code.let(f"icmp ne i64 {code.load('i64', last_epoch)}, {now}")
    code.store("i64", now, last_epoch)
    rounds = code.let(f"select i1 {moved}, i64 0, i64 {code.load('i64', idle)}")
    waits = code.let(f"add i64 {rounds}, 1")
    code.store("i64", waits, idle)
    patient = code.both(
        code.is_nonzero(yielded),
        code.let(f"icmp ult i64 {waits}, {_MAX_IDLE_ROUNDS}"),
    )
    with code.when(patient, exits=True):
        code.jump(head)
    with code.loop(threads) as thread:
        frame = code.find_frame(thread)
        exited = code.is_equal(code.load_field(frame, FrameField.STATUS), ThreadStatus.EXITED)
        with code.when(code.let(f"xor i1 {exited}, true"), exits=True):
            code.emit(f"call void @ptx_report_wait(ptr %context, ptr {frame}, i64 {yielded})")
            code.emit(f"ret i32 {ThreadOutcome.VIOLATED}")
    code.emit("ret i32 0")
    code.start_block(end)
    code.emit("ret i32 0")
    return code


def _build_run_warp() -> PtxFunction:
    """Run a warp as far as it gets: return its living lanes, and 256 for each call of a lane."""
    code = PtxFunction("define internal i64 @ptx_run_warp(ptr %context, i64 %warp)")
    threads = code.get_context(ContextField.THREADS)
    first = code.let("shl i64 %warp, 5")
    count = code.call_intrinsic("umin", "i64", code.let(f"sub i64 {threads}, {first}"), 32)
    function = code.to_pointer(code.get_context(ContextField.THREAD_FUNCTION))
    live, calls = code.alloca("i64"), code.alloca("i64", "0")
    head, end = code.start_loop()
    code.store("i64", "0", live)
    before = code.load("i64", calls)
    with code.loop(count) as lane:
        frame = code.find_frame(code.let(f"add i64 {first}, {lane}"))
        status = code.element_pointer(frame, "i64", FrameField.STATUS)
        with code.when(code.is_equal(code.load("i64", status), ThreadStatus.READY)):
            code.increment(calls, "1")
            outcome = code.let(f"call i32 {function}(ptr %context, ptr {frame})")
            violated = code.let(f"icmp eq i32 {outcome}, {ThreadOutcome.VIOLATED}")
            with code.when(violated, exits=True):
                code.emit("ret i64 -1")
            exited = code.let(f"icmp eq i32 {outcome}, {ThreadOutcome.EXITED}")
            new = code.let(
                f"select i1 {exited}, i64 {ThreadStatus.EXITED}, i64 {ThreadStatus.WAITING}"
            )
            code.store("i64", new, status)
        alive = code.let(f"icmp ne i64 {code.load('i64', status)}, {ThreadStatus.EXITED}")
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


def _build_release_lanes() -> PtxFunction:
    """Let groups of lanes go on that wait at the same instruction and are all of its mask."""
    code = PtxFunction(
        "define internal void @ptx_release_lanes(ptr %context, i64 %first, i64 %count)"
    )
    with code.loop("%count") as lane:
        leader = code.find_frame(code.let(f"add i64 %first, {lane}"))
        kind = code.load_field(leader, FrameField.KIND)
        is_warp = code.is_equal(kind, WaitKind.WARP)
        is_active = code.is_equal(kind, WaitKind.ACTIVE)
        waiting = code.both(
            code.is_equal(code.load_field(leader, FrameField.STATUS), ThreadStatus.WAITING),
            code.let(f"or i1 {is_warp}, {is_active}"),
        )
        with code.when(waiting):
            _release_group(code, leader, lane, is_active)
    code.emit("ret void")
    return code


def _release_group(code: PtxFunction, leader: str, lane: str, is_active: str) -> None:
    site = code.load_field(leader, FrameField.SITE)
    own_mask = code.load_field(leader, FrameField.MASK)
    mask = code.let(f"select i1 {is_active}, i64 4294967295, i64 {own_mask}")
    kind = code.load_field(leader, FrameField.KIND)
    group, missing, ballot = (code.alloca("i64", "0") for _ in range(3))
    words = code.load_field(leader, FrameField.WORDS)
    leader_thread = code.let(f"add i64 %first, {lane}")
    tables = code.to_pointer(code.get_context(ContextField.EXCHANGES))
    offset = code.let(f"mul i64 {leader_thread}, {EXCHANGE_BYTES}")
    table = code.element_pointer(tables, "i8", offset)
    with code.loop("%count") as other:
        frame = code.find_frame(code.let(f"add i64 %first, {other}"))
        bit = code.let(f"shl i64 1, {other}")
        named = code.is_nonzero(code.let(f"and i64 {mask}, {bit}"))
        status = code.load_field(frame, FrameField.STATUS)
        alive = code.let(f"icmp ne i64 {status}, {ThreadStatus.EXITED}")
        with code.when(code.both(named, alive)):
            same = code.both(
                code.is_equal(status, ThreadStatus.WAITING),
                code.is_equal(code.load_field(frame, FrameField.KIND), kind),
                code.is_equal(code.load_field(frame, FrameField.SITE), site),
                code.is_equal(code.load_field(frame, FrameField.MASK), own_mask),
            )
            chosen = code.let(f"select i1 {same}, i64 {bit}, i64 0")
            lost = code.let(f"select i1 {same}, i64 0, i64 {bit}")
            code.store("i64", code.let(f"or i64 {code.load('i64', group)}, {chosen}"), group)
            code.store("i64", code.let(f"or i64 {code.load('i64', missing)}, {lost}"), missing)
    complete = code.is_equal(code.load("i64", missing), 0)
    with code.when(code.let(f"or i1 {complete}, {is_active}")):
        with code.loop("%count") as other:
            frame = code.find_frame(code.let(f"add i64 %first, {other}"))
            bit = code.let(f"shl i64 1, {other}")
            inside = code.let(f"and i64 {code.load('i64', group)}, {bit}")
            with code.when(code.is_nonzero(inside)):
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
                code.store_element("i64", str(ThreadStatus.READY), frame, FrameField.STATUS)
        with code.loop("%count") as other:
            frame = code.find_frame(code.let(f"add i64 %first, {other}"))
            bit = code.let(f"shl i64 1, {other}")
            inside = code.let(f"and i64 {code.load('i64', group)}, {bit}")
            with code.when(code.is_nonzero(inside)):
                code.store_element("i64", code.load("i64", ballot), frame, FrameField.BALLOT)


def _build_release_barriers() -> PtxFunction:
    """Let the threads of complete barriers go on.

    Bit 0 of the result says that some went on, the bits above it count threads that ask again; it
    is negative if lanes of a warp wait at different barriers.
    """
    code = PtxFunction("define internal i64 @ptx_release_barriers(ptr %context, i64 %live)")
    barriers = code.to_pointer(code.get_context(ContextField.BARRIERS))
    threads = code.get_context(ContextField.THREADS)
    progress, yielded = code.alloca("i64", "0"), code.alloca("i64", "0")

    def entry_of(number: str) -> str:
        return code.element_pointer(barriers, f"[{len(BarrierField)} x i64]", number)

    with code.loop(BARRIER_COUNT) as number:
        entry = entry_of(number)
        for field in (BarrierField.WAITING, BarrierField.EXPECTED, BarrierField.TRUE):
            code.store_element("i64", "0", entry, field)
    with code.loop(threads) as thread:
        frame = code.find_frame(thread)
        waits = code.is_equal(code.load_field(frame, FrameField.STATUS), ThreadStatus.WAITING)
        kind = code.load_field(frame, FrameField.KIND)
        with code.when(code.both(waits, code.is_equal(kind, WaitKind.BARRIER))):
            payload = code.element_pointer(frame, "i64", FrameField.PAYLOAD)
            entry = entry_of(code.load_field(payload, 0))
            code.increment(code.element_pointer(entry, "i64", BarrierField.WAITING), "1")
            code.store_element("i64", code.load_field(payload, 1), entry, BarrierField.EXPECTED)
            true = code.element_pointer(entry, "i64", BarrierField.TRUE)
            code.increment(true, code.load_field(payload, 2))
        with code.when(code.both(waits, code.is_equal(kind, WaitKind.YIELD))):
            code.increment(yielded, "1")
            code.store_element("i64", str(ThreadStatus.READY), frame, FrameField.STATUS)
    with code.loop(threads) as thread:
        frame = code.find_frame(thread)
        waits = code.both(
            code.is_equal(code.load_field(frame, FrameField.STATUS), ThreadStatus.WAITING),
            code.is_equal(code.load_field(frame, FrameField.KIND), WaitKind.BARRIER),
        )
        with code.when(waits):
            payload = code.element_pointer(frame, "i64", FrameField.PAYLOAD)
            entry = entry_of(code.load_field(payload, 0))
            with code.when(_has_all_threads(code, entry)):
                _check_same_barrier(code, thread, frame, payload)
                code.store("i64", "1", progress)
                true = code.load_field(entry, BarrierField.TRUE)
                waiting = code.load_field(entry, BarrierField.WAITING)
                code.store_element("i64", true, frame, FrameField.BALLOT)
                code.store_element("i64", waiting, frame, FrameField.GROUP)
                code.store_element("i64", str(ThreadStatus.READY), frame, FrameField.STATUS)
    released = code.load("i64", progress)
    with code.when(code.is_nonzero(released)):
        code.advance_epoch()
        with code.loop(BARRIER_COUNT) as number:
            entry = entry_of(number)
            waiting = code.load_field(entry, BarrierField.WAITING)
            complete = code.both(code.is_nonzero(waiting), _has_all_threads(code, entry))
            with code.when(complete):
                code.store_element("i64", "0", entry, BarrierField.ARRIVED)
    shifted = code.let(f"shl i64 {code.load('i64', yielded)}, 1")
    code.emit(f"ret i64 {code.let(f'or i64 {shifted}, {released}')}")
    return code


def _has_all_threads(code: PtxFunction, entry: str) -> str:
    """Return whether as many threads arrived at a barrier as it waits for, or all living ones."""
    arrived = code.load_field(entry, BarrierField.ARRIVED)
    waiting = code.load_field(entry, BarrierField.WAITING)
    requested = code.load_field(entry, BarrierField.EXPECTED)
    expected = code.let(f"select i1 {code.is_equal(requested, 0)}, i64 %live, i64 {requested}")
    return code.let(f"icmp uge i64 {code.let(f'add i64 {arrived}, {waiting}')}, {expected}")


def _check_same_barrier(code: PtxFunction, thread: str, frame: str, payload: str) -> None:
    """Report a lane that waits at another instruction than the lane before it, at one barrier."""
    inside = code.is_nonzero(code.let(f"and i64 {thread}, 31"))
    with code.when(inside):
        before = code.find_frame(code.let(f"sub i64 {thread}, 1"))
        other_payload = code.element_pointer(before, "i64", FrameField.PAYLOAD)
        both_wait = code.both(
            code.is_equal(code.load_field(before, FrameField.KIND), WaitKind.BARRIER),
            code.let(
                f"icmp ne i64 {code.load_field(before, FrameField.STATUS)}, {ThreadStatus.EXITED}"
            ),
            code.is_equal(code.load_field(other_payload, 0), code.load_field(payload, 0)),
        )
        site, other = (code.load_field(waiter, FrameField.SITE) for waiter in (frame, before))
        with code.when(code.both(both_wait, code.let(f"icmp ne i64 {site}, {other}")), exits=True):
            code.emit(f"call void @ptx_report_divergence(ptr %context, ptr {frame}, i64 {other})")
            code.emit("ret i64 -1")


def _build_wait_report(name: str, kind: ViolationKind) -> PtxFunction:
    """Build the function that reports a thread's wait, at the place where it waits."""
    code = PtxFunction(f"define internal void @{name}(ptr %context, ptr %frame, i64 %other)")
    code.fill_report(kind, code.get_frame(FrameField.SITE), other="%other")
    code.emit("ret void")
    return code
