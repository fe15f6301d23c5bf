"""A release's kernels as Triton sees them, without importing the release.

A module is a namespace that runs a top-level statement when somebody first asks for a name that the
statement binds. A kernel asks for few: its constants, and the kernels that it calls. So nothing of
the release is installed or imported, and a checkout is read like a wheel.
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

from harness.audit.places import PACKAGE, Place, opened, sources
from harness.audit.syntax import children, walk
from harness.kernels import frontend

_LAUNCH = re.compile(r"\w\[[^\]]*\]\(")
_JIT = ("triton.jit", "jit")


class Lacking(Exception):
    """A kernel asks for what cannot be had without the release itself."""


class StandIn:
    """What is not here: no device and no package; it has every attribute, and answers no."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **options: Any) -> Any:
        plain = len(args) == 1 and not options and callable(args[0])
        return args[0] if plain else self  # as a decorator it changes nothing

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __mro_entries__(self, bases: Any) -> tuple[()]:
        return ()


def is_kernel(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and any(
        ast.unparse(called(decorator)) in _JIT for decorator in node.decorator_list
    )


def called(node: ast.expr) -> ast.expr:
    return node.func if isinstance(node, ast.Call) else node


class Module(ModuleType):
    """One module of the release; attributes come when they are asked for."""

    def __init__(self, name: str, file: Place, world: World) -> None:
        super().__init__(name)
        self.path = str(file)
        self.text = world.changed.get(name) or decode_source(file.read_bytes())
        self.code = ast.parse(self.text)
        lines = self.text.splitlines(keepends=True)
        linecache.cache[self.path] = (len(self.text), None, lines, self.path)
        self.names = Names(self, world)
        # What others import: to Triton, a module is what is of that very type.
        self.face = ModuleType(name)
        self.face.__dict__["__getattr__"] = self.__getattr__

    def __getattr__(self, name: str) -> Any:
        try:
            return self.names[name]
        except KeyError:
            raise AttributeError(name) from None


class Names(dict[str, Any]):
    """A module's globals, each made by the statement that binds it."""

    def __init__(self, module: Module, world: World) -> None:
        super().__init__(__name__=module.__name__, __file__=module.path)
        self["__builtins__"] = {**vars(builtins), "__import__": self._import}
        self._module, self._world = module, world
        self._binders: dict[str, list[ast.stmt]] = {}
        self._ran: set[ast.stmt] = set()
        for statement in module.code.body:
            for name in _bound(statement):
                self._binders.setdefault(name, []).append(statement)

    def __missing__(self, name: str) -> Any:
        for statement in self._binders.get(name, ()):
            if statement not in self._ran:
                self._ran.add(statement)
                self._run(statement)
        if name in self:
            return self[name]
        if hasattr(builtins, name):
            return getattr(builtins, name)
        if name in self._binders:
            self[name] = StandIn(f"{self._module.__name__}.{name}")
            return self[name]
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def _run(self, statement: ast.stmt) -> None:
        body: list[ast.stmt] = [_plain(statement)]
        code = compile(ast.Module(body, []), self._module.path, "exec", dont_inherit=True)
        try:
            exec(code, self)
        except Exception as error:  # a stand-in takes the place of whatever it would have bound
            for name in _bound(statement):
                if name not in self:
                    whole = f"{self._module.__name__}.{name}"
                    self._world.problems.setdefault(whole, f"{type(error).__name__}: {error}")
                    self[name] = StandIn(whole)

    def _import(
        self, name: str, globals: Any = None, locals: Any = None, froms: Any = (), level: int = 0
    ) -> Any:
        if level:
            package = self._module.__name__.split(".")
            if not self._module.path.endswith("__init__.py"):
                package = package[:-1]
            package = package[: len(package) - level + 1]
            name = ".".join([*package, *([name] if name else [])])
        if name.partition(".")[0] == PACKAGE:
            return self._world.package(name if froms else PACKAGE, froms or ())
        try:
            return builtins.__import__(name, globals, None, froms or (), 0)
        except Exception as error:  # a package may fail in any way where its device is missing
            self._world.problems.setdefault(name, f"{type(error).__name__}: {error}")
            return StandIn(name)


class World:
    """The modules of one release: of a folder that holds the package, or of a wheel."""

    def __init__(self, place: Path, changed: Mapping[str, str] | None = None) -> None:
        self.place, self.root = place, opened(place)
        self.changed = dict(changed or {})  # modules that are read otherwise than they stand there
        self._modules: dict[str, Module | None] = {}
        self.problems: dict[str, str] = {}  # why a name is stood in for

    def module(self, name: str) -> Module | None:
        if name not in self._modules:
            stem = name.replace(".", "/")
            files = (self.root / f"{stem}.py", self.root / stem / "__init__.py")
            file = next((one for one in files if one.is_file()), None)
            self._modules[name] = None if file is None else Module(name, file, self)
        return self._modules[name]

    def texts(self) -> Iterator[tuple[str, str]]:
        """Every module that may have to do with kernels."""
        for path, content in sources(self.place):
            text = decode_source(content)
            if "triton" in text or _LAUNCH.search(text):
                yield path.removesuffix(".py").removesuffix("/__init__").replace("/", "."), text

    def package(self, name: str, froms: Any) -> Any:
        own = self.module(name)
        found: Any = StandIn(name) if own is None else own.face
        holder = ModuleType(name)
        for wanted in froms:
            inner = self.module(f"{name}.{wanted}")
            value = getattr(found, wanted, None) if inner is None else inner.face
            setattr(holder, wanted, value)
        return holder if froms else found

    def kernel(self, module: str, name: str) -> JITFunction[Any]:
        """A kernel, with everything that its code and that of its helpers asks for."""
        home = self.module(module)
        found = None if home is None else home.names.get(name)
        while found is not None and not isinstance(found, JITFunction):
            found = getattr(found, "fn", None)
        if found is None:
            why = self.problems.get(f"{module}.{name}", "")
            raise Lacking(f"{module}:{name} does not become a kernel here" + f": {why}" * bool(why))
        self._settle(found, {})
        return found

    def text(self, module: str, name: str) -> str:
        """The code of a kernel and its helpers, and their constants, without where they stand."""
        kernel = self.kernel(module, name)
        codes: dict[int, JITFunction[Any]] = {}
        self._settle(kernel, codes)
        known = (f"{name} = {value!r}" for (name, _), (value, _) in kernel.used_global_vals.items())
        others = (line for one in codes.values() for line in _of_modules(one))
        return "\n".join(sorted({one.src for one in codes.values()}) + sorted({*known, *others}))

    def _settle(self, kernel: JITFunction[Any], done: dict[int, JITFunction[Any]]) -> None:
        """Names that the kernel asks for stand in its globals before Triton copies them."""
        if id(kernel) in done:
            return
        done[id(kernel)] = kernel
        names = kernel.fn.__globals__
        if isinstance(names, Names):
            for name in _asked_of(kernel)[0]:
                value = names.get(name)
                if isinstance(value, JITFunction):
                    self._settle(value, done)
        # Triton's key of a kernel has the constants of helpers only if it knows their keys already.
        try:
            kernel.cache_key  # noqa: B018
        except Exception:
            kernel.hash = None  # it would be the helper's key from here on
            raise


def _of_modules(kernel: JITFunction[Any]) -> Iterator[str]:
    """The constants that a kernel asks another module for, by that module's name."""
    names = kernel.fn.__globals__
    for home, name in _asked_of(kernel)[1]:
        value = getattr(names.get(home), name, None)
        if isinstance(value, (int, float, str, constexpr)):
            yield f"{home}.{name} = {value!r}"


_ASKED: dict[str, tuple[list[str], list[tuple[str, str]]]] = {}  # by a kernel's text


def _asked_of(kernel: JITFunction[Any]) -> tuple[list[str], list[tuple[str, str]]]:
    """The names in a kernel's text, and the attributes of names."""
    found = _ASKED.get(kernel.src)
    if found is None:
        names: dict[str, None] = {}
        attributes: dict[tuple[str, str], None] = {}
        for node in walk(frontend.tree_of(kernel)):
            match node:
                case ast.Name(id=name):
                    names[name] = None
                case ast.Attribute(value=ast.Name(id=home), attr=name):
                    attributes[home, name] = None
        found = _ASKED[kernel.src] = list(names), list(attributes)
    return found


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The names that a top-level statement may bind."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        yield statement.name
        return
    for node in children(statement):
        if isinstance(node, ast.stmt):
            yield from _bound(node)
        elif isinstance(node, (ast.ExceptHandler, ast.match_case)):
            for inner in node.body:
                yield from _bound(inner)
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]
        else:
            yield from (
                inner.id
                for inner in walk(node)
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
            )


class _Undecorated(ast.NodeTransformer):
    """Kernels without what stands around `jit`: a tuner, heuristics, a cache."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        if is_kernel(node):
            node.decorator_list = [
                one for one in node.decorator_list if ast.unparse(called(one)) in _JIT
            ]
        return node


def _plain(statement: ast.stmt) -> ast.stmt:
    made: ast.stmt = _Undecorated().visit(statement)
    return made
