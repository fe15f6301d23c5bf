"""Builds the live patches that make an imported module behave like its patched text.

Invariant: a variant is complete or refused. An effect that only an import can have (a decorator's
arguments, a value that another constant derives from) raises PatchError. Example: `LIMIT = 10` in
place of `LIMIT = 100` patches the name in the module and in all its importers; with
`DOUBLE = LIMIT * 2` in one of them, the toggle is refused, since DOUBLE would stay 200.
"""

from __future__ import annotations
import __future__

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any

from harness.core.errors import PatchError
from harness.fixes.patch_plan import Direction, PatchedModule
from harness.patching import added_code, class_bodies, live_functions, original_code
from harness.patching.constant_importers import find_importers
from harness.patching.import_hook import cache_source_lines
from harness.patching.instrumentation import (
    FUNCTION_NODES,
    StatementLocation,
    compile_function,
    compile_instrumented,
    is_jit_function,
    iterate_assigned_names,
    iterate_constant_readers,
    iterate_enclosing_statements,
)
from harness.patching.live_patches import (
    MISSING,
    PATCHED_CODE,
    CachedAnswersPatch,
    CallerKernelPatch,
    ClassAttributePatch,
    FunctionPatch,
    KernelPatch,
    LivePatch,
    LruCachePatch,
    ModuleNamePatch,
    refuse_live_change,
)
from harness.sanitizer.triton import jit_kernels

CountRun = Callable[[int], None]
# Returns the state of a key before any toggle; without one, the current state.
GetOriginal = Callable[[tuple[Any, ...], Any], Any]


@dataclass
class ModuleVariant:
    """A module under one set of toggles: its patches, and the kernels to count."""

    module: ModuleType
    patches: list[LivePatch] = field(default_factory=list)
    # (code before, code after) of nested functions, whose function objects come and go.
    closures: list[tuple[CodeType, CodeType]] = field(default_factory=list)
    watched_kernels: list[tuple[Any, list[int]]] = field(default_factory=list)
    # The object bound at each path, to detect a reload of the module.
    bindings: list[tuple[live_functions.DefinitionPath, Any]] = field(default_factory=list)
    # (name, value before, value under the toggle); a module may import the name at any time.
    constants: list[tuple[str, Any, Any]] = field(default_factory=list)
    # What it changes, by target: code with its name, and names with the modules that hold them.
    changed_code: list[tuple[str, str, CodeType]] = field(default_factory=list)
    changed_names: list[tuple[str, str, list[tuple[ModuleType, str]]]] = field(default_factory=list)
    changed_defaults: list[tuple[str, str]] = field(default_factory=list)  # target, function

    @property
    def is_reusable(self) -> bool:
        """Whether it can be used again; not with constants, whose importers may have changed."""
        return not self.constants and all(
            live_functions.find_bound_object(self.module, path) is found
            for path, found in self.bindings
        )


