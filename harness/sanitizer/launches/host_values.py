"""Numbers of the host that a captured launch keeps, with the object that held each.

A graph keeps a launch's numbers as they were at the capture. The call that launched is found by its
place in the source; each `object.name` in its arguments that is a number is remembered with the
object, also through the parameters and plain variables of the functions between. Example:

    def forward(self, x):            # self.scale is 2.0
        run(x, factor=self.scale)

    def run(x, factor):
        y = factor * 2
        kernel[(1,)](x, y)           # keeps scale of the object `self`: 2.0

At a replay the same object is asked again. A number of a module's global variable is the module's.
An object that is gone says nothing, and neither does one that was replaced by another: a server has
such an object for each size of a batch, and its current one is often that of another batch.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import linecache
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch

from harness.sanitizer.launches.call_stacks import iterate_program_frames
from harness.sanitizer.launches.device_launch import DeviceLaunch

GONE = object()  # what a dead object says
_MAX_FRAMES = 8
_MAX_VARIABLES = 8  # followed from one argument
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class CapturedNumber:
    """`expression` was `captured`: an attribute of an object, or a tensor of the host."""

    launch: DeviceLaunch
    expression: str
    captured: Any
    holder: Any  # a weak reference
    attribute: str

    def read(self) -> Any:
        holder = self.holder()
        if holder is None:
            return GONE
        if not self.attribute:
            return holder.item()
        return getattr(holder, self.attribute, GONE)


def find_host_values(launch: DeviceLaunch, arguments: Any) -> list[CapturedNumber]:
    """Find the numbers that the call of the innermost program frame passes on."""
    found = {
        (value.expression, id(value.holder())): value
        for expression, holder, attribute, number in _iterate_attributes()
        if (value := _remember_number(launch, expression, holder, attribute, number)) is not None
    }
    scalars = (
        _remember_number(
            launch, f"a tensor of the host ({scalar.item()!r})", scalar, "", scalar.item()
        )
        for scalar in _iterate_host_scalars(arguments)
    )
    return [*found.values(), *(value for value in scalars if value is not None)]


def _remember_number(
    launch: DeviceLaunch, expression: str, holder: Any, attribute: str, number: Any
) -> CapturedNumber | None:
    try:
        return CapturedNumber(launch, expression, number, weakref.ref(holder), attribute)
    except TypeError:  # it cannot be referenced weakly, and nothing may live longer for a check
        return None


def _iterate_host_scalars(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.device.type == "cpu" and not value.dim():
            yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _iterate_host_scalars(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _iterate_host_scalars(one)


# Attributes in the source of the calls


def _iterate_attributes() -> Iterator[tuple[str, Any, str, Any]]:
    """Yield each attribute in the arguments of the calls on the stack: its text, holder, name."""
    wanted: set[str] | None = None  # names of the frame's parameters; None: all arguments
    for _, frame in zip(range(_MAX_FRAMES), iterate_program_frames(), strict=False):
        call = _find_call(frame)
        if call is None:
            return
        parameters: set[str] = set()
        for name, expression in _iterate_arguments(call):
            if wanted is None or name in wanted:
                yield from _follow_expression(frame, expression, parameters)
        if not parameters:
            return
        wanted = _name_positions(frame.f_code, parameters)


def _name_positions(code: CodeType, parameters: set[str]) -> set[str]:
    """Return parameters by name and, as a number, by position in a call, with and without self."""
    names = code.co_varnames[: code.co_argcount]
    positions = {str(place) for place, name in enumerate(names) if name in parameters}
    if names[:1] == ("self",) or names[:1] == ("cls",):
        positions = {str(int(place) - 1) for place in positions}
    return parameters | positions


def _iterate_arguments(call: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield the arguments by keyword, or by position as a number; of an operator, its operands."""
    if not isinstance(call, ast.Call):
        for place, one in enumerate(ast.iter_child_nodes(call)):
            if isinstance(one, ast.expr):
                yield str(place), one
        return
    for place, one in enumerate(call.args):
        if isinstance(one, ast.Starred):
            break
        yield str(place), one
    for keyword in call.keywords:
        if keyword.arg is not None:
            yield keyword.arg, keyword.value


