"""From a patched module's text to the units that make a living module behave like it."""

from __future__ import annotations
import __future__

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any

from harness.errors import PatchError
from harness.patching import class_bodies, functions, kernels
from harness.patching.importers import derived_at, importers, source_text
from harness.patching.importing import PatchedLoader, show_lines
from harness.patching.instrument import (
    FUNCTIONS,
    Place,
    assigned,
    chain_to,
    compile_instrumented,
    is_kernel,
    readers,
)
from harness.patching.plan import Direction, PatchedModule
from harness.patching.units import (
    MISSING,
    CacheUnit,
    CallerUnit,
    ClassUnit,
    FunctionUnit,
    KernelUnit,
    NameUnit,
    Unit,
)

Ran = Callable[[int], None]
# What a unit's key held before any toggle, or else what it holds now.
Original = Callable[[tuple[Any, ...], Any], Any]


@dataclass
class Variant:
    """A module under one set of toggles: what to change, and what to count."""

    module: ModuleType
    units: list[Unit] = field(default_factory=list)
    # Closures come and go: (code before, code after) to look for their functions each time.
    closures: list[tuple[CodeType, CodeType]] = field(default_factory=list)
    watched: list[tuple[Any, list[int]]] = field(default_factory=list)
    # What was found where, so that a reload is noticed.
    bindings: list[tuple[functions.Path, Any]] = field(default_factory=list)
    # (name, value before, value under the toggle): others may import them at any time.
    constants: list[tuple[str, Any, Any]] = field(default_factory=list)

    @property
    def still_fits(self) -> bool:
        """Whether it can be used again: constants are taken over by others between two uses."""
        return not self.constants and all(
            functions.bound(self.module, path) is found for path, found in self.bindings
        )


