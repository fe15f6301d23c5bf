"""The parser of a call, which reports errors with the usage of the called command."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from harness.core.errors import CommandLineError
from harness.core.wording import find_nearest_word

# pytest's common options, by whether they take a value.
PYTEST_OPTIONS = {
    **dict.fromkeys("-x -s -v -vv -q --lf --ff --sw --pdb --co --collect-only".split(), False),
    **dict.fromkeys("-m -p -c -o -W -r -n --maxfail --tb --durations --rootdir".split(), True),
    **dict.fromkeys("--confcutdir --deselect --ignore --capture --color --log-level".split(), True),
}

# Words for a device that look like another one's.
_MEANT_DEVICES = {"gpu": "cuda", "card": "cuda", "nvidia": "cuda"}


class CommandParser(argparse.ArgumentParser):
    """A command's parser; `passthrough_owner` is the program that gets the words behind `--`."""

    passthrough_owner = ""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.register("type", Path, parse_path)

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"invalid (?:int|float) value: ('.*')", r"\1 is not a number", message)
        if message.endswith("required: COMMAND"):
            message = f"the command is missing; `{self.prog} --help` lists the commands"
        raise CommandLineError(message, self.format_short_usage())

    def format_short_usage(self) -> str:
        if self.usage:
            return f"usage: {self.usage}"
        positional = [action for action in self._actions if not action.option_strings]
        words = [self.prog, *map(self._format_positional, positional), "[OPTIONS]"]
        return f"usage: {' '.join(words)}" + (" [-- COMMAND …]" if self.passthrough_owner else "")

    def _format_positional(self, action: argparse.Action) -> str:
        word = action.metavar if isinstance(action.metavar, str) else action.dest
        forms = {"?": "[{}]", "*": "[{} …]", "+": "{} …"}
        return forms.get(str(action.nargs), "{}").format(word)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(args or [])
        if self.passthrough_owner == "pytest":
            self._refuse_pytest_options(words)
        parsed, unknown = super().parse_known_args(words, namespace)
        if self._subparsers is None:
            parsed.usage = self.format_short_usage()
            self._refuse_empty_words(unknown)
            if unknown and not self._take_trailing_words(parsed, unknown):
                self._refuse_unknown_words(words, unknown)
            return parsed, []
        return parsed, unknown

    def _take_trailing_words(self, parsed: argparse.Namespace, unknown_words: list[str]) -> bool:
        """Add words after an option to the same list as the words before it."""
        list_action = next((a for a in self._actions if a.nargs in ("*", "+")), None)
        if list_action is None or list_action.option_strings:
            return False
        if any(word.startswith("-") for word in unknown_words):
            return False
        setattr(parsed, list_action.dest, [*getattr(parsed, list_action.dest), *unknown_words])
        return True

    def _refuse_pytest_options(self, words: list[str]) -> None:
        own_words, passthrough = [], []
        rest = iter(words)
        for word in rest:
            name, equals, _ = word.partition("=")
            if name in self._option_string_actions or name not in PYTEST_OPTIONS:
                own_words.append(word)
                continue
            passthrough.append(word)
            if PYTEST_OPTIONS[name] and not equals:
                passthrough += [value for value in [next(rest, None)] if value is not None]
        if passthrough:
            self._refuse_misplaced_words(passthrough[0], own_words, passthrough)

    def _refuse_unknown_words(self, words: list[str], unknown_words: list[str]) -> NoReturn:
        first = unknown_words[0]
        near = self._find_similar_option(first)
        if first.startswith("-") and near:
            self.error(f"there is no option {first}; near it: {near}")
        if self.passthrough_owner:
            # The rest of the line belongs to it, since the word may take values.
            start = words.index(first)
            self._refuse_misplaced_words(first, words[:start], words[start:])
        if first.startswith("-"):
            self.error(f"there is no option {first}; `{self.prog} --help` lists the options")
        self.error(f"'{first}' is one word more than `{self.prog}` takes")

    def _refuse_misplaced_words(
        self, first: str, own_words: list[str], passthrough_words: list[str]
    ) -> NoReturn:
        owner = self.passthrough_owner
        owner = "the command to run" if owner == "COMMAND" else owner
        call = shlex.join([*self.prog.split(), *own_words])
        self.error(
            f"`{self.prog}` has no option {first}; options for {owner} go behind `--`: "
            f"{call} -- {shlex.join(passthrough_words)}"
        )

    def _find_similar_option(self, word: str) -> str:
        own = [name for name in self._option_string_actions if name.startswith("--")]
        return find_nearest_word(word.partition("=")[0], own, 0.75)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        values = super()._get_values(action, arg_strings)
        if action.nargs != argparse.PARSER:  # the words of a command are refused by its own parser
            self._refuse_empty_words(arg_strings, f"argument {argparse._get_action_name(action)}: ")
        return values

    def _refuse_empty_words(self, words: Iterable[str], argument: str = "") -> None:
        """Refuse a word that names nothing: an unset variable must not mean everything."""
        empty = next((word for word in words if not word.strip(" ,")), None)
        if empty is not None:
            self.error(f"{argument}'{empty}' names nothing; is a variable unset?")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if "--release" in action.option_strings and not value.strip(" ,"):
            message = (
                f"'{value}' names no release: say a version (0.5.23), a checkout (~/sglang) or "
                "current; `unfix releases list` shows them"
            )
            raise argparse.ArgumentError(action, message)
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            meant = _MEANT_DEVICES.get(str(value), "")
            near = meant if meant in choices else find_nearest_word(str(value), choices)
            hint = f"did you mean {near}? There are" if near else "there are"
            message = f"invalid choice: '{value}'; {hint} {', '.join(choices)}"
            raise argparse.ArgumentError(action, message)


def parse_path(word: str) -> Path:
    """Return a word as a path; an empty one, of an unset variable, would be the current folder."""
    if not word.strip():
        raise argparse.ArgumentTypeError(f"'{word}' names no file or folder; '.' is this one")
    return Path(word)
