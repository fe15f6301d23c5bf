"""Reading a call: what cannot be read is told under the usage of the command that was called."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterable
from typing import Any, NoReturn

from harness.errors import WrongCall

# Options of pytest that people type, by whether the next word is their value.
PYTESTS = {
    **dict.fromkeys("-x -s -v -vv -q --lf --ff --sw --pdb --co --collect-only".split(), False),
    **dict.fromkeys("-m -p -c -o -W -r -n --maxfail --tb --durations --rootdir".split(), True),
    **dict.fromkeys("--confcutdir --deselect --ignore --capture --color --log-level".split(), True),
}


class Parser(argparse.ArgumentParser):
    """A command or sub-command; `behind` says whose words those behind `--` are."""

    behind = ""

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"invalid (?:int|float) value: ('.*')", r"\1 is no number", message)
        if message.endswith("required: COMMAND"):
            message = f"a command is wanted; `{self.prog} --help` says what each does"
        raise WrongCall(message, self.short_usage())

    def short_usage(self) -> str:
        if self.usage:
            return f"usage: {self.usage}"
        placed = [action for action in self._actions if not action.option_strings]
        words = [self.prog, *(self._word(action) for action in placed), "[OPTIONS]"]
        return f"usage: {' '.join(words)}" + (" [-- COMMAND …]" if self.behind else "")

    def _word(self, action: argparse.Action) -> str:
        word = action.metavar if isinstance(action.metavar, str) else action.dest
        forms = {"?": "[{}]", "*": "[{} …]", "+": "{} …"}
        return forms.get(str(action.nargs), "{}").format(word)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(args or [])
        if self.behind == "pytest":
            self._refuse_pytests(words)
        found, strange = super().parse_known_args(words, namespace)
        if self._subparsers is None:
            found.usage = self.short_usage()
            if strange and not self._further(found, strange):
                self._refuse(words, strange)
            return found, []
        return found, strange

    def _further(self, found: argparse.Namespace, strange: list[str]) -> bool:
        """Words that came behind an option, of the kind that also came before it."""
        listed = next((a for a in self._actions if a.nargs in ("*", "+")), None)
        loose = not any(word.startswith("-") for word in strange)
        if listed is None or listed.option_strings or not loose:
            return False
        setattr(found, listed.dest, [*getattr(found, listed.dest), *strange])
        return True

    def _refuse_pytests(self, words: list[str]) -> None:
        own, theirs = [], []
        rest = iter(words)
        for word in rest:
            name, equals, _ = word.partition("=")
            known = name in self._option_string_actions
            if known or name not in PYTESTS:
                own.append(word)
                continue
            theirs.append(word)
            if PYTESTS[name] and not equals:
                theirs.extend(value for value in [next(rest, None)] if value is not None)
        if theirs:
            self._say_behind(theirs[0], own, theirs)

    def _refuse(self, words: list[str], strange: list[str]) -> NoReturn:
        first = strange[0]
        near = self._near(first)
        if first.startswith("-") and near:
            self.error(f"there is no option {first}; near it: {near}")
        if self.behind:
            # All from there on is theirs, its values included.
            cut = words.index(first)
            self._say_behind(first, words[:cut], words[cut:])
        if first.startswith("-"):
            self.error(f"there is no option {first}; `{self.prog} --help` names those there are")
        self.error(f"'{first}' is one word more than `{self.prog}` takes")

    def _say_behind(self, first: str, own: list[str], theirs: list[str]) -> NoReturn:
        whose = {"pytest": "pytest", "SGLang": "SGLang"}.get(self.behind, "the command to run")
        call = shlex.join([*self.prog.split(), *own])
        self.error(
            f"{first} is no word of `{self.prog}`; what is for {whose} goes behind `--`: "
            f"{call} -- {shlex.join(theirs)}"
        )

    def _near(self, word: str) -> str:
        own = [name for name in self._option_string_actions if name.startswith("--")]
        return nearest(word.partition("=")[0], own, 0.75)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            near = nearest(str(value), choices)
            hint = f"did you mean {near}? There are" if near else "there are"
            said = f"invalid choice: '{value}'; {hint} {', '.join(choices)}"
            raise argparse.ArgumentError(action, said)


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    import difflib

    return "".join(difflib.get_close_matches(word, known, n=1, cutoff=cutoff))
