"""The functions that get faults: the targets, on one release, of the command line's words."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable, Iterator, Sequence

from harness.core.cpp_scopes import CppSource
from harness.core.cpp_tokens import is_cpp_path
from harness.core.errors import UnfixError
from harness.core.source_scopes import ReleaseSources
from harness.fixes.registry.schema import CodeTarget, Toggle
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.runs.mutate.cpp_code import CppFunctionCode, CppModuleCode
from harness.runs.mutate.function_code import FunctionCode, ModuleCode, get_dotted_name
from harness.runs.mutate.sglang_names import SIZE_CALL

# Its guards are servers, which take minutes for a fault, and its toggles have no code of their own.
ENGINE_FAMILY = "engine"
# Imported functions get faults if they are kernels, launch one, or compute a size.
KERNELS_PREFIX = "sglang.kernels."


def select_targets(
    words: Iterable[str], sources: ReleaseSources, registry: ToggleCatalogue
) -> list[CodeTarget]:
    """Select the functions that the words name, in the order of the words and of the source.

    A word is a module, `module:qualname`, a family of toggles or a toggle's id; a module is also
    the path of a C++ source. No word means every family with a property suite, without C++: there
    each fault is a build. A family or a toggle means the functions that its toggles change on this
    release, and related ones: the functions of their module that they call, the kernels that these
    launch, the sizes that they compute, and the launchers of a kernel; in C++ those alone.
    """
    index = _CallIndex(sources)
    words = list(words)
    if not words:
        chosen = [toggle for toggle in registry if toggle.family != ENGINE_FAMILY]
        found = index.find_toggled_functions(chosen)
        targets = [target for target in found if not is_cpp_path(target.module)]
    else:
        targets = [target for word in words for target in _select_word(word, index, registry)]
    return list(dict.fromkeys(targets))


def describe_words(
    words: Iterable[str], sources: ReleaseSources, registry: ToggleCatalogue
) -> dict[str, str]:
    """Describe what each word is taken for; an unknown one is left out."""
    families = {toggle.family for toggle in registry}
    ids = {toggle.id for toggle in registry}
    modules = set(sources.modules())
    meanings = {}
    for word in words:
        module, _, name = word.partition(":")
        if word in families or word in ids:
            meaning = registry.describe_match(word)
            meanings[word] = f"{meaning}, which stands for the functions that are changed"
        elif module in modules:
            meanings[word] = f"a function of the module {module}" if name else "a module"
    return meanings


def read_functions(
    targets: Iterable[CodeTarget], sources: ReleaseSources
) -> Iterator[FunctionCode | CppFunctionCode]:
    """Read the code of targets, each outermost function once, in the order of the targets."""
    index = _CallIndex(sources)
    names_by_module: dict[str, list[str]] = {}
    for target in targets:
        names_by_module.setdefault(target.module, []).append(target.qualname)
    for module, names in names_by_module.items():
        functions = index.get_functions(module)
        if functions is None:
            raise UnfixError(f"there is no module {module} on this release")
        for function in functions:
            if any(_is_same_or_nested(name, function.qualname) for name in names):
                yield function


def _is_same_or_nested(name: str, function: str) -> bool:
    """Return whether one qualified name is the other, or around it, or inside it."""
    return (
        not name
        or name == function
        or function.startswith(f"{name}.")
        or name.startswith(f"{function}.")
    )


class _CallIndex:
    """An index of a release's modules, each parsed once."""

    def __init__(self, sources: ReleaseSources) -> None:
        self.sources = sources
        self._modules: dict[str, ModuleCode | None] = {}
        self._imports: dict[str, dict[str, tuple[str, str]]] = {}
        self._callees: dict[CodeTarget, list[CodeTarget]] = {}

    def get_module(self, name: str) -> ModuleCode | None:
        if name not in self._modules:
            source = self.sources.read(name)
            self._modules[name] = ModuleCode(source) if source is not None else None
        return self._modules[name]

    def get_functions(
        self, module: str
    ) -> Sequence[FunctionCode] | Sequence[CppFunctionCode] | None:
        """Return the functions of a module or of a C++ source; None if there is no such one."""
        if is_cpp_path(module):
            source = self.sources.read(module)
            return CppModuleCode(source).functions if isinstance(source, CppSource) else None
        code = self.get_module(module)
        return None if code is None else code.functions

    def find_functions(self, target: CodeTarget) -> list[CodeTarget]:
        """Find a target's outermost functions; empty if the release does not have it."""
        return [
            CodeTarget(target.module, function.qualname)
            for function in self.get_functions(target.module) or ()
            if _is_same_or_nested(target.qualname, function.qualname)
        ]

    def find_toggled_functions(self, toggles: Iterable[Toggle]) -> list[CodeTarget]:
        """Find the functions that toggles change here, each followed by the functions it calls."""
        targets: dict[CodeTarget, None] = {}
        for toggle in toggles:
            version = self.sources.version
            for variant in toggle.variants:
                if version is not None and not variant.specifier.contains(version):
                    continue
                for target in variant.targets:
                    if is_cpp_path(target.module):
                        targets.update(dict.fromkeys(self.find_functions(target)))
                        continue
                    if not target.qualname:
                        continue  # a constant of the module
                    for function in self.find_functions(target):
                        targets.update(dict.fromkeys(self.iterate_related_functions(function)))
        return list(targets)

    def iterate_related_functions(self, target: CodeTarget) -> Iterator[CodeTarget]:
        """Yield a function, its callees, their kernels, and the functions that launch it."""
        yield target
        for called in self.get_callees(target):
            yield called
            yield from self.iterate_launched_kernels(called)
        code = self.get_module(target.module)
        assert code is not None
        if self.get_function(target).is_kernel:
            for function in code.functions:
                caller = CodeTarget(target.module, function.qualname)
                if not function.is_kernel and target in self.get_callees(caller):
                    yield caller

    def iterate_launched_kernels(
        self, target: CodeTarget, seen: frozenset[CodeTarget] = frozenset()
    ) -> Iterator[CodeTarget]:
        """Yield the kernels that a function launches, and their callees."""
        for called in self.get_callees(target):
            if called not in seen and self.get_function(called).is_kernel:
                yield called
                yield from self.iterate_launched_kernels(called, seen | {target, called})

    def get_function(self, target: CodeTarget) -> FunctionCode:
        code = self.get_module(target.module)
        assert code is not None
        return next(f for f in code.functions if f.qualname == target.qualname)

    def get_callees(self, target: CodeTarget) -> list[CodeTarget]:
        """Return the functions of SGLang that a function calls, launches or passes on."""
        if target not in self._callees:
            self._callees[target] = list(dict.fromkeys(self._iterate_callees(target)))
        return self._callees[target]

    def _iterate_callees(self, target: CodeTarget) -> Iterator[CodeTarget]:
        code = self.get_module(target.module)
        assert code is not None
        names = {function.qualname for function in code.functions}
        node = self.get_function(target).node
        owner = target.qualname.rpartition(".")[0]
        imported = self.get_imports(target.module, code) | _collect_imports(node)
        for name in dict.fromkeys(_iterate_called_names(node)):
            own = name.removeprefix("self.")
            method = f"{owner}.{own}" if own != name else name
            if method in names and method != target.qualname:
                yield CodeTarget(target.module, method)
            elif own in imported:
                # `self.NAME` as well: a class may have an attribute with a kernel's name.
                yield from self._iterate_imported_functions(
                    *imported[own], kernels_only=own != name
                )

    def get_imports(self, module: str, code: ModuleCode) -> dict[str, tuple[str, str]]:
        """Return the names that a module imports, anywhere in it."""
        if module not in self._imports:
            self._imports[module] = _collect_imports(code.tree)
        return self._imports[module]

    def _iterate_imported_functions(
        self, module: str, name: str, kernels_only: bool
    ) -> Iterator[CodeTarget]:
        code = self.get_module(module) if module.startswith("sglang.") else None
        if code is None:
            return
        works = module.startswith(KERNELS_PREFIX) or re.search(SIZE_CALL, name) is not None
        for function in code.functions:
            if function.qualname == name and (function.is_kernel or (works and not kernels_only)):
                yield CodeTarget(module, name)
        again = self.get_imports(module, code).get(name)
        if again is not None and again[0] != module:
            yield from self._iterate_imported_functions(*again, kernels_only=kernels_only)


