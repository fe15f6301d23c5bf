"""One of every form of code that a toggle may be about."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

LIMIT = 100
PLATFORM = "cpu"


def logged(function):
    @functools.wraps(function)
    def wrapper(*arguments):
        return ("logged", function(*arguments))

    return wrapper


def hidden(function):
    # No functools.wraps: the function is out of sight, in a closure.
    def wrapper(*arguments):
        return ("hidden", function(*arguments))

    return wrapper


def plain(rows: int, topk: int) -> int:
    """Keeps its docstring."""
    doubled = topk * 2
    return rows * doubled


@logged
def decorated(value):
    return value + 1


@hidden
@hidden
def concealed(value):
    return value + 10


@functools.lru_cache(maxsize=None)
def cached(value):
    return value + 20


def outer(step):
    def inner(value):
        return value + step

    return inner


def with_default(value, extra=7, *, scale=1):
    return (value + extra) * scale


def below_limit(value):
    return value < LIMIT


class Base:
    def size(self):
        return 1


class Forms(Base):
    width = 8
    height = 3

    def method(self, rows):
        return rows * self.width

    @staticmethod
    def static(value):
        return value - 1

    @classmethod
    def of_class(cls, value):
        return (cls.__name__, value - 2)

    @property
    def area(self):
        return self.width * self.height

    @area.setter
    def area(self, value):
        self.height = value // self.width

    @functools.cached_property
    def once(self):
        return self.width + 1000

    def size(self):
        return super().size() + 1

    def generate(self, count):
        for number in range(count):
            yield number * 2


@dataclass
class Settings:
    name: str
    pages: int = 16
    tags: list[str] = field(default_factory=list)


if PLATFORM == "cpu":

    def either():
        return "high branch"

else:

    def either():
        return "low branch"
