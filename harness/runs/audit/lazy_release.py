"""A release's kernels as Triton sees them, without importing the release.

Invariant: a module's top-level statement runs once, when a name that it binds is first read. A
kernel reads few names: its constants, and the kernels that it calls. So the release is neither
installed nor imported, and a checkout is read like a wheel. Example: to read `BLOCK` of
`BLOCK = 64 if is_hip() else 128` runs that statement and the one that binds `is_hip`, and no other.
"""

from __future__ import annotations

import ast
import builtins
import linecache
import re
from collections.abc import Iterator, Mapping
from importlib.util import decode_source
from pathlib import Path
from types import ModuleType
from typing import Any

from triton.language import constexpr
from triton.runtime.jit import JITFunction

from harness.runs.audit.release_files import FileTree, find_packages, iterate_sources, open_location
from harness.runs.audit.syntax_walk import iterate_children, walk_tree
from harness.sanitizer.triton import adapter

_LAUNCH_PATTERN = re.compile(r"\w\[[^\]]*\]\(")
_JIT_DECORATORS = ("triton.jit", "jit")


class KernelNotLoadable(Exception):
    """Raised for a kernel that cannot load without an import of the release."""


class MissingObject:
    """Stands for an object of a missing package or device; has any attribute, and is false."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MissingObject(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **options: Any) -> Any:
        is_decorator = len(args) == 1 and not options and callable(args[0])
        return args[0] if is_decorator else self

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __mro_entries__(self, bases: Any) -> tuple[()]:
        return ()


def is_kernel(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and any(
        ast.unparse(get_callee(decorator)) in _JIT_DECORATORS for decorator in node.decorator_list
    )


def get_callee(node: ast.expr) -> ast.expr:
    return node.func if isinstance(node, ast.Call) else node


class LazyModule(ModuleType):
    """One module of the release; an attribute is computed when it is first read."""

    def __init__(self, name: str, file: FileTree, release: LazyRelease) -> None:
        super().__init__(name)
        self.path = str(file)
        self.text = release.replaced_texts.get(name) or decode_source(file.read_bytes())
        self.tree = ast.parse(self.text)
        lines = self.text.splitlines(keepends=True)
        linecache.cache[self.path] = (len(self.text), None, lines, self.path)
        self.names = LazyGlobals(self, release)
        # For imports by other modules: Triton takes only an exact `ModuleType` for a module.
        self.public_module = ModuleType(name)
        self.public_module.__dict__["__getattr__"] = self.__getattr__

    def __getattr__(self, name: str) -> Any:
        try:
            return self.names[name]
        except KeyError:
            raise AttributeError(name) from None


class LazyGlobals(dict[str, Any]):
    """A module's globals; the statement that binds a name runs when it is first read."""

    def __init__(self, module: LazyModule, release: LazyRelease) -> None:
        super().__init__(__name__=module.__name__, __file__=module.path)
        self["__builtins__"] = {**vars(builtins), "__import__": self._import}
        self._module, self._release = module, release
        self._binders: dict[str, list[ast.stmt]] = {}
        self._executed: set[ast.stmt] = set()
        for statement in module.tree.body:
            for name in _iterate_bound_names(statement):
                self._binders.setdefault(name, []).append(statement)

    def __missing__(self, name: str) -> Any:
        for statement in self._binders.get(name, ()):
            if statement not in self._executed:
                self._executed.add(statement)
                self._execute(statement)
        if name in self:
            return self[name]
        if hasattr(builtins, name):
            return getattr(builtins, name)
        if name in self._binders:
            self[name] = MissingObject(f"{self._module.__name__}.{name}")
            return self[name]
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def _execute(self, statement: ast.stmt) -> None:
        body: list[ast.stmt] = [_strip_decorators(statement)]
        code = compile(ast.Module(body, []), self._module.path, "exec", dont_inherit=True)
        try:
            exec(code, self)
        except Exception as error:  # its names become missing objects
            for name in _iterate_bound_names(statement):
                if name not in self:
                    whole = f"{self._module.__name__}.{name}"
                    self._release.problems.setdefault(whole, f"{type(error).__name__}: {error}")
                    self[name] = MissingObject(whole)

    def _import(
        self, name: str, globals: Any = None, locals: Any = None, froms: Any = (), level: int = 0
    ) -> Any:
        if level:
            package = self._module.__name__.split(".")
            if not self._module.path.endswith("__init__.py"):
                package = package[:-1]
            package = package[: len(package) - level + 1]
            name = ".".join([*package, *([name] if name else [])])
        package_name = name.partition(".")[0]
        if package_name in self._release.packages:
            return self._release.import_package(name if froms else package_name, froms or ())
        try:
            return builtins.__import__(name, globals, None, froms or (), 0)
        except Exception as error:  # a package may fail in any way where its device is missing
            self._release.problems.setdefault(name, f"{type(error).__name__}: {error}")
            return MissingObject(name)


