"""Kernels whose programs take turns by atomics, and ones that forget to."""

import triton
import triton.language as tl


@triton.jit
def sum_under_locks(locks, counts, sums, source, N: tl.constexpr, GROUPS: tl.constexpr):
    """Triton's fifth tutorial: rows of a group are summed under the group's lock."""
    row = tl.program_id(0)
    group = row % GROUPS
    columns = tl.arange(0, N)
    own_sum = tl.load(source + row * N + columns)
    locks += group
    counts += group
    sums = sums + group * N + columns
    while tl.atomic_cas(locks, 0, 1) == 1:
        pass
    count = tl.load(counts)
    if count == 0:
        tl.atomic_xchg(counts, 1)
    else:
        own_sum += tl.load(sums)
    tl.store(sums, own_sum)
    tl.debug_barrier()
    tl.atomic_xchg(locks, 0)


@triton.jit
def count_under_a_lock(lock, count, MISTAKE: tl.constexpr):
    if MISTAKE != "no lock":
        while tl.atomic_cas(lock, 0, 1) == 1:
            pass
    value = tl.load(count)
    if MISTAKE == "unlocked first":
        tl.atomic_xchg(lock, 0)
    tl.store(count, value + 1)
    if MISTAKE == "":
        tl.atomic_xchg(lock, 0)
    if MISTAKE == "relaxed":
        tl.atomic_xchg(lock, 0, sem="relaxed")
    if MISTAKE == "another lock":
        tl.atomic_xchg(lock, 0)


@triton.jit
def count_under_its_own_lock(locks, count):
    """Each program takes another lock for the same element."""
    lock = locks + tl.program_id(0)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(count, tl.load(count) + 1)
    tl.atomic_xchg(lock, 0)


@triton.jit
def pass_along(flags, values):
    """Each program waits for the one before it alone, and reads what the first one wrote."""
    me = tl.program_id(0)
    if me == 0:
        tl.store(values, 7)
    else:
        while tl.atomic_add(flags + me - 1, 0) == 0:
            pass
        tl.store(values, tl.load(values) + 1)
    tl.atomic_xchg(flags + me, 1)


@triton.jit
def last_one_sums(ticket, parts, total, WAITS: tl.constexpr):
    """Every program leaves a part; the one with the last ticket adds them up."""
    me = tl.program_id(0)
    before = tl.num_programs(0) - 1
    if WAITS:
        tl.store(parts + me, me + 1)
        own_ticket = tl.atomic_add(ticket, 1)
    else:
        own_ticket = tl.atomic_add(ticket, 1)
        tl.store(parts + me, me + 1)
    if own_ticket == before:
        lanes = tl.arange(0, 8)
        tl.store(total, tl.sum(tl.load(parts + lanes, mask=lanes <= before, other=0)))
