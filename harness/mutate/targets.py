"""Which functions get faults: words of the command line, as targets on one release."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable, Iterator

from harness.errors import UnfixError
from harness.mutate.code import FunctionCode, ModuleCode, dotted
from harness.mutate.vocabulary import SIZES
from harness.registry.catalogue import Catalogue
from harness.registry.schema import Target, Toggle
from harness.syntax.scopes import Sources

# Their guards are servers that answer questions: minutes a fault, and no code of their own.
ENGINE = "engine"
# What is imported from elsewhere counts where it is a kernel, or launches one, or says a size.
KERNELS = "sglang.kernels."


def named(words: Iterable[str], sources: Sources, registry: Catalogue) -> list[Target]:
    """The functions that the words stand for, in the order of the words and of the source.

    A word is a module, `module:qualname`, a family of toggles or a toggle's id. No word is every
    family with a property suite. A family or a toggle is the functions that its toggles change on
    this release and what they work with: the functions of their module that they call, the
    kernels that these launch, the sizes that they ask for, and for a kernel who launches it.
    """
    known = _Known(sources)
    words = list(words)
    if not words:
        chosen = [toggle for toggle in registry if toggle.family != ENGINE]
        found = known.of_toggles(chosen)
    else:
        found = [target for word in words for target in _of_word(word, known, registry)]
    return list(dict.fromkeys(found))


def functions_of(targets: Iterable[Target], sources: Sources) -> Iterator[FunctionCode]:
    """The code of targets: each outermost function once, module by module as they come."""
    known = _Known(sources)
    asked: dict[str, list[str]] = {}
    for target in targets:
        asked.setdefault(target.module, []).append(target.qualname)
    for module, names in asked.items():
        code = known.module(module)
        if code is None:
            raise UnfixError(f"there is no module {module} on this release")
        for function in code.functions:
            if any(_holds(name, function.qualname) for name in names):
                yield function


def _holds(name: str, function: str) -> bool:
    """Whether a qualified name is that function, or a class or module around it, or inside it."""
    return (
        not name
        or name == function
        or function.startswith(f"{name}.")
        or name.startswith(f"{function}.")
    )


class _Known:
    """A release's modules as code, each parsed once."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self._modules: dict[str, ModuleCode | None] = {}
        self._imports: dict[str, dict[str, tuple[str, str]]] = {}
        self._called: dict[Target, list[Target]] = {}

    def module(self, name: str) -> ModuleCode | None:
        if name not in self._modules:
            source = self.sources.read(name)
            self._modules[name] = ModuleCode(source) if source is not None else None
        return self._modules[name]

    def of_target(self, target: Target) -> list[Target]:
        """A target as outermost functions; empty where the release does not have it."""
        code = self.module(target.module)
        return [
            Target(target.module, function.qualname)
            for function in (code.functions if code is not None else [])
            if _holds(target.qualname, function.qualname)
        ]

    def of_toggles(self, toggles: Iterable[Toggle]) -> list[Target]:
        """The functions that toggles change here, each followed by what it calls."""
        found: dict[Target, None] = {}
        for toggle in toggles:
            version = self.sources.version
            for variant in toggle.variants:
                if version is not None and not variant.specifier.contains(version):
                    continue
                for target in variant.targets:
                    if not target.qualname:
                        continue  # a constant of the module: no function is meant
                    for function in self.of_target(target):
                        found.update(dict.fromkeys(self.around(function)))
        return list(found)

    def around(self, target: Target) -> Iterator[Target]:
        """A function, what it calls, the kernels under that, and who launches it."""
        yield target
        for called in self.called(target):
            yield called
            yield from self.kernels(called)
        code = self.module(target.module)
        assert code is not None
        if self.function(target).kernel:
            for function in code.functions:
                caller = Target(target.module, function.qualname)
                if not function.kernel and target in self.called(caller):
                    yield caller

    def kernels(self, target: Target, seen: frozenset[Target] = frozenset()) -> Iterator[Target]:
        """The kernels that a function launches, and what these call in turn."""
        for called in self.called(target):
            if called not in seen and self.function(called).kernel:
                yield called
                yield from self.kernels(called, seen | {target, called})

    def function(self, target: Target) -> FunctionCode:
        code = self.module(target.module)
        assert code is not None
        return next(f for f in code.functions if f.qualname == target.qualname)

    def called(self, target: Target) -> list[Target]:
        """The functions of SGLang that a function names, to call or to launch or to hand on."""
        if target not in self._called:
            self._called[target] = list(dict.fromkeys(self._find_called(target)))
        return self._called[target]

    def _find_called(self, target: Target) -> Iterator[Target]:
        code = self.module(target.module)
        assert code is not None
        names = {function.qualname for function in code.functions}
        node = self.function(target).node
        owner = target.qualname.rpartition(".")[0]
        imported = self.imported(target.module, code) | _imported(node)
        for name in dict.fromkeys(_names_called(node)):
            own = name.removeprefix("self.")
            method = f"{owner}.{own}" if own != name else name
            if method in names and method != target.qualname:
                yield Target(target.module, method)
            elif own in imported:
                # `self.NAME` as well: a class may hold a kernel under the kernel's own name.
                yield from self._imported_function(*imported[own], kernel=own != name)

    def imported(self, module: str, code: ModuleCode) -> dict[str, tuple[str, str]]:
        """What a module imports by name, anywhere in it."""
        if module not in self._imports:
            self._imports[module] = _imported(code.tree)
        return self._imports[module]

    def _imported_function(self, module: str, name: str, kernel: bool) -> Iterator[Target]:
        code = self.module(module) if module.startswith("sglang.") else None
        if code is None:
            return
        works = module.startswith(KERNELS) or re.search(SIZES, name) is not None
        for function in code.functions:
            if function.qualname == name and (function.kernel or (works and not kernel)):
                yield Target(module, name)
        again = self.imported(module, code).get(name)
        if again is not None and again[0] != module:
            yield from self._imported_function(*again, kernel=kernel)


def _names_called(node: ast.AST) -> Iterator[str]:
    """What is called by name: `f(...)`, `self.f(...)`, and launched: `f[grid](...)`."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            called = call.func.value if isinstance(call.func, ast.Subscript) else call.func
            yield dotted(called)


def _imported(tree: ast.AST) -> dict[str, tuple[str, str]]:
    """The names that `from MODULE import NAME` gives."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
        for alias in node.names
    }


def _of_word(word: str, known: _Known, registry: Catalogue) -> list[Target]:
    families = {toggle.family for toggle in registry}
    ids = {toggle.id for toggle in registry}
    if word in families or word in ids:
        chosen = [toggle for toggle in registry if word in (toggle.family, toggle.id)]
        found = known.of_toggles(chosen)
        if not found:
            raise UnfixError(f"'{word}' changes no function of this release")
        return found
    target = Target.parse(word)
    code = known.module(target.module)
    if code is not None:
        found = known.of_target(target)
        if found:
            return found
        if not target.qualname:
            raise UnfixError(f"{word} defines no function")
        near = difflib.get_close_matches(target.qualname, [f.qualname for f in code.functions], n=3)
        raise UnfixError(f"{target.module} defines no {target.qualname}{_near(near, word)}")
    choice = [*sorted(families), *sorted(ids), *known.sources.modules()]
    near = difflib.get_close_matches(target.module, choice, n=3)
    raise UnfixError(f"'{word}' is no module of this release, no family, no toggle{_near(near)}")


def _near(names: list[str], word: str = "") -> str:
    module = f"{word.partition(':')[0]}:" if word else ""
    return f"; near it: {', '.join(module + name for name in names)}" if names else ""
