"""Triton's interpreter under check: the one package here that knows Triton's internals."""

from harness.checking.interpreter.launching import Interpreter

__all__ = ["Interpreter"]
