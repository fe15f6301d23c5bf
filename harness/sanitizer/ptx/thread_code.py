"""The code of one thread while it is being written: its values, and where it can be suspended.

Every value of the graph is a stack slot, from which LLVM makes registers. A thread that waits for
others stores its living values into its frame and returns; the next call goes on after that place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.sanitizer.ir.graph import IRValue, SourceLocation
from harness.sanitizer.ptx.abi import (
    FRAME_HEADER_FIELDS,
    FrameField,
    ThreadOutcome,
    WaitKind,
)
from harness.sanitizer.ptx.instructions import Instruction
from harness.sanitizer.ptx.llvm_code import PtxFunction
from harness.sanitizer.ptx.parser import bits_of_type
from harness.sanitizer.ptx.used_bytes import UsedBytes
from harness.sanitizer.violations.kinds import ViolationKind

LLVM_FLOATS = {"f16": "half", "f32": "float", "f64": "double", "bf16": "float"}


@dataclass(frozen=True, slots=True)
class PtxSite:
    """An instruction that a report can name."""

    source: SourceLocation
    label: str  # "read", "write", "update", or the instruction's name
    size: int = 0
    text: str = ""


class ThreadCode(PtxFunction):
    """The text of the function that runs one thread up to its next suspension."""

    def __init__(
        self,
        constants: dict[IRValue, int],
        header: str = "define i32 @thread(ptr %context, ptr %frame)",
    ) -> None:
        super().__init__(header)
        self._constants = constants
        self._slots: dict[tuple[IRValue, str], str] = {}
        self._places: dict[tuple[IRValue, str], int] = {}
        self.sites: list[PtxSite] = []
        self.resume_count = 0
        self.companions: dict[str, dict[IRValue, str]] = {}  # kind -> value -> LLVM type
        # What a value without a companion passes on to one that has it, if that is not 0.
        self.companion_defaults: dict[str, Callable[[IRValue, IRValue], str]] = {}
        self.used_bytes: UsedBytes | None = None
        self.call_arguments: dict[str, IRValue] = {}  # of the next call, by its parameters
        self.find_string: Callable[[IRValue | None], str] = lambda value: ""

    # Values

    def get(self, value: IRValue, bits: int, signed: bool = False) -> str:
        """Return a value as an integer of this many bits."""
        if value in self._constants:
            number = self._constants[value] & ((1 << bits) - 1)
            return "true" if bits == 1 and number else "false" if bits == 1 else str(number)
        own = value.type.bits
        name = self.load(f"i{own}", self._slot(value, f"i{own}"))
        return self.resize(name, own, bits, signed)

    def resize(self, name: str, own: int, bits: int, signed: bool = False) -> str:
        if own == bits:
            return name
        verb = "trunc" if bits < own else "sext" if signed else "zext"
        return self.let(f"{verb} i{own} {name} to i{bits}")

    def set(self, value: IRValue, name: str, bits: int, signed: bool = False) -> None:
        own = value.type.bits
        name = self.resize(name, bits, own, signed)
        self.store(f"i{own}", name, self._slot(value, f"i{own}"))

    def get_float(self, value: IRValue, kind: str) -> str:
        """Return a value as LLVM's float; bfloat16 widened to float32."""
        bits = self.get(value, bits_of_type(kind))
        return self.bits_to_float(bits, kind)

    def bits_to_float(self, bits: str, kind: str) -> str:
        if kind == "bf16":
            return self.let(f"call float @widen_bf16(i16 {bits})")
        return self.let(f"bitcast i{bits_of_type(kind)} {bits} to {LLVM_FLOATS[kind]}")

    def float_to_bits(self, name: str, kind: str) -> str:
        if kind == "bf16":
            return self.let(f"call i16 @narrow_bf16(float {name})")
        return self.let(f"bitcast {LLVM_FLOATS[kind]} {name} to i{bits_of_type(kind)}")

    def set_float(self, value: IRValue, name: str, kind: str) -> None:
        self.set(value, self.float_to_bits(name, kind), bits_of_type(kind))

    def constant_of(self, value: IRValue) -> int | None:
        return self._constants.get(value)

    def split_halves(self, value: str, bits: int = 16) -> list[str]:
        """Split an integer into two of `bits` each, the lower half first."""
        moved = (self.let(f"lshr i{2 * bits} {value}, {bits * place}") for place in (0, 1))
        return [self.resize(half, 2 * bits, bits) for half in moved]

    def join_halves(self, halves: Sequence[str], bits: int = 16) -> str:
        """Return the integer of two halves, the lower one first."""
        low, high = (self.resize(half, bits, 2 * bits) for half in halves)
        return self.let(f"or i{2 * bits} {low}, {self.let(f'shl i{2 * bits} {high}, {bits}')}")

    def _slot(self, value: IRValue, kind: str, of: str = "") -> str:
        key = value, of
        if key not in self._slots:
            name = f"%v{value.number}{of}"
            self._allocas.append(f"  {name} = alloca {kind}")
            self._slots[key] = name
        return self._slots[key]

    # Companions, values beside a value's bits; `of` is "r" for its region, "t", "w" and "o" for
    # overflow (`overflow_ops`), "u" for uninitialized words (`uninitialized_words`)

    def get_companion(self, value: IRValue, of: str) -> str:
        kind = self.companions.get(of, {}).get(value)
        if kind is None or value in self._constants:
            return "0"
        return self.load(kind, self._slot(value, kind, of))

    def set_companion(self, value: IRValue, of: str, name: str) -> None:
        kind = self.companions.get(of, {}).get(value)
        if kind is not None:
            self.store(kind, name, self._slot(value, kind, of))

    def has_companion(self, value: IRValue, of: str) -> bool:
        return value in self.companions.get(of, {})

    def join_companions(self, values: Sequence[IRValue], of: str) -> str:
        """Return the bits that the companions of some values have set."""
        joined = "0"
        for value in values:
            if self.has_companion(value, of):
                joined = self.let(f"or i32 {joined}, {self.get_companion(value, of)}")
        return joined

    def copy_values(self, sources: Sequence[IRValue], targets: Sequence[IRValue]) -> None:
        """Assign all targets at once: a source may be a target."""
        loaded = []
        for source, target in zip(sources, targets, strict=True):
            loaded.append((target, "", self.get(source, target.type.bits)))
            for of, values in self.companions.items():
                if target in values and (source in values or of not in self.companion_defaults):
                    loaded.append((target, of, self.get_companion(source, of)))
                elif target in values:
                    loaded.append((target, of, self.companion_defaults[of](source, target)))
        for target, of, name in loaded:
            if of:
                self.set_companion(target, of, name)
            else:
                self.set(target, name, target.type.bits)

    # The frame

    @property
    def frame_fields(self) -> int:
        return FRAME_HEADER_FIELDS + len(self._places)

    def _saved_slots(self, living: Sequence[IRValue]) -> list[tuple[str, str, int]]:
        saved = []
        for value in living:
            kinds = [("", f"i{value.type.bits}")]
            kinds += [
                (of, values[value]) for of, values in self.companions.items() if value in values
            ]
            for of, kind in kinds:
                key = value, of
                place = self._places.setdefault(key, FRAME_HEADER_FIELDS + len(self._places))
                saved.append((self._slot(value, kind, of), kind, place))
        return saved

    def suspend(
        self, living: Sequence[IRValue], kind: WaitKind, site: int, mask: str = "0"
    ) -> None:
        """Return to the scheduler; the code that follows runs when the wait is over."""
        self.set_frame(FrameField.KIND, str(int(kind)))
        self.set_frame(FrameField.SITE, str(site))
        self.set_frame(FrameField.MASK, mask)
        self.resume_count += 1
        saved = self._saved_slots(living)
        for slot, llvm_type, place in saved:
            self.store(llvm_type, self.load(llvm_type, slot), self._frame_place(place))
        self.set_frame(FrameField.RESUME, str(self.resume_count))
        self.emit(f"ret i32 {ThreadOutcome.SUSPENDED}")
        self.start_block(f"resume{self.resume_count}")
        for slot, llvm_type, place in saved:
            self.store(llvm_type, self.load(llvm_type, self._frame_place(place)), slot)

    def _frame_place(self, place: int) -> str:
        return self.element_pointer("%frame", "i64", place)

    def set_payload(self, words: Sequence[str], kind: str = "i32") -> None:
        """Set the words that the other lanes, or the scheduler, get."""
        self.set_frame(FrameField.WORDS, str(len(words)))
        base = self.element_pointer("%frame", "i64", FrameField.PAYLOAD)
        for place, word in enumerate(words):
            self.store_element(kind, word, base, place)

    # Reports

    def add_site(self, site: PtxSite) -> int:
        self.sites.append(site)
        return len(self.sites) - 1

    def add_wait_site(self, instruction: Instruction) -> int:
        """Add an instruction at which threads may wait in vain."""
        return self.add_site(PtxSite(instruction.operation.source, instruction.name))

    def report(self, kind: ViolationKind, site: int, other: str = "0") -> None:
        """Report a violation at a site and end the launch."""
        self.fill_report(kind, site, other=other)
        self.return_violated()

    def return_violated(self) -> None:
        self.emit(f"ret i32 {ThreadOutcome.VIOLATED}")

    def return_if_violated(self, call: str) -> None:
        violated = self.let(call)
        with self.when(self.let(f"icmp ne i32 {violated}, 0"), exits=True):
            self.return_violated()
