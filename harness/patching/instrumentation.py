"""Compiles patched source so that each toggled statement counts its runs.

Invariant: the source text does not change, so tracebacks and `inspect` show the patched lines. The
counting call goes into the syntax tree, before the statement of the edit and on its line: for an
edit in line 7, `return rows * 2`, line 7 compiles as `counter.hit(); return rows * 2`. An edit in a
part that may not run, as in `a if b else rows * 2`, counts there: `a if b else (counter.hit() or
rows * 2)`. The body of a Triton kernel is never changed (Triton compiles its source): its launches
are counted from outside.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import CodeType
from typing import Any

COUNTER_PREFIX = "__unfix_place_"
CountRun = Callable[[int], None]
JIT_DECORATOR = re.compile(r"^(?!torch\.|numba\.)(\w+\.)*jit\b")
# Handlers of a `try` and cases of a `match` hold statement lists of their own.
STATEMENT_HOLDERS = (ast.ExceptHandler, ast.match_case)
FUNCTION_NODES = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITION_NODES = (*FUNCTION_NODES, ast.ClassDef)


@dataclass
class InstrumentedModule:
    """The compiled module, how each slot is counted, and which kernels count for which slots."""

    code: CodeType
    kinds: dict[int, str]
    kernels: dict[str, list[int]] = field(default_factory=dict)


@dataclass
class StatementLocation:
    """A statement, and the list of statements that contains it."""

    statement: ast.stmt
    siblings: list[ast.stmt]


@dataclass
class ExpressionLocation:
    """A part of an expression that may not run when its statement does."""

    parent: ast.expr
    name: str  # its field in the parent
    index: int = 0  # in a list

    @property
    def part(self) -> ast.expr:
        value: Any = getattr(self.parent, self.name)
        part: ast.expr = value[self.index] if isinstance(value, list) else value
        return part

    def replace_part(self, part: ast.expr) -> None:
        value = getattr(self.parent, self.name)
        if isinstance(value, list):
            value[self.index] = part
        else:
            setattr(self.parent, self.name, part)


def compile_instrumented(
    tree: ast.Module,
    filename: str,
    sites: list[tuple[int, int, int]],
    count_run: CountRun,
    whole_module: bool = True,
) -> InstrumentedModule:
    """Compile a module; `sites` are the (slot, line, column) where each edit begins.

    Without `whole_module`, only the definitions that contain a site are compiled.
    """
    kinds: dict[int, str] = {}
    kernels: dict[str, list[int]] = {}
    # Locate all sites first: an insertion would move the statements of later sites.
    insertions: list[tuple[StatementLocation, int, str]] = []
    parts: list[tuple[ExpressionLocation, int]] = []
    for slot, line, column in sites:
        for place, where, kernel in _iterate_count_locations(tree, line, column):
            if kernel:
                kernels.setdefault(kernel, []).append(slot)
                kinds[slot] = "launches"
            else:
                part = _find_conditional_part(place.statement, line, column)
                if part is not None and where == "before":
                    parts.append((part, slot))
                else:
                    insertions.append((place, slot, where))
                kinds.setdefault(slot, "definitions" if where == "after" else "runs")
    for part, slot in parts:
        _insert_count_into_expression(part, slot)
    for place, slot, where in insertions:
        _insert_count_call(place, slot, where)
    if not whole_module:
        places = [(line, column) for _, line, column in sites]
        statements = [place.statement for place, _, _ in insertions]
        places += [(statement.lineno, statement.col_offset) for statement in statements]
        tree = ast.Module(_select_needed_statements(tree, places), [])
    code = compile(tree, filename, "exec", dont_inherit=True)
    return InstrumentedModule(_insert_counters(code, count_run), kinds, kernels)


def compile_function(
    definition: ast.FunctionDef | ast.AsyncFunctionDef,
    filename: str,
    slots: list[int],
    count_run: CountRun,
    flags: int,
) -> CodeType:
    """Compile a function that counts each of its runs for these slots."""
    definition.body[:0] = [
        ast.copy_location(ast.Expr(_make_count_call(slot, definition)), definition)
        for slot in slots
    ]
    module = ast.fix_missing_locations(ast.Module([definition], []))
    code = compile(module, filename, "exec", flags=flags, dont_inherit=True)
    return _insert_counters(code, count_run)


def _select_needed_statements(tree: ast.Module, positions: list[tuple[int, int]]) -> list[ast.stmt]:
    """Definitions are found by name and ordinal: if one is needed, all of its name stay."""
    names = set()
    for line, column in positions:
        chain = (place.statement for place in iterate_enclosing_statements(tree, line, column))
        names |= {one.name for one in chain if isinstance(one, DEFINITION_NODES)}
    return [one for one in tree.body if not isinstance(one, DEFINITION_NODES) or one.name in names]


class SlotCounter:
    """The object of the counting call.

    It is a constant of the code object: no module name refers to it, and a frame that outlives its
    toggle can still count.
    """

    __slots__ = ("hit",)

    def __init__(self, count_run: CountRun, slot: int) -> None:
        self.hit = partial(count_run, slot)


def _insert_counters(code: CodeType, count_run: CountRun) -> CodeType:
    constants: list[Any] = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            constants.append(_insert_counters(constant, count_run))
        elif isinstance(constant, str) and constant.startswith(COUNTER_PREFIX):
            constants.append(SlotCounter(count_run, int(constant.removeprefix(COUNTER_PREFIX))))
        else:
            constants.append(constant)
    return code.replace(co_consts=tuple(constants))


def _make_count_call(slot: int, place: ast.expr | ast.stmt) -> ast.Call:
    counter = ast.Attribute(ast.Constant(f"{COUNTER_PREFIX}{slot}"), "hit", ast.Load())
    call = ast.Call(counter, [], [])
    for node in ast.walk(call):
        ast.copy_location(node, place)
        if isinstance(node, ast.expr):
            node.end_lineno, node.end_col_offset = node.lineno, node.col_offset
    return call


def _insert_count_into_expression(location: ExpressionLocation, slot: int) -> None:
    part = location.part
    counted = ast.BoolOp(ast.Or(), [_make_count_call(slot, part), part])  # the call returns None
    location.replace_part(ast.copy_location(counted, part))


def _insert_count_call(location: StatementLocation, slot: int, where: str) -> None:
    call = ast.copy_location(
        ast.Expr(_make_count_call(slot, location.statement)), location.statement
    )
    call.end_lineno, call.end_col_offset = call.lineno, call.col_offset
    if where == "inside":
        body = location.statement.body  # type: ignore[attr-defined]
        first = body[0]
        has_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        body.insert(1 if has_docstring else 0, call)
        return
    position = next(i for i, s in enumerate(location.siblings) if s is location.statement)
    location.siblings.insert(position + (1 if where == "after" else 0), call)


def _iterate_count_locations(
    tree: ast.Module, line: int, column: int
) -> Iterator[tuple[StatementLocation, str, str]]:
    """Yield where a site counts: (location, before | after | inside, kernel's name or '')."""
    chain = list(iterate_enclosing_statements(tree, line, column))
    if not chain:
        return
    kernel = _find_kernel_name(chain)
    last = chain[-1]
    if kernel:
        yield last, "", kernel
    elif isinstance(last.statement, FUNCTION_NODES):
        yield last, "inside", ""
    elif any(isinstance(place.statement, FUNCTION_NODES) for place in chain):
        yield last, "before", ""
    else:
        names = set(iterate_assigned_names(last.statement)) if len(chain) == 1 else set()
        reading = list(iterate_constant_readers(tree, names)) if names else []
        yield from reading or [(last, "after", "")]


def _find_conditional_part(
    statement: ast.stmt, line: int, column: int
) -> ExpressionLocation | None:
    """Find the innermost part around a position that may not run: of `and`, `or`, `if`, a lambda.

    An edit that begins where the whole expression does may be of all of it.
    """
    found = None
    for parent in ast.walk(statement):
        if isinstance(parent, ast.BoolOp):
            behind = range(1, len(parent.values))
            locations = [ExpressionLocation(parent, "values", index) for index in behind]
        elif isinstance(parent, ast.IfExp):
            locations = [ExpressionLocation(parent, name) for name in ("body", "orelse")]
        elif isinstance(parent, ast.Lambda):
            locations = [ExpressionLocation(parent, "body")]
        else:
            continue
        if (parent.lineno, parent.col_offset) != (line, column):
            around = (at for at in locations if _contains_position(at.part, line, column))
            found = next(around, found)
    return found


def iterate_enclosing_statements(
    owner: ast.AST, line: int, column: int
) -> Iterator[StatementLocation]:
    """Yield the statements around a position, outermost first."""
    for siblings in _iterate_statement_lists(owner):
        for statement in siblings:
            if _contains_position(statement, line, column):
                yield StatementLocation(statement, siblings)
                yield from iterate_enclosing_statements(statement, line, column)
                return


def _iterate_statement_lists(owner: ast.AST) -> Iterator[list[ast.stmt]]:
    for _, value in ast.iter_fields(owner):
        if isinstance(value, list) and value:
            if isinstance(value[0], ast.stmt):
                yield value
            else:
                for item in value:
                    if isinstance(item, STATEMENT_HOLDERS):
                        yield from _iterate_statement_lists(item)


def _contains_position(statement: ast.stmt | ast.expr, line: int, column: int) -> bool:
    first = (statement.lineno, statement.col_offset)
    for decorator in getattr(statement, "decorator_list", []):
        first = min(first, (decorator.lineno, max(0, decorator.col_offset - 1)))
    last = (statement.end_lineno or 0, statement.end_col_offset or 0)
    return first <= (line, column) < last


def is_jit_function(function: ast.AST) -> bool:
    return isinstance(function, ast.FunctionDef) and any(
        JIT_DECORATOR.match(ast.unparse(decorator)) for decorator in function.decorator_list
    )


def _find_kernel_name(chain: list[StatementLocation]) -> str:
    names: list[str] = []
    for place in chain:
        if isinstance(place.statement, DEFINITION_NODES):
            names.append(place.statement.name)
            if is_jit_function(place.statement):
                return ".".join(names)
    return ""


def iterate_assigned_names(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that an assignment binds in its own scope."""
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    for target in targets:
        for node in ast.walk(target) if target is not None else ():
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


def has_local_name(function: ast.AST, name: str) -> bool:
    """Return whether a name is local to a function: a parameter, or assigned without `global`."""
    if isinstance(function, FUNCTION_NODES):
        arguments = function.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every += [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
        if any(argument.arg == name for argument in every):
            return True
    inside = list(ast.walk(function))
    if any(isinstance(node, ast.Global) and name in node.names for node in inside):
        return False
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for node in inside
    )


def iterate_constant_readers(
    tree: ast.Module, names: set[str]
) -> Iterator[tuple[StatementLocation, str, str]]:
    """Yield the statements inside functions that read one of a module's constants."""
    seen: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load):
            chain = list(iterate_enclosing_statements(tree, node.lineno, node.col_offset))
            inside = [place for place in chain if isinstance(place.statement, FUNCTION_NODES)]
            if not inside or id(chain[-1].statement) in seen:
                continue
            if any(has_local_name(place.statement, node.id) for place in inside):
                continue
            seen.add(id(chain[-1].statement))
            kernel = _find_kernel_name(chain)
            where = "inside" if isinstance(chain[-1].statement, FUNCTION_NODES) else "before"
            yield chain[-1], where, kernel
