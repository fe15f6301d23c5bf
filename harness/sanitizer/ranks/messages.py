"""What a rank and the host of its ranks tell each other, over one socket a rank.

Each message is its length and MessagePack. Example: rank 1's half of `dist.all_reduce(x)` is a Call
with the bytes of `x`; the HostAnswer has those of the sum, or the words of a report.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from enum import StrEnum

import msgspec

IN_ORDER, REVERSED = SUM_ORDERS = ("in-order", "reversed")  # of the parts of ranks
_LENGTH_BYTES = 8


class Collective(StrEnum):
    """What a rank calls: torch's name of it."""

    ALL_REDUCE = "all_reduce"
    REDUCE = "reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    GATHER = "gather"
    SCATTER = "scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    BARRIER = "barrier"
    SEND = "send"
    RECEIVE = "recv"


class TensorFacts(msgspec.Struct, array_like=True, frozen=True):
    dtype: str  # "float32"
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


class Call(msgspec.Struct, array_like=True, tag="call"):
    """One rank's part of a collective."""

    collective: Collective
    members: tuple[int, ...]  # of the group, in its order
    number: int  # of the groups with these members, in the order in which this rank made them
    label: str  # the group's name for people
    inputs: list[TensorFacts]
    outputs: list[TensorFacts]
    operation: str = ""  # "sum", of a reduction
    peer: int = -1  # the root, or the other end, as a rank of the world
    tag: int = 0
    stack: list[str] = []  # the program's lines, innermost first
    payload: list[bytes] = []  # of each input

    @property
    def group(self) -> tuple[tuple[int, ...], int]:
        return self.members, self.number


class Note(msgspec.Struct, array_like=True, tag="note"):
    """What a rank does outside of collectives."""

    is_preparing: bool = False  # it compiles what later runs find ready: no time of its own
    failure: str = ""  # it ends with this exception


class HostAnswer(msgspec.Struct, array_like=True, tag="answer"):
    payload: list[bytes] = []
    kind: str = ""  # the name of the violation, if the collective failed
    headline: str = ""
    details: tuple[str, ...] = ()


Message = Call | Note | HostAnswer


class Link:
    """One end of a rank's socket."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        data = msgspec.msgpack.encode(message)
        self._socket.sendall(len(data).to_bytes(_LENGTH_BYTES) + data)

    def receive(self) -> Message | None:
        """Wait for the next message; None if the other end is gone."""
        header = self._read(_LENGTH_BYTES)
        data = self._read(int.from_bytes(header)) if header else b""
        return msgspec.msgpack.decode(data, type=Message) if data else None

    def close(self) -> None:
        self._socket.close()

    def _read(self, count: int) -> bytes:
        """Read so many bytes, or none if the other end is gone."""
        data = bytearray(count)
        view, place = memoryview(data), 0
        while place < count:
            try:
                read = self._socket.recv_into(view[place:])
            except ConnectionError:
                return b""
            if not read:
                return b""
            place += read
        return bytes(data)


def make_links(count: int) -> tuple[Sequence[Link], Sequence[Link]]:
    """Make the host's ends of so many sockets, and the ranks' ends."""
    pairs = [socket.socketpair() for _ in range(count)]
    return [Link(ours) for ours, _ in pairs], [Link(theirs) for _, theirs in pairs]