class Builder:
    """Builds the variant of one living module; refuses what only an import can change."""

    def __init__(
        self,
        module: ModuleType,
        original: str,
        patched: PatchedModule,
        slots: list[int],
        ran: Ran,
        original_of: Original,
    ) -> None:
        self.module = module
        self.filename: str = patched.path
        self.tree = ast.parse(patched.text)
        self.patched = patched
        self.original_of = original_of
        names = "+".join(dict.fromkeys(f"{s.direction} {s.toggle}" for s in patched.sites))
        # A name of its own: the file's other functions keep their own lines.
        self.virtual = f"<unfix {names} {patched.module}>"
        show_lines(self.virtual, patched.text)
        sites = [(n, s.line, s.column) for n, s in zip(slots, patched.sites, strict=True)]
        self.compiled = compile_instrumented(self.tree, self.virtual, sites, ran, whole=False)
        self.running = _running_code(module, original, self.filename)
        self.before = definitions_of(original)
        self.after = {id(node): path for path, node in functions.definitions(self.tree)}
        self.variant = Variant(module)
        self.done: set[Any] = set()
        self.classes: dict[functions.Path, dict[str, Any]] = {}

    def code_of(self, function: FunctionType) -> CodeType:
        now = (function.__code__,)
        code: CodeType = self.original_of(("function", id(function)), now)[0]
        return code

    def build(self) -> Variant:
        for site in self.patched.sites:
            chain = list(chain_to(self.tree, site.line, site.column))
            if not chain:
                raise PatchError(f"{site.target}: no statement at line {site.line}")
            # A kernel that is only counted stays as it is: its launches are counted from outside.
            watched = any(is_kernel(place.statement) for place in chain)
            if site.direction != Direction.OBSERVE.value or not watched:
                self._site(chain, site.target)
        for path, changed in self.classes.items():
            self._class_units(path, changed)
        for qualname, slots in self.compiled.kernels.items():
            kernel = kernels.find(self.module, qualname)
            if kernel is None:
                self._refuse(qualname, "a kernel that its module does not hold by name")
            self.variant.watched.append((kernels.innermost(kernel), slots))
        return self.variant

    def _site(self, chain: list[Place], target: str) -> None:
        outer = next((p for p in chain if isinstance(p.statement, FUNCTIONS)), None)
        last = chain[-1].statement
        if outer is None:
            if isinstance(last, ast.ClassDef):
                self._refuse(target, "a class's own header")
            classes = [p.statement for p in chain if isinstance(p.statement, ast.ClassDef)]
            if classes:
                self._class_body(classes[-1], last, target)
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
        holder = functions.bound(self.module, path)
        if type(holder).__module__.startswith(("torch.jit", "torch._C")):
            self._refuse(target, "a function that torch.jit has compiled")
        found = functions.live_functions(self.module, path, line, self.filename, self.code_of)
        if not found:
            raise PatchError(f"{target}: no living function was made at line {line}")
        code = functions.code_at(self.compiled.code, path)
        for function in found:
            own = self.code_of(function)
            if functions.acts(own) != functions.acts(functions.code_at(self.running, path)):
                raise PatchError(
                    f"{self.filename} was edited after this process imported it: start anew"
                )
            pairs = list(functions.nested_pairs(own, code))
            if any(a.co_freevars != b.co_freevars for a, b in [(own, code), *pairs]):
                self._refuse(target, "which outer variables a closure holds")
            new = (code, *self._defaults(function, before, definition))
            self.variant.units.append(FunctionUnit(function, new))
            self.variant.closures += pairs
        self.variant.units += [CacheUnit(cache) for cache in functions.caches_behind(holder)]
        self.variant.bindings.append((path, holder))

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
        bound = functions.bound(self.module, path)
        kernel = kernels.innermost(bound)
        if kernel is None:
            self._refuse(target, "a kernel that its module does not hold by name")
        old = kernel.fn
        code = functions.code_at(self.compiled.code, path)
        fresh = FunctionType(code, old.__globals__, old.__name__, old.__defaults__, old.__closure__)
        fresh.__kwdefaults__ = old.__kwdefaults__
        fresh.__annotations__ = old.__annotations__
        fresh.__qualname__ = old.__qualname__
        fresh.__module__ = old.__module__
        self.variant.units.append(KernelUnit(kernel, kernels.rebuilt(kernel, fresh)))
        for wrapper in kernels.wrappers(bound):
            self.variant.units.append(KernelUnit(wrapper, kernels.retuned(wrapper)))
        self.variant.units += [CallerUnit(caller) for caller in kernels.callers(kernel)]
        self.variant.bindings.append((path, bound))

    # Classes

    def _class_body(self, definition: ast.ClassDef, statement: ast.stmt, target: str) -> None:
        path = self.after[id(definition)]
        cls = functions.bound(self.module, path)
        before: Any = self.before.get(path)
        if not isinstance(cls, type) or before is None:
            raise PatchError(f"{target}: no living class of that name")
        if what := class_bodies.obstacle(cls, before, definition, statement):
            self._refuse(target, what)
        scope = dict(vars(cls))
        self._run(statement, vars(self.module), scope)
        changed = {name: scope[name] for name in assigned(statement) if name in scope}
        self.classes.setdefault(path, {}).update(changed)

    def _class_units(self, path: functions.Path, changed: dict[str, Any]) -> None:
        cls: type = functions.bound(self.module, path)
        now = vars(cls).get("__dataclass_fields__")
        own = self.original_of(("class", id(cls), "__dataclass_fields__"), now)
        for name, value in class_bodies.attributes(cls, changed, own).items():
            self.variant.units.append(ClassUnit(cls, name, value))
        self.variant.bindings.append((path, cls))

    def _run(self, statement: ast.stmt, scope: dict[str, Any], names: dict[str, Any]) -> None:
        """Run one assignment of the patched module, for its value alone."""
        names["__annotations__"] = {}
        postponed = any(
            isinstance(node, ast.ImportFrom) and node.module == "__future__"
            for node in self.tree.body
        )
        flags = __future__.annotations.compiler_flag if postponed else 0
        module = ast.Module([statement], [])
        exec(compile(module, self.virtual, "exec", flags=flags, dont_inherit=True), scope, names)

    # Modules

    def _module_names(self, chain: list[Place], target: str) -> None:
        statement = chain[-1].statement
        names = set(assigned(statement))
        if len(chain) > 1 or not names or not isinstance(statement, (ast.Assign, ast.AnnAssign)):
            self._refuse(target, "this part of a module")
        scope = dict(vars(self.module))
        self._run(statement, scope, scope)
        for name in names:
            self._module_name(name, scope[name], target)
        for place, _, kernel in readers(self.tree, names):
            self._count_reader(place, kernel, target)

    def _module_name(self, name: str, value: Any, target: str) -> None:
        now = vars(self.module).get(name, MISSING)
        if now is MISSING:
            raise PatchError(f"{target}: the living module has no {name}")
        old = self.original_of(("name", id(vars(self.module)), name), now)
        holders = importers(self.module, name, old)
        if now is not old:
            holders += importers(self.module, name, now)
        trees = [(self.tree, name)] + [(ast.parse(source_text(m)), a) for m, a in holders]
        for tree, alias in trees:
            if (line := derived_at(tree, alias)) is not None:
                self._refuse(target, f"what line {line} derives from {alias}")
        for holder, alias in [(self.module, name), *holders]:
            self.variant.units.append(NameUnit(vars(holder), alias, value))
            self.variant.units += [CallerUnit(k) for k in kernels.readers(vars(holder), alias)]
        self.variant.constants.append((name, old, value))

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


def _running_code(module: ModuleType, original: str, filename: str) -> CodeType:
    """What the module's text compiles to: an import under toggles compiled it with counters."""
    loader = getattr(module.__spec__, "loader", None)
    if isinstance(loader, PatchedLoader):
        return loader.compiled.code
    return compiled_as_it_is(original, filename)


def read_before(text: str, filename: str) -> None:
    """What forks of this process would each read of a module."""
    compiled_as_it_is(text, filename)
    definitions_of(text)


@lru_cache(maxsize=8)
def compiled_as_it_is(text: str, filename: str) -> CodeType:
    """A module's code without any toggle: one module is often toggled in many ways."""
    return compile(text, filename, "exec", dont_inherit=True)


@lru_cache(maxsize=8)
def definitions_of(text: str) -> Mapping[functions.Path, ast.AST]:
    return MappingProxyType(dict(functions.definitions(ast.parse(text))))


def _dump(nodes: Any) -> list[str]:
    return [ast.dump(node) if node is not None else "" for node in nodes]


def _value(expression: ast.expr, scope: dict[str, Any]) -> Any:
    return eval(compile(ast.Expression(expression), "<unfix default>", "eval"), scope)
