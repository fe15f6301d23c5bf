"""Confine the writes of a process and its descendants to some folders, through Linux's Landlock.

A confined process reads everything and writes only below the given folders. Elsewhere a write ends
in PermissionError. Neither privileges nor a container are needed; there is no way back.

Example: after `confine_writes([Path("/tmp/a")])`, `open("/root/x", "w")` raises PermissionError.

Shared memory has a name in `/dev/shm` or a System V key, and both outlive their process. Namespaces
give a process shared memory of its own, empty at first, and let it see a folder at another place,
where the system lets it make them. Example: processes that each call `bind_folder` with a folder of
their own, `/tmp/a/1` or `/tmp/a/2`, and with `/tmp/a/run`, all write below `/tmp/a/run`, and none
meets the files of another one.
"""

from __future__ import annotations

import ctypes
import os
import platform
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from harness.core import child_process

SHARED_MEMORY = Path("/dev/shm")

# The numbers are the same on all architectures.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ABI_REQUEST = 1 << 0  # LANDLOCK_CREATE_RULESET_VERSION
_RULE_PATH_BENEATH = 1
_SET_NO_NEW_PRIVILEGES = 38  # of prctl
# Before it, no file can move to another folder, not even inside a writable one.
_FIRST_ABI_WITH_MOVES = 2
# Write a file; remove a folder, a file; make a device, folder, file, socket, pipe, link.
_WRITES = (1 << 1) | sum(1 << bit for bit in range(4, 13))
_MOVE, _TRUNCATE, _FIRST_ABI_WITH_TRUNCATE = 1 << 13, 1 << 14, 3
_OF_FILES = (1 << 1) | _TRUNCATE

# Of unshare(2): mounts, System V memory and message queues, users.
_NEW_MOUNTS, _NEW_IPC, _NEW_USERS = 0x20000, 0x8000000, 0x10000000
# Of mount(2): no set-user-ID, no devices; a folder; all mounts below, seen by nobody else.
_WITHOUT_PRIVILEGES, _BIND, _RECURSIVE, _PRIVATE = 2 | 4, 1 << 12, 1 << 14, 1 << 18


class _Ruleset(ctypes.Structure):
    _fields_ = (("handled_access_fs", ctypes.c_uint64),)


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def can_confine() -> bool:
    """Return whether the kernel can confine the writes of this process."""
    if platform.system() != "Linux":
        return False
    return _call_kernel(_CREATE_RULESET, None, 0, _ABI_REQUEST) >= _FIRST_ABI_WITH_MOVES


def confine_writes(writable_paths: Iterable[Path]) -> None:
    """Confine this process, its threads to come and its descendants; those to be exist."""
    abi = _call_kernel(_CREATE_RULESET, None, 0, _ABI_REQUEST)
    handled = _WRITES | _MOVE | (_TRUNCATE if abi >= _FIRST_ABI_WITH_TRUNCATE else 0)
    ruleset = _Ruleset(handled)
    ruleset_fd = _check_result(
        _call_kernel(_CREATE_RULESET, ctypes.byref(ruleset), ctypes.sizeof(ruleset), 0), "a ruleset"
    )
    try:
        for path in writable_paths:
            path_fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                allowed = handled if path.is_dir() else handled & _OF_FILES
                rule = _PathRule(allowed, path_fd)
                added = _call_kernel(
                    _ADD_RULE, ruleset_fd, _RULE_PATH_BENEATH, ctypes.byref(rule), 0
                )
                _check_result(added, str(path))
            finally:
                os.close(path_fd)
        libc = ctypes.CDLL(None, use_errno=True)
        _check_result(libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "no new privileges")
        _check_result(_call_kernel(_RESTRICT_SELF, ruleset_fd, 0), "the confinement")
    finally:
        os.close(ruleset_fd)


@cache
def can_make_namespaces() -> bool:
    """Return whether a process can have shared memory and a place for a folder of its own."""
    if platform.system() != "Linux" or not SHARED_MEMORY.is_dir():
        return False

    def try_isolation() -> bool:
        try:
            isolate_shared_memory()
            # In memory of its own, so that nothing is left.
            folder, place = (Path(tempfile.mkdtemp(dir=SHARED_MEMORY)) for _ in range(2))
            bind_folder(folder, place)
            isolate_shared_memory()  # as a test does, below its supervisor
        except OSError:
            return False
        return True

    return bool(child_process.call_in_fork(try_isolation))


def isolate_shared_memory() -> None:
    """Give this process and its descendants shared memory of their own; it has one thread."""
    _enter_namespaces(_NEW_MOUNTS | _NEW_IPC)
    _mount_folder(b"tmpfs", SHARED_MEMORY, b"tmpfs", _WITHOUT_PRIVILEGES, b"mode=1777")


def bind_folder(folder: Path, place: Path) -> None:
    """Show a folder at a place to this process and its descendants alone; it has one thread."""
    _enter_namespaces(_NEW_MOUNTS)
    _mount_folder(os.fsencode(folder), place, None, _BIND | _RECURSIVE, None)


def _enter_namespaces(kinds: int) -> None:
    """Enter new namespaces, one of mounts among them, whose mounts no other process sees."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(kinds) != 0:  # it needs a privilege, or a namespace of users
        _check_result(libc.unshare(kinds | _NEW_USERS), "new namespaces")
        for name, entry in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            Path(f"/proc/self/{name}").write_text(entry)
    _check_result(libc.mount(None, b"/", None, _RECURSIVE | _PRIVATE, None), "private mounts")


def _mount_folder(
    source: bytes, place: Path, kind: bytes | None, flags: int, options: bytes | None
) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    _check_result(libc.mount(source, os.fsencode(place), kind, flags, options), str(place))


def _call_kernel(number: int, *arguments: object) -> int:
    return int(ctypes.CDLL(None, use_errno=True).syscall(number, *arguments))


def _check_result(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"the kernel refuses {what}: {os.strerror(number)}")
    return result
