"""From a patched module's text to the units that make a living module behave like it."""

from __future__ import annotations

import ast
import dataclasses
import functools
import linecache
import re
import sys
from abc import ABCMeta
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from harness.errors import PatchError
from harness.patching import functions, kernels
from harness.patching.instrument import (
    FUNCTIONS,
    RAN,
    Place,
    chain_to,
    compile_instrumented,
    is_kernel,
    readers,
)
from harness.patching.plan import Direction, PatchedModule
from harness.patching.units import (
    MISSING,
    ClassUnit,
    FunctionUnit,
    NameUnit,
    ObjectUnit,
    Unit,
)

Ran = Callable[[int], None]


@dataclass
class Variant:
    """A module under one set of toggles: what to change, and what to count."""

    module: ModuleType
    units: list[Unit] = field(default_factory=list)
    # Closures come and go: (code before, code after) to look for their functions each time.
    closures: list[tuple[CodeType, CodeType]] = field(default_factory=list)
    watched: list[tuple[Any, list[int]]] = field(default_factory=list)


class Builder:
    """Builds the variant of one living module; refuses what only an import can change."""

    def __init__(
        self, module: ModuleType, original: str, patched: PatchedModule, slots: list[int], ran: Ran
    ) -> None:
        self.module = module
        self.filename: str = patched.path
        self.original = ast.parse(original)
        self.tree = ast.parse(patched.text)
        self.patched = patched
        self.slots = slots
        names = "+".join(dict.fromkeys(f"{s.direction} {s.toggle}" for s in patched.sites))
        # A name of its own: the file's other functions keep their own lines.
        self.virtual = f"<unfix {names} {patched.module}>"
        lines = patched.text.splitlines(keepends=True)
        linecache.cache[self.virtual] = (len(patched.text), None, lines, self.virtual)
        sites = [(n, s.line, s.column) for n, s in zip(slots, patched.sites, strict=True)]
        self.compiled = compile_instrumented(patched.text, self.virtual, sites)
        self.before = dict(functions.definitions(self.original))
        self.after = {id(node): path for path, node in functions.definitions(self.tree)}
        self.variant = Variant(module, [NameUnit(vars(module), RAN, ran)])
        self.done: set[Any] = set()

    def build(self) -> Variant:
        for site in self.patched.sites:
            chain = list(chain_to(self.tree, site.line, site.column))
            if not chain:
                raise PatchError(f"{site.target}: no statement at line {site.line}")
            # A kernel that is only counted stays as it is: its launches are counted from outside.
            watched = any(is_kernel(place.statement) for place in chain)
            if site.direction != Direction.OBSERVE.value or not watched:
                self._site(chain, site.target)
        for qualname, slots in self.compiled.kernels.items():
            kernel = kernels.innermost(kernels.find(self.module, qualname))
            if kernel is not None:
                self.variant.watched.append((kernel, slots))
        return self.variant

    def _site(self, chain: list[Place], target: str) -> None:
        outer = next((p for p in chain if isinstance(p.statement, FUNCTIONS)), None)
        last = chain[-1].statement
        if outer is None:
            if isinstance(last, ast.ClassDef):
                self._refuse(target, "a class's own header")
            classes = [p.statement for p in chain if isinstance(p.statement, ast.ClassDef)]
            if classes:
                self._class_body(classes[-1], chain[-1], target)
            else:
                self._module_names(chain, target)
            return
        path = self.after[id(outer.statement)]
        if path not in self.before:
            self._refuse(target, "a definition that is not there without the toggle")
        for place in chain:
            if isinstance(place.statement, FUNCTIONS):
                self._refuse_decorators(place.statement, target)
        if path in self.done:
            return
        self.done.add(path)
        if is_kernel(outer.statement):
            self._kernel(path, target)
        else:
            self._function(path, outer.statement, target)

    def _refuse(self, target: str, what: str) -> None:
        raise PatchError(
            f"{target}: {what} is made once, while the module is imported; "
            "toggle it at import (`unfix exec`, or the environment), not live"
        )

    def _refuse_decorators(self, definition: Any, target: str) -> None:
        before: Any = self.before.get(self.after[id(definition)])
        if before is not None and _dump(before.decorator_list) != _dump(definition.decorator_list):
            self._refuse(target, "what a decorator is given")

    # Functions

    def _function(self, path: functions.Path, definition: Any, target: str) -> None:
        before: Any = self.before[path]
        line = functions.first_line(before)
        found = functions.live_functions(self.module, path, line, self.filename)
        if not found:
            raise PatchError(f"{target}: no living function was made at line {line}")
        code = functions.code_at(self.compiled.code, path)
        for function in found:
            if function.__code__.co_freevars != code.co_freevars:
                self._refuse(target, "which outer variables a closure holds")
            new = (code, *self._defaults(function, before, definition))
            self.variant.units.append(FunctionUnit(function, new))
            pairs = list(functions.nested_pairs(function.__code__, code))
            if any(before.co_freevars != after.co_freevars for before, after in pairs):
                self._refuse(target, "which outer variables a closure holds")
            self.variant.closures += pairs

    def _defaults(self, function: FunctionType, before: Any, after: Any) -> tuple[Any, Any]:
        """The defaults after the edit; those it does not touch stay the same objects."""
        old, new = before.args, after.args
        positional, keyword = function.__defaults__, function.__kwdefaults__
        scope = function.__globals__
        if _dump(old.defaults) != _dump(new.defaults):
            positional = tuple(_value(e, scope) for e in new.defaults) or None
        if _dump(old.kw_defaults) != _dump(new.kw_defaults):
            keyword = {
                argument.arg: _value(expression, scope)
                for argument, expression in zip(new.kwonlyargs, new.kw_defaults, strict=True)
                if expression is not None
            } or None
        return positional, keyword

    def _kernel(self, path: functions.Path, target: str) -> None:
        qualname = ".".join(name for name, _ in path)
        try:
            bound = kernels.find(self.module, qualname)
        except AttributeError:
            bound = None
        kernel = kernels.innermost(bound)
        if kernel is None:
            self._function(path, self._definition(path), target)
            return
        code = functions.code_at(self.compiled.code, path)
        old = kernel.fn
        fresh = FunctionType(code, old.__globals__, old.__name__, old.__defaults__, old.__closure__)
        fresh.__kwdefaults__ = old.__kwdefaults__
        fresh.__annotations__ = old.__annotations__
        fresh.__qualname__ = old.__qualname__
        fresh.__module__ = old.__module__
        attributes = kernels.rebuilt(kernel, fresh)
        self.variant.units.append(ObjectUnit(kernel, attributes, kernels.forget_rewritten))
        for wrapper in kernels.wrappers(bound):
            self.variant.units.append(ObjectUnit(wrapper, kernels.retuned(wrapper)))
        self._forget(kernels.callers(kernel))

    def _definition(self, path: functions.Path) -> Any:
        return next(node for p, node in functions.definitions(self.tree) if p == path)

    def _forget(self, compiled: list[Any]) -> None:
        for other in compiled:
            self.variant.units.append(ObjectUnit(other, kernels.forgotten(other)))

    # Classes

    def _class_body(self, definition: ast.ClassDef, place: Place, target: str) -> None:
        path = self.after[id(definition)]
        cls: Any = self.module
        for name, _ in path:
            cls = vars(cls).get(name) if hasattr(cls, "__dict__") else None
        if not isinstance(cls, type) or path not in self.before:
            raise PatchError(f"{target}: no living class of that name")
        if type(cls) not in (type, ABCMeta):
            self._refuse(target, f"the body of a class made by {type(cls).__name__}")
        names = set(_stored(place.statement))
        if not names:
            self._refuse(target, "this part of a class body")
        scope = dict(vars(cls))
        exec(_module(place.statement, self.virtual), vars(self.module), scope)
        changed = {name: scope[name] for name in names if name in scope}
        if "__dataclass_fields__" in vars(cls):
            changed = self._dataclass(cls, changed, target)
        self.variant.units += [ClassUnit(cls, name, value) for name, value in changed.items()]

    def _dataclass(self, cls: type, changed: dict[str, Any], target: str) -> dict[str, Any]:
        """What `dataclass` makes of the edited fields, tried out on a twin of the class."""
        subclasses: list[type] = cls.__subclasses__()
        if any("__dataclass_fields__" in vars(sub) for sub in subclasses):
            self._refuse(target, "a field that subclasses have copied")
        own: dict[str, Any] = vars(cls)["__dataclass_fields__"]
        annotations = vars(cls).get("__annotations__", {})
        generated = ("__init__", "__repr__", "__eq__", "__dataclass_fields__", "__match_args__")
        body: dict[str, Any] = {"__annotations__": annotations, "__module__": cls.__module__}
        for name in annotations:
            if name in own:
                body[name] = _fresh_field(own[name])
                if body[name] is MISSING:
                    del body[name]
        body.update(changed)
        parameters: Any = vars(cls)["__dataclass_params__"]
        options = {n: getattr(parameters, n) for n in ("init", "repr", "eq", "order", "frozen")}
        twin: type = dataclasses.dataclass(**options)(type(cls)(cls.__name__, cls.__bases__, body))
        written = _written_methods(cls, generated)
        slots = "__slots__" in vars(cls)
        names = [n for n in generated if n not in written] + ([] if slots else list(changed))
        state = {}
        for name in names:
            value = vars(twin).get(name, MISSING)
            if isinstance(value, FunctionType):
                value.__qualname__ = f"{cls.__qualname__}.{name}"
            if value is not MISSING or name in vars(cls):
                state[name] = value
        return state

    # Modules

    def _module_names(self, chain: list[Place], target: str) -> None:
        statement = chain[-1].statement
        names = set(_stored(statement))
        if len(chain) > 1 or not names or not isinstance(statement, (ast.Assign, ast.AnnAssign)):
            self._refuse(target, "this part of a module")
        for name in names:
            self._refuse_derived(name, statement, target)
        scope = dict(vars(self.module))
        exec(_module(statement, self.virtual), scope)
        for name in names:
            old = vars(self.module).get(name, MISSING)
            if old is MISSING:
                raise PatchError(f"{target}: the living module has no {name}")
            for holder, alias in [(self.module, name), *importers(self.module, name, old)]:
                self.variant.units.append(NameUnit(vars(holder), alias, scope[name]))
                self._forget(kernels.readers(vars(holder), alias))

        for place, _, kernel in readers(self.tree, names):
            self._count_reader(place, kernel, target)

    def _count_reader(self, place: Place, kernel: str, target: str) -> None:
        """A function that reads a changed constant runs the same code, with the count in it."""
        statement = place.statement
        outer = next(
            p
            for p in chain_to(self.tree, statement.lineno, statement.col_offset)
            if isinstance(p.statement, FUNCTIONS)
        )
        path = self.after[id(outer.statement)]
        if not kernel and path not in self.done:
            self.done.add(path)
            self._function(path, outer.statement, target)

    def _refuse_derived(self, name: str, statement: ast.stmt, target: str) -> None:
        """A default, a decorator or another constant has read the value for good."""
        inside = {
            id(node)
            for function in ast.walk(self.tree)
            if isinstance(function, FUNCTIONS)
            for part in function.body
            for node in ast.walk(part)
        }
        for node in ast.walk(self.tree):
            if (
                isinstance(node, ast.Name)
                and node.id == name
                and isinstance(node.ctx, ast.Load)
                and id(node) not in inside
            ):
                self._refuse(target, f"what line {node.lineno} derives from {name}")


