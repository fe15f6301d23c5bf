"""PTX while checks write it: lines, and registers that are numbered anew for each access."""

from __future__ import annotations


class CheckText:
    """Statements in front of one access."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.number_count = self.condition_count = 0

    def emit(self, *lines: str) -> None:
        self.lines += lines

    def compute(self, operation: str, *operands: int | str, guard: str = "") -> str:
        """Emit an operation of 64 bits, where a guard holds; return the register of its result."""
        self.number_count += 1
        result = f"%ufm{self.number_count - 1}"
        self.emit(f"{guard}{operation} {', '.join(map(str, (result, *operands)))};")
        return result

    def ask(self, operation: str, *operands: int | str) -> str:
        """Emit an operation whose result is a predicate."""
        self.condition_count += 1
        result = f"%ufp{self.condition_count - 1}"
        self.emit(f"{operation} {', '.join(map(str, (result, *operands)))};")
        return result

    def subtract(self, left: str, right: str) -> str:
        return self.compute("sub.s64", left, right)

    def clamp_to_zero(self, number: str) -> str:
        return self.compute("max.s64", number, 0)

    def is_at_least(self, left: str, right: str) -> str:
        return self.ask("setp.ge.u64", left, right)

    def both(self, first: str, second: str) -> str:
        return self.ask("and.pred", first, second)

    def either(self, first: str, second: str) -> str:
        return self.ask("or.pred", first, second)

    def negate(self, condition: str) -> str:
        return self.ask("not.pred", condition)

    def apply_guard(self, guard: str, condition: str) -> str:
        """Return the condition where a guard holds: "@%p1 ", "@!%p1 " or nothing."""
        word = guard.strip().removeprefix("@")
        if not word:
            return condition
        return self.both(condition, self.negate(word[1:]) if word.startswith("!") else word)
