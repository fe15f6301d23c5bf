"""Reads a matrix file for one of the two commands; every error names the line.

A file with `axes` alone is for `unfix matrix`, one with `configurations` alone for `unfix eval`.
The wrong command names the right one.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from harness.core.yaml_document import YamlDocument, find_named_file
from harness.matrices.schema import MatrixFile

MATRICES_FOLDER = "suites/matrices"
LISTED, COVERED = "configurations", "axes"
COMMANDS = {LISTED: "unfix eval", COVERED: "unfix matrix run"}
COMMON_KEYS = {"name", "seed"}
COVERED_KEYS = {COVERED, "run", "constraints", "strength", "seeds", "cells"}
KEYS = {
    LISTED: {field.encode_name for field in msgspec.structs.fields(MatrixFile)}
    - COMMON_KEYS
    - COVERED_KEYS,
    COVERED: COVERED_KEYS,
}


def find_matrix_file(name: str) -> Path:
    """Find a matrix by its path, or one of the project's own by its name."""
    return find_named_file(name, MATRICES_FOLDER, "matrix")


def read_matrix_file(file: Path, part: str) -> tuple[YamlDocument, MatrixFile]:
    """Read a file with the part that a command needs, `configurations` or `axes`."""
    document = YamlDocument(file)
    matrix = document.convert_to(MatrixFile)
    for main, keys in KEYS.items():
        stray = [key for key in document.values if key in keys]
        if stray and main not in document.values:
            raise document.make_error_at(f"missing key `{main}`: `{stray[0]}` needs it", stray[0])
    if part not in document.values:
        other = LISTED if part is COVERED else COVERED
        if other not in document.values:
            raise document.make_error(1, f"missing key `{part}`")
        problem = f"a matrix of {other}, without {part}: run it by `{COMMANDS[other]}`"
        raise document.make_error_at(problem, other)
    if part is COVERED and not matrix.run:
        raise document.make_error_at("missing key `run`", COVERED)
    return document, matrix