class ModuleVariantBuilder:
    """Builds the variant of one imported module."""

    def __init__(
        self,
        module: ModuleType,
        original_text: str,
        patched_module: PatchedModule,
        slots: list[int],
        count_run: CountRun,
        get_original: GetOriginal,
    ) -> None:
        self.module = module
        self.filename: str = patched_module.path
        self.count_run = count_run
        self.tree = ast.parse(patched_module.text)
        self.patched_module = patched_module
        self.get_original = get_original
        names = "+".join(dict.fromkeys(f"{s.direction} {s.toggle}" for s in patched_module.sites))
        # A separate file name: the other functions of the file keep their own lines.
        self.virtual_filename = f"{PATCHED_CODE}{names} {patched_module.module}>"
        cache_source_lines(self.virtual_filename, patched_module.text)
        self.sites = list(zip(slots, patched_module.sites, strict=True))
        sites = [(slot, site.line, site.column) for slot, site in self.sites]
        self.compiled = compile_instrumented(
            self.tree, self.virtual_filename, sites, count_run, whole_module=False
        )
        self.running_code = original_code.compile_running_code(module, original_text, self.filename)
        self.original_definitions = original_code.parse_definitions(original_text)
        self.patched_paths = {
            id(node): path for path, node in live_functions.iterate_definitions(self.tree)
        }
        self.variant = ModuleVariant(module)
        self.handled_paths: set[Any] = set()
        self.changed_classes: dict[live_functions.DefinitionPath, dict[str, Any]] = {}

    def get_original_code(self, function: FunctionType) -> CodeType:
        now = (function.__code__,)
        code: CodeType = self.get_original(("function", id(function)), now)[0]
        return code

    def build(self) -> ModuleVariant:
        observed = Direction.OBSERVE.value
        # What changes comes first: a function that is changed and observed is built once.
        for site in sorted(self.patched_module.sites, key=lambda s: s.direction == observed):
            chain = list(iterate_enclosing_statements(self.tree, site.line, site.column))
            if not chain:
                raise PatchError(f"{site.target}: no statement at line {site.line}")
            # An observed kernel does not change: its launches are counted from outside.
            watched = any(is_jit_function(place.statement) for place in chain)
            if site.direction != observed or not watched:
                self._add_site(chain, site.target, site.direction != observed)
        for path, changed in self.changed_classes.items():
            self._add_class_patches(path, changed)
        if set(self.patched_paths.values()) - self.original_definitions.keys():
            text, known = self.patched_module.text, self.original_definitions
            self.variant.patches += added_code.make_added_functions(
                self.module, text, known, self._compile_added_function
            )
        for qualname, slots in self.compiled.kernels.items():
            kernel = jit_kernels.find_kernel(self.module, qualname)
            if kernel is None:
                refuse_live_change(qualname, "a kernel that its module does not hold by name")
            self.variant.watched_kernels.append((jit_kernels.unwrap_kernel(kernel), slots))
        if any(not isinstance(patch, KernelPatch) for patch in self.variant.patches):
            self.variant.patches.append(CachedAnswersPatch(self.module))
        return self.variant

    def _add_site(self, chain: list[StatementLocation], target: str, is_changed: bool) -> None:
        outer = next((p for p in chain if isinstance(p.statement, FUNCTION_NODES)), None)
        last = chain[-1].statement
        if outer is None:
            if isinstance(last, ast.Pass) and not is_changed:
                return  # the fix has a definition there
            if isinstance(last, ast.ClassDef):
                refuse_live_change(target, "a class's own header")
            classes = [p.statement for p in chain if isinstance(p.statement, ast.ClassDef)]
            if classes:
                self._add_class_statement(classes[-1], last, target, is_changed)
            else:
                self._add_module_names(chain, target, is_changed)
            return
        path = self.patched_paths[id(outer.statement)]
        if path not in self.original_definitions:
            return  # `added_code` adds it
        for place in chain:
            if isinstance(place.statement, FUNCTION_NODES):
                self._refuse_decorators(place.statement, target)
        if path in self.handled_paths:
            return
        self.handled_paths.add(path)
        if is_jit_function(outer.statement):
            self._add_kernel(path, target)
        else:
            self._add_function(path, outer.statement, target, is_changed)

    def _refuse_decorators(self, definition: Any, target: str) -> None:
        before: Any = self.original_definitions.get(self.patched_paths[id(definition)])
        if before is not None and _dump_nodes(before.decorator_list) != _dump_nodes(
            definition.decorator_list
        ):
            refuse_live_change(target, "a decorator's argument")

    # Functions

    def _add_function(
        self, path: live_functions.DefinitionPath, definition: Any, target: str, is_changed: bool
    ) -> None:
        before: Any = self.original_definitions[path]
        line = live_functions.get_first_line(before)
        holder = live_functions.find_bound_object(self.module, path)
        if type(holder).__module__.startswith(("torch.jit", "torch._C")):
            refuse_live_change(target, "a function that torch.jit has compiled")
        found = live_functions.find_live_functions(
            self.module, path, line, self.filename, self.get_original_code
        )
        if not found:
            raise PatchError(f"{target}: no live function was created at line {line}")
        code = live_functions.find_code(self.compiled.code, path)
        for function in found:
            own = self.get_original_code(function)
            if live_functions.make_behaviour_key(own) != live_functions.make_behaviour_key(
                live_functions.find_code(self.running_code, path)
            ):
                raise PatchError(
                    f"{self.filename} was edited after this process imported it: start again"
                )
            pairs = list(live_functions.iterate_changed_nested_code(own, code))
            if any(a.co_freevars != b.co_freevars for a, b in [(own, code), *pairs]):
                refuse_live_change(target, "the set of outer variables of a closure")
            defaults = self._compute_defaults(function, before, definition)
            changed = live_functions.list_changed_code(own, code) if is_changed else []
            if is_changed and defaults != (function.__defaults__, function.__kwdefaults__):
                changed.append(own)
                self.variant.changed_defaults.append((target, own.co_name))
            self.variant.changed_code += [(target, each.co_qualname, each) for each in changed]
            new = (code, *defaults)
            self.variant.patches.append(FunctionPatch(function, new))
            self.variant.closures += pairs
        self.variant.patches += [
            LruCachePatch(cache) for cache in live_functions.find_lru_caches(holder)
        ]
        self.variant.bindings.append((path, holder))

    def _compute_defaults(self, function: FunctionType, before: Any, after: Any) -> tuple[Any, Any]:
        """Compute the defaults after the edit; unchanged defaults stay the same objects."""
        old, new = before.args, after.args
        positional, keyword = function.__defaults__, function.__kwdefaults__
        scope = function.__globals__
        if _dump_nodes(old.defaults) != _dump_nodes(new.defaults):
            positional = tuple(_evaluate_default(e, scope) for e in new.defaults) or None
        if _dump_nodes(old.kw_defaults) != _dump_nodes(new.kw_defaults):
            keyword = {
                argument.arg: _evaluate_default(expression, scope)
                for argument, expression in zip(new.kwonlyargs, new.kw_defaults, strict=True)
                if expression is not None
            } or None
        return positional, keyword

    def _add_kernel(self, path: live_functions.DefinitionPath, target: str) -> None:
        bound = live_functions.find_bound_object(self.module, path)
        kernel = jit_kernels.unwrap_kernel(bound)
        if kernel is None:
            refuse_live_change(target, "a kernel that its module does not hold by name")
        old = kernel.fn
        code = live_functions.find_code(self.compiled.code, path)
        fresh = FunctionType(code, old.__globals__, old.__name__, old.__defaults__, old.__closure__)
        fresh.__kwdefaults__ = old.__kwdefaults__
        fresh.__annotations__ = old.__annotations__
        fresh.__qualname__ = old.__qualname__
        fresh.__module__ = old.__module__
        self.variant.patches.append(
            KernelPatch(kernel, jit_kernels.rebuild_attributes(kernel, fresh))
        )
        for wrapper in jit_kernels.list_wrappers(bound):
            self.variant.patches.append(
                KernelPatch(wrapper, jit_kernels.make_untuned_attributes(wrapper))
            )
        self.variant.patches += [
            CallerKernelPatch(caller) for caller in jit_kernels.find_compiled_callers(kernel)
        ]
        self.variant.bindings.append((path, bound))

    # Classes

    def _add_class_statement(
        self, definition: ast.ClassDef, statement: ast.stmt, target: str, is_changed: bool
    ) -> None:
        path = self.patched_paths[id(definition)]
        cls = live_functions.find_bound_object(self.module, path)
        before: Any = self.original_definitions.get(path)
        if not isinstance(cls, type) or before is None:
            raise PatchError(f"{target}: no live class has that name")
        if what := class_bodies.find_obstacle(cls, before, definition, statement):
            refuse_live_change(target, what)
        scope = dict(vars(cls))
        self._run_assignment(statement, vars(self.module), scope)
        changed = {name: scope[name] for name in iterate_assigned_names(statement) if name in scope}
        if is_changed:
            self.variant.changed_names += [(target, name, []) for name in changed]
            make = self.get_original(("class", id(cls), "__init__"), vars(cls).get("__init__"))
            if "__dataclass_fields__" in vars(cls) and isinstance(make, FunctionType):
                self.variant.changed_code.append((target, f"{cls.__name__}()", make.__code__))
        self.changed_classes.setdefault(path, {}).update(changed)

    def _add_class_patches(
        self, path: live_functions.DefinitionPath, changed_values: dict[str, Any]
    ) -> None:
        cls: type = live_functions.find_bound_object(self.module, path)
        now = vars(cls).get("__dataclass_fields__")
        own = self.get_original(("class", id(cls), "__dataclass_fields__"), now)
        for name, value in class_bodies.compute_attributes(cls, changed_values, own).items():
            self.variant.patches.append(ClassAttributePatch(cls, name, value))
        self.variant.bindings.append((path, cls))

    def _compile_added_function(
        self, definition: ast.FunctionDef | ast.AsyncFunctionDef
    ) -> CodeType:
        line = definition.lineno
        slots = [slot for slot, site in self.sites if site.line <= line <= site.end_line]
        return compile_function(
            definition, self.virtual_filename, slots, self.count_run, self.flags
        )

    def _run_assignment(
        self, statement: ast.stmt, scope: dict[str, Any], names: dict[str, Any]
    ) -> None:
        """Run one assignment of the patched module for its value."""
        names["__annotations__"] = {}
        module = ast.Module([statement], [])
        exec(
            compile(module, self.virtual_filename, "exec", flags=self.flags, dont_inherit=True),
            scope,
            names,
        )

    @property
    def flags(self) -> int:
        """The flags of the compiler that the module's text sets."""
        modules = {each.module for each in self.tree.body if isinstance(each, ast.ImportFrom)}
        return __future__.annotations.compiler_flag if "__future__" in modules else 0

    # Modules

    def _add_module_names(
        self, chain: list[StatementLocation], target: str, is_changed: bool
    ) -> None:
        statement = chain[-1].statement
        if len(chain) == 1 and isinstance(statement, ast.Import | ast.ImportFrom):
            names: dict[str, Any] = {}
            if is_changed:
                self._run_assignment(statement, vars(self.module), names)
            self.variant.patches += added_code.make_added_names(self.module, names)
            return
        assigned = set(iterate_assigned_names(statement))
        if len(chain) > 1 or not assigned or not isinstance(statement, (ast.Assign, ast.AnnAssign)):
            refuse_live_change(target, "this part of a module")
        scope = dict(vars(self.module))
        self._run_assignment(statement, scope, scope)
        for name in assigned:
            self._add_module_name(name, scope[name], target, is_changed)
        for place, _, kernel in iterate_constant_readers(self.tree, assigned):
            self._count_reader(place, kernel, target)

    def _add_module_name(self, name: str, value: Any, target: str, is_changed: bool) -> None:
        now = vars(self.module).get(name, MISSING)
        if now is MISSING:
            raise PatchError(f"{target}: the imported module has no {name}")
        old = self.get_original(("name", id(vars(self.module)), name), now)
        holders = find_importers(self.module, name, old)
        if now is not old:
            holders += find_importers(self.module, name, now)
        holders.insert(0, (self.module, name))
        if is_changed:
            self.variant.changed_names.append((target, name, holders))
        for holder, alias in holders:
            self.variant.patches.append(ModuleNamePatch(vars(holder), alias, value))
            self.variant.patches += [
                CallerKernelPatch(k) for k in jit_kernels.find_compiled_readers(vars(holder), alias)
            ]
        self.variant.constants.append((name, old, value))

    def _count_reader(self, location: StatementLocation, kernel: str, target: str) -> None:
        """Count the runs of a function that reads a changed constant; its code is the same."""
        statement = location.statement
        outer = next(
            p
            for p in iterate_enclosing_statements(self.tree, statement.lineno, statement.col_offset)
            if isinstance(p.statement, FUNCTION_NODES)
        )
        path = self.patched_paths[id(outer.statement)]
        if not kernel and path not in self.handled_paths:
            self.handled_paths.add(path)
            self._add_function(path, outer.statement, target, False)


def _dump_nodes(nodes: Any) -> list[str]:
    return [ast.dump(node) if node is not None else "" for node in nodes]


def _evaluate_default(expression: ast.expr, scope: dict[str, Any]) -> Any:
    return eval(compile(ast.Expression(expression), "<unfix default>", "eval"), scope)
