"""Memory that an access was meant for, and where an address lies in it or outside of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NamedMemory:
    """A tensor's bytes from its first element to its last; without a dtype, bytes with a name."""

    name: str
    start: int
    end: int
    itemsize: int = 1
    shape: tuple[int, ...] = ()
    dtype: str = ""  # as torch calls it: 'bfloat16'

    def __str__(self) -> str:
        return f"{self.name} ({self.dtype} {list(self.shape)})" if self.dtype else self.name

    def contains(self, address: int) -> bool:
        return self.start <= address < self.end

    def index_of(self, address: int) -> int:
        return (address - self.start) // self.itemsize

    def describe_element(self, address: int) -> str:
        word = "index" if self.dtype else "byte"
        return f"{self.name}, {word} {self.index_of(address)}"

    def describe_outside(self, address: int, size: int) -> str:
        """Say where an access lies that leaves the memory."""
        if address >= self.start:
            position = f"{address + size - self.end} bytes past the end of {self.name}"
        else:
            position = f"{self.start - address} bytes before the start of {self.name}"
        if not self.dtype:
            first = address - self.start
            return f"{position} (bytes {first}..{first + size} of {self.end - self.start})"
        kind = f"{self.dtype} {list(self.shape)}"
        return f"{position} (its index {self.index_of(address)}, and it is {kind})"


def name_element(name: str, element: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> str:
    """Name an element of a tensor by its index, from its distance to the first element."""
    index = [0] * len(shape)
    for axis in sorted(range(len(shape)), key=lambda axis: -strides[axis]):
        if strides[axis]:
            index[axis], element = divmod(element, strides[axis])
    return f"{name}{index}"


IN_OWN_STORAGE = (
    "still inside the storage that this tensor is a view of, which is larger: "
    "`bounds=storage` allows it"
)


def describe_unknown(address: int) -> str:
    return f"address {address:#x}, in no tensor that this launch was given"


def describe_inside(name: str, offset: int) -> str:
    return f"that address is in {name}, {offset} bytes into it"
