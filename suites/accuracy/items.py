"""Questions with one exact answer, drawn from a seed, for the models in fixtures/models.

A text is made of characters only, and no two characters stand side by side in it twice. So what
comes next is settled by the two characters before it, and a model of two layers can be exact: a
wrong answer speaks of the engine, not of the model.

What a text may be used for is settled by its checksum (see SIDES): no text of an evaluation can
have been seen in training, whatever the seeds.

`long` is for the kernels of prefill, not for the trained models: its texts are too long to know.

lm-eval calls the functions named as the tasks with its metadata; see `recall.yaml` beside this
file.
"""

from __future__ import annotations

import os
import string
import zlib
from random import Random

TASKS = ("recall", "copying", "needle", "shared")
# The remainders, modulo 4, that a text's checksum may have on each side.
SIDES = {"eval": (0,), "check": (1,), "train": (2, 3)}
LETTERS = string.ascii_lowercase
CHARACTERS = LETTERS + string.digits
NOISE = CHARACTERS + " .,"
GROUP = 4
LONGEST_PROMPT = 256  # of TASKS: what a model is trained with


class Stuck(Exception):
    """No character is left that would make a new pair of neighbours."""


class Text:
    """A text that grows without repeating two neighbours."""

    def __init__(self, draw: Random) -> None:
        self.draw, self.text, self.pairs = draw, "", set()

    def put(self, characters: str) -> None:
        for character in characters:
            if self.text:
                self.pairs.add(self.text[-1] + character)
            self.text += character

    def grow(self, alphabet: str, count: int, follow: str = "") -> str:
        """Adds `count` new characters; the last one must also be new before `follow`."""
        start = len(self.text)
        for left in reversed(range(count)):
            before = self.text[-1:]
            for _ in range(200):
                character = self.draw.choice(alphabet)
                known = before + character in self.pairs
                if not known and (left or not follow or character + follow not in self.pairs):
                    break
            else:
                raise Stuck
            self.put(character)
        return self.text[start:]

    def pair(self) -> tuple[str, str]:
        """Adds `key=value;` and returns the question for it and its answer."""
        key = self.grow(LETTERS, 2, "=")
        self.put("=")
        value = self.grow(CHARACTERS, self.draw.randint(4, 6), ";")
        self.put(";")
        return f"?{key}=", f"{value};"


Questions = list[tuple[str, str]]


def draw_pairs(draw: Random, fewest: int, most: int) -> tuple[str, Questions]:
    text = Text(draw)
    questions = [text.pair() for _ in range(draw.randint(fewest, most))]
    draw.shuffle(questions)
    return text.text, questions


def draw_recall(draw: Random, size: float, pairs: int) -> tuple[str, Questions]:
    del pairs
    return draw_pairs(draw, max(2, round(6 * size)), max(3, round(12 * size)))


def draw_shared(draw: Random, size: float, pairs: int) -> tuple[str, Questions]:
    del pairs
    count = max(4, round(11 * size))
    return draw_pairs(draw, count, count)


def draw_copying(draw: Random, size: float, pairs: int) -> tuple[str, Questions]:
    del pairs
    text = Text(draw)
    text.put("<")
    copied = text.grow(CHARACTERS, draw.randint(max(3, round(12 * size)), max(5, round(20 * size))))
    return "", [(f"<{copied}|", f"{copied}>")]


def draw_needle(draw: Random, size: float, pairs: int) -> tuple[str, Questions]:
    """A pair (or several) early in noise, so far back that no short window holds it."""
    text = Text(draw)
    length = round(draw.randint(120, 220) * size)
    text.grow(CHARACTERS, 1)
    questions = []
    for _ in range(pairs):
        text.grow(NOISE, draw.randint(1, max(2, round(30 * size))))
        text.put(";")
        questions.append(text.pair())
    text.grow(NOISE, max(1, length - len(text.text)))
    draw.shuffle(questions)
    return text.text, questions


def draw_long(draw: Random, size: float, pairs: int) -> tuple[str, Questions]:
    """A pair near the beginning of more than any chunk's usual share of letters."""
    del pairs
    pair = Text(draw)
    question = pair.pair()
    before = "".join(draw.choices(LETTERS, k=100))
    after = "".join(draw.choices(LETTERS, k=round(draw.randint(12_000, 13_000) * size)))
    return f"{before};{pair.text}{after}", [question]


DRAWN = {
    "recall": draw_recall,
    "copying": draw_copying,
    "needle": draw_needle,
    "shared": draw_shared,
    "long": draw_long,
}


def drawn(task: str, draw: Random, side: str, size: float = 1.0, pairs: int = 1):
    """A context and its questions with their answers, of texts that may be used for `side`."""
    while True:
        try:
            context, questions = DRAWN[task](draw, size, pairs)
        except Stuck:
            continue
        if zlib.crc32((context or questions[0][0]).encode()) % 4 in SIDES[side]:
            return context, questions


def items(task: str, seed: int | str, count: int, side: str = "eval") -> list[dict]:
    """`count` items: `prompt`, `answer` (with its end character) and `group`.

    Items of one group have the same beginning; all but those of `shared` are alone in theirs.
    """
    draw = Random(f"unfix/{side}/{task}/{seed}")
    found: list[dict] = []
    group = 0
    while len(found) < count:
        context, questions = drawn(task, draw, side)
        for question, answer in questions[: GROUP if task == "shared" else 1]:
            found.append({"prompt": context + question, "answer": answer, "group": group})
        group += 1
    return found[:count]


def documents(task: str, settings: dict) -> dict:
    """What lm-eval asks for: the seed and count from its metadata, else from the environment."""
    from datasets import Dataset  # lm-eval needs it anyway; the rest of this module does not

    seed = settings.get("seed", os.environ.get("UNFIX_EVAL_SEED", "0"))
    count = settings.get("items", os.environ.get("UNFIX_EVAL_ITEMS", "100"))
    return {"test": Dataset.from_list(items(task, seed, int(count)))}


def recall(**settings) -> dict:
    return documents("recall", settings)


def copying(**settings) -> dict:
    return documents("copying", settings)


def needle(**settings) -> dict:
    return documents("needle", settings)


def shared(**settings) -> dict:
    return documents("shared", settings)


def long(**settings) -> dict:
    return documents("long", settings)