def _follow_expression(
    frame: FrameType, expression: ast.expr, parameters: set[str]
) -> Iterator[tuple[str, Any, str, Any]]:
    """Yield the numeric attributes of an expression; add the parameters that it depends on."""
    function = _find_function(frame.f_code)
    own = set(frame.f_code.co_varnames[: frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount])
    waiting, seen = [expression], set[str]()
    while waiting and len(seen) < _MAX_VARIABLES:
        for node in _walk_values(waiting.pop()):
            if isinstance(node, ast.Attribute):
                holder = _evaluate_chain(frame, node.value)
                number = getattr(holder, "__dict__", {}).get(node.attr, GONE)
                if type(number) in (int, float, bool):
                    yield ast.unparse(node), holder, node.attr, number
            elif isinstance(node, ast.Name) and node.id not in seen:
                seen.add(node.id)
                number = _read_variable(frame, node.id)
                if type(number) not in (int, float, bool):
                    continue
                if (module := _find_module(frame, node.id)) is not None:
                    yield node.id, module, node.id, number
                    continue
                assigned = _find_assignments(function, node.id)
                if node.id in own and not assigned:
                    parameters.add(node.id)
                elif len(assigned) == 1:
                    waiting.append(assigned[0])


def _walk_values(expression: ast.expr) -> Iterator[ast.AST]:
    """Walk what an expression's value is made of: conditions and the holders of attributes are not.

    `a.b if c.d else e` depends on c.d, too, and is followed to a.b and e alone.
    """
    waiting: list[ast.AST] = [expression]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.IfExp):
            waiting += [node.body, node.orelse]
        elif isinstance(node, ast.Call):
            waiting += node.args
        elif isinstance(node, (ast.BinOp, ast.UnaryOp)):
            waiting += ast.iter_child_nodes(node)


def _evaluate_chain(frame: FrameType, expression: ast.expr) -> Any:
    """Return what a chain of names stands for, without calling anything; None if it is unknown."""
    if isinstance(expression, ast.Name):
        return _read_variable(frame, expression.id)
    if isinstance(expression, ast.Attribute):
        holder = _evaluate_chain(frame, expression.value)
        return getattr(holder, "__dict__", {}).get(expression.attr)
    return None


def _read_variable(frame: FrameType, name: str) -> Any:
    """Return a variable's value; the frame keeps no references for it.

    Until Python 3.12 a frame keeps the dictionary that `f_locals` makes, with all that is in it: a
    tensor would then live on that the program has dropped.
    """
    variables = frame.f_locals
    try:
        return variables.get(name, frame.f_globals.get(name))
    finally:
        if isinstance(variables, dict) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            variables.clear()


def _find_module(frame: FrameType, name: str) -> ModuleType | None:
    """Return the module that a global variable of a frame is in."""
    code = frame.f_code
    if name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
        return None
    module = sys.modules.get(frame.f_globals.get("__name__", ""))
    is_global = (
        module is not None and module.__dict__ is frame.f_globals and name in frame.f_globals
    )
    return module if is_global else None


@functools.lru_cache(maxsize=512)
def _parse_file(file: str) -> ast.Module | None:
    with contextlib.suppress(SyntaxError, ValueError):
        return ast.parse("".join(linecache.getlines(file)))
    return None


@functools.lru_cache(maxsize=4096)
def _find_function(code: CodeType) -> _Function | None:
    tree = _parse_file(code.co_filename)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name:
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


def _find_assignments(function: _Function | None, name: str) -> list[ast.expr]:
    return [
        node.value
        for node in (ast.walk(function) if function is not None else ())
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and target.id == name
    ]


def _find_call(frame: FrameType) -> ast.expr | None:
    return _find_call_at(frame.f_code, frame.f_lasti)


@functools.lru_cache(maxsize=16384)
def _find_call_at(code: CodeType, instruction: int) -> ast.expr | None:
    """Return the call or the operator that an instruction runs."""
    positions = getattr(code, "co_positions", None)
    if positions is None or instruction < 0:
        return None
    wanted = next(
        (place for number, place in enumerate(positions()) if number == instruction // 2), None
    )
    tree = _parse_file(code.co_filename)
    if wanted is None or tree is None:
        return None
    for node in ast.walk(tree):
        if isinstance(node, (ast.Call, ast.BinOp)):
            place = (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset)
            if place == wanted:
                return node
    return None