def _iterate_called_names(node: ast.AST) -> Iterator[str]:
    """Yield the names of calls (`f(...)`, `self.f(...)`) and launches (`f[grid](...)`)."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            called = call.func.value if isinstance(call.func, ast.Subscript) else call.func
            yield get_dotted_name(called)


def _collect_imports(tree: ast.AST) -> dict[str, tuple[str, str]]:
    """Collect the names of `from MODULE import NAME`."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
        for alias in node.names
    }


def _select_word(word: str, index: _CallIndex, registry: ToggleCatalogue) -> list[CodeTarget]:
    families = {toggle.family for toggle in registry}
    ids = {toggle.id for toggle in registry}
    if word in families or word in ids:
        chosen = [toggle for toggle in registry if word in (toggle.family, toggle.id)]
        targets = index.find_toggled_functions(chosen)
        if not targets:
            raise UnfixError(f"'{word}' changes no function of this release")
        return targets
    target = CodeTarget.parse(word)
    functions = index.get_functions(target.module)
    if functions is not None:
        targets = index.find_functions(target)
        if targets:
            return targets
        if not target.qualname:
            raise UnfixError(f"{word} defines no function")
        near = difflib.get_close_matches(target.qualname, [f.qualname for f in functions], n=3)
        raise UnfixError(
            f"{target.module} defines no {target.qualname}{_format_near_names(near, word)}"
        )
    modules = index.sources.cpp_sources() if is_cpp_path(word) else index.sources.modules()
    choice = [*sorted(families), *sorted(ids), *modules]
    near = difflib.get_close_matches(target.module, choice, n=3)
    raise UnfixError(
        f"'{word}' is no module of this release, no family, no toggle{_format_near_names(near)}"
    )


def _format_near_names(names: list[str], word: str = "") -> str:
    module = f"{word.partition(':')[0]}:" if word else ""
    return f"; near it: {', '.join(module + name for name in names)}" if names else ""
