"""Reading a call: what cannot be read is told under the usage of the command that was called."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterable
from typing import Any, NoReturn

from harness.core.errors import CommandLineError

# Options of pytest that people type, by whether the next word is their value.
PYTEST_OPTIONS = {
    **dict.fromkeys("-x -s -v -vv -q --lf --ff --sw --pdb --co --collect-only".split(), False),
    **dict.fromkeys("-m -p -c -o -W -r -n --maxfail --tb --durations --rootdir".split(), True),
    **dict.fromkeys("--confcutdir --deselect --ignore --capture --color --log-level".split(), True),
}


class CommandParser(argparse.ArgumentParser):
    """A command or sub-command; `behind` says whose words those behind `--` are."""

    passthrough_owner = ""

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"invalid (?:int|float) value: ('.*')", r"\1 is no number", message)
        if message.endswith("required: COMMAND"):
            message = f"a command is wanted; `{self.prog} --help` says what each does"
        raise CommandLineError(message, self.format_short_usage())

    def format_short_usage(self) -> str:
        if self.usage:
            return f"usage: {self.usage}"
        placed = [action for action in self._actions if not action.option_strings]
        words = [self.prog, *(self._format_positional(action) for action in placed), "[OPTIONS]"]
        return f"usage: {' '.join(words)}" + (" [-- COMMAND …]" if self.passthrough_owner else "")

    def _format_positional(self, action: argparse.Action) -> str:
        word = action.metavar if isinstance(action.metavar, str) else action.dest
        forms = {"?": "[{}]", "*": "[{} …]", "+": "{} …"}
        return forms.get(str(action.nargs), "{}").format(word)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(args or [])
        if self.passthrough_owner == "pytest":
            self._refuse_pytest_options(words)
        found, strange = super().parse_known_args(words, namespace)
        if self._subparsers is None:
            found.usage = self.format_short_usage()
            if strange and not self._take_trailing_words(found, strange):
                self._refuse_unknown_words(words, strange)
            return found, []
        return found, strange

    def _take_trailing_words(self, parsed: argparse.Namespace, unknown_words: list[str]) -> bool:
        """Words that came behind an option, of the kind that also came before it."""
        listed = next((a for a in self._actions if a.nargs in ("*", "+")), None)
        loose = not any(word.startswith("-") for word in unknown_words)
        if listed is None or listed.option_strings or not loose:
            return False
        setattr(parsed, listed.dest, [*getattr(parsed, listed.dest), *unknown_words])
        return True

    def _refuse_pytest_options(self, words: list[str]) -> None:
        own, theirs = [], []
        rest = iter(words)
        for word in rest:
            name, equals, _ = word.partition("=")
            known = name in self._option_string_actions
            if known or name not in PYTEST_OPTIONS:
                own.append(word)
                continue
            theirs.append(word)
            if PYTEST_OPTIONS[name] and not equals:
                theirs.extend(value for value in [next(rest, None)] if value is not None)
        if theirs:
            self._refuse_misplaced_words(theirs[0], own, theirs)

    def _refuse_unknown_words(self, words: list[str], unknown_words: list[str]) -> NoReturn:
        first = unknown_words[0]
        near = self._find_similar_option(first)
        if first.startswith("-") and near:
            self.error(f"there is no option {first}; near it: {near}")
        if self.passthrough_owner:
            # All from there on is theirs, its values included.
            cut = words.index(first)
            self._refuse_misplaced_words(first, words[:cut], words[cut:])
        if first.startswith("-"):
            self.error(f"there is no option {first}; `{self.prog} --help` names those there are")
        self.error(f"'{first}' is one word more than `{self.prog}` takes")

    def _refuse_misplaced_words(
        self, first: str, own_words: list[str], passthrough_words: list[str]
    ) -> NoReturn:
        whose = {"pytest": "pytest", "SGLang": "SGLang"}.get(
            self.passthrough_owner, "the command to run"
        )
        call = shlex.join([*self.prog.split(), *own_words])
        self.error(
            f"{first} is no word of `{self.prog}`; what is for {whose} goes behind `--`: "
            f"{call} -- {shlex.join(passthrough_words)}"
        )

    def _find_similar_option(self, word: str) -> str:
        own = [name for name in self._option_string_actions if name.startswith("--")]
        return find_nearest_word(word.partition("=")[0], own, 0.75)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            near = find_nearest_word(str(value), choices)
            hint = f"did you mean {near}? There are" if near else "there are"
            said = f"invalid choice: '{value}'; {hint} {', '.join(choices)}"
            raise argparse.ArgumentError(action, said)


def find_nearest_word(word: str, candidates: Iterable[str], cutoff: float = 0.6) -> str:
    import difflib

    return "".join(difflib.get_close_matches(word, candidates, n=1, cutoff=cutoff))