class LazyRelease:
    """The modules of one release: of a folder that holds the package, or of a wheel."""

    def __init__(self, location: Path, replaced_texts: Mapping[str, str] | None = None) -> None:
        self.location, self.root = location, open_location(location)
        self.packages = find_packages(location)
        self.replaced_texts = dict(replaced_texts or {})  # by module, in place of its file
        self._modules: dict[str, LazyModule | None] = {}
        self.problems: dict[str, str] = {}  # by name: the reason why it is a missing object

    def find_module(self, name: str) -> LazyModule | None:
        if name not in self._modules:
            stem = name.replace(".", "/")
            files = (self.root / f"{stem}.py", self.root / stem / "__init__.py")
            file = next((candidate for candidate in files if candidate.is_file()), None)
            self._modules[name] = None if file is None else LazyModule(name, file, self)
        return self._modules[name]

    def iterate_texts(self) -> Iterator[tuple[str, str]]:
        """Iterate the modules that mention Triton or may launch a kernel, with their texts."""
        for path, content in iterate_sources(self.location):
            text = decode_source(content)
            if "triton" in text or _LAUNCH_PATTERN.search(text):
                yield path.removesuffix(".py").removesuffix("/__init__").replace("/", "."), text

    def import_package(self, name: str, imported_names: Any) -> Any:
        module = self.find_module(name)
        package: Any = MissingObject(name) if module is None else module.public_module
        if not imported_names:
            return package
        holder = ModuleType(name)
        for imported in imported_names:
            inner = self.find_module(f"{name}.{imported}")
            value = getattr(package, imported, None) if inner is None else inner.public_module
            setattr(holder, imported, value)
        return holder

    def load_kernel(self, module: str, name: str) -> JITFunction[Any]:
        """Load a kernel, with all globals that its code and that of its helpers reads."""
        home = self.find_module(module)
        kernel = None if home is None else home.names.get(name)
        while kernel is not None and not isinstance(kernel, JITFunction):
            kernel = getattr(kernel, "fn", None)
        if kernel is None:
            why = self.problems.get(f"{module}.{name}", "")
            raise KernelNotLoadable(
                f"{module}:{name} does not become a kernel here" + f": {why}" * bool(why)
            )
        self._resolve_globals(kernel, {})
        return kernel

    def render_kernel_source(self, module: str, name: str) -> str:
        """Render the code of a kernel and its helpers, with their constants, without positions."""
        kernel = self.load_kernel(module, name)
        by_id: dict[int, JITFunction[Any]] = {}
        self._resolve_globals(kernel, by_id)
        constants = {
            f"{name} = {value!r}" for (name, _), (value, _) in kernel.used_global_vals.items()
        }
        for each in by_id.values():
            constants.update(_iterate_module_constants(each))
        return "\n".join(sorted({each.src for each in by_id.values()}) + sorted(constants))

    def _resolve_globals(
        self, kernel: JITFunction[Any], resolved_kernels: dict[int, JITFunction[Any]]
    ) -> None:
        """Compute the names that the kernel reads before Triton copies its globals."""
        if id(kernel) in resolved_kernels:
            return
        resolved_kernels[id(kernel)] = kernel
        names = kernel.fn.__globals__
        if isinstance(names, LazyGlobals):
            for name in _find_used_names(kernel)[0]:
                value = names.get(name)
                if isinstance(value, JITFunction):
                    self._resolve_globals(value, resolved_kernels)
        # Triton's key of a kernel has the constants of helpers only if it knows their keys already.
        try:
            kernel.cache_key  # noqa: B018
        except Exception:
            kernel.hash = None  # Triton has set it to a helper's key
            raise


def _iterate_module_constants(kernel: JITFunction[Any]) -> Iterator[str]:
    """Iterate the constants of other modules that a kernel reads as attributes."""
    names = kernel.fn.__globals__
    for home, name in _find_used_names(kernel)[1]:
        value = getattr(names.get(home), name, None)
        if isinstance(value, (int, float, str, constexpr)):
            yield f"{home}.{name} = {value!r}"


_USED_NAMES_CACHE: dict[str, tuple[list[str], list[tuple[str, str]]]] = {}  # keys: kernels' texts


def _find_used_names(kernel: JITFunction[Any]) -> tuple[list[str], list[tuple[str, str]]]:
    """Find the names in a kernel's text, and the attributes of names."""
    if kernel.src not in _USED_NAMES_CACHE:
        names: dict[str, None] = {}
        attributes: dict[tuple[str, str], None] = {}
        for node in walk_tree(adapter.get_syntax_tree(kernel)):
            match node:
                case ast.Name(id=name):
                    names[name] = None
                case ast.Attribute(value=ast.Name(id=home), attr=name):
                    attributes[home, name] = None
        _USED_NAMES_CACHE[kernel.src] = list(names), list(attributes)
    return _USED_NAMES_CACHE[kernel.src]


def _iterate_bound_names(statement: ast.stmt) -> Iterator[str]:
    """Iterate the names that a top-level statement may bind."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        yield statement.name
        return
    for node in iterate_children(statement):
        if isinstance(node, ast.stmt):
            yield from _iterate_bound_names(node)
        elif isinstance(node, (ast.ExceptHandler, ast.match_case)):
            for inner in node.body:
                yield from _iterate_bound_names(inner)
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]
        else:
            yield from (
                inner.id
                for inner in walk_tree(node)
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
            )


class _DecoratorStripper(ast.NodeTransformer):
    """Removes the decorators around `jit` from kernels: a tuner, heuristics, a cache."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        if is_kernel(node):
            node.decorator_list = [
                decorator
                for decorator in node.decorator_list
                if ast.unparse(get_callee(decorator)) in _JIT_DECORATORS
            ]
        return node


def _strip_decorators(statement: ast.stmt) -> ast.stmt:
    stripped: ast.stmt = _DecoratorStripper().visit(statement)
    return stripped
