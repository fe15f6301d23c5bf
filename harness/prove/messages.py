"""What a run and its workers say to each other, a line of JSON each."""

from __future__ import annotations

import msgspec

from harness.store.records import Side

Key = tuple[str, str, str]  # toggle, guard, side


class Task(msgspec.Struct, omit_defaults=True):
    """One side of one cell, as collected."""

    number: int  # this worker's own
    guard: str
    toggle: str
    side: str
    state: str
    problem: str = ""  # of a stale toggle
    na: str = ""  # why it cannot apply, known before it runs

    @property
    def key(self) -> Key:
        return self.toggle, self.guard, self.side


class Collected(msgspec.Struct, tag=True, omit_defaults=True):
    """A worker is ready: SGLang is imported and the guards are known."""

    tasks: list[Task]
    seconds: float
    device: str
    forks: bool  # whether it runs several at a time, each in a fork
    release: str = ""
    problems: list[str] = []


class Ended(msgspec.Struct, tag=True):
    number: int
    side: Side
    lost: bool = False  # the worker cannot go on: its device is lost


class Failed(msgspec.Struct, tag=True):
    """The worker could not even begin."""

    problem: str


Said = Collected | Ended | Failed


class Order(msgspec.Struct):
    """Run one task."""

    number: int
    serial: int  # of this order: a second chance has another
    seconds: float  # its time limit
    memory: int  # its memory limit in bytes


class Setting(msgspec.Struct):
    """What a worker is told when it starts."""

    release: str  # as it was asked for
    words: list[str]  # pytest's arguments
    sides: list[str]
    toggles: list[str]  # the ids of those asked for; empty: all
    folder: str  # where its processes leave what they found
    device: str