def importers(module: ModuleType, name: str, value: Any) -> Iterator[tuple[ModuleType, str]]:
    """The loaded modules that took the name over by `from module import name`, and as what."""
    for other in list(sys.modules.values()):
        if other is module or not isinstance(other, ModuleType):
            continue
        held = [key for key, found in list(vars(other).items()) if found is value]
        if held:
            taken = _imported_names(other, module.__name__, name)
            yield from ((other, key) for key in held if key in taken)


def _imported_names(importer: ModuleType, source: str, name: str) -> set[str]:
    text = _source_text(getattr(importer, "__file__", None) or "")
    if not re.search(rf"\b{re.escape(name)}\b", text):
        return set()
    package = (importer.__package__ or "").split(".")
    taken = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            if ".".join([*base, *([node.module] if node.module else [])]) == source:
                taken |= {a.asname or a.name for a in node.names if a.name in (name, "*")}
                if any(a.name == "*" for a in node.names):
                    taken.add(name)
    return taken


@functools.lru_cache(maxsize=4096)
def _source_text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8") if path.endswith(".py") else ""


def _dump(nodes: Any) -> list[str]:
    return [ast.dump(node) if node is not None else "" for node in nodes]


def _value(expression: ast.expr, scope: dict[str, Any]) -> Any:
    return eval(compile(ast.Expression(expression), "<unfix default>", "eval"), scope)


def _module(statement: ast.stmt, filename: str) -> CodeType:
    return compile(ast.Module([statement], []), filename, "exec", dont_inherit=True)


def _stored(statement: ast.stmt) -> Iterator[str]:
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _fresh_field(old: Any) -> Any:
    """The class-body value that a field came from."""
    if old.default_factory is dataclasses.MISSING and old.default is dataclasses.MISSING:
        plain = old.init and old.repr and old.compare and old.hash is None and not old.kw_only
        if plain and not old.metadata:
            return MISSING
    options = {n: getattr(old, n) for n in ("default", "default_factory", "init", "repr", "hash")}
    options.update(compare=old.compare, metadata=old.metadata, kw_only=old.kw_only)
    return dataclasses.field(**options)


def _written_methods(cls: type, names: tuple[str, ...]) -> set[str]:
    """Those of the names that the class's author wrote, which `dataclass` leaves alone."""
    return {
        name
        for name in names
        if isinstance(vars(cls).get(name), FunctionType)
        and vars(cls)[name].__code__.co_filename
        == getattr(sys.modules[cls.__module__], "__file__", "")
    }
