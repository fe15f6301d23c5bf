"""What all reports of an audit say alike."""

from __future__ import annotations

import ast
import functools
import linecache
import zipfile
from pathlib import Path

from harness.audit.findings import Finding, Kind, Verdict
from harness.audit.run import Audit


def sentence(found: Audit) -> str:
    counts = found.counted()
    told = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    confirmed = sum(one.is_confirmed for one in found.findings)
    return (
        f"{len(found.kernels)} kernels of {found.release}: {told}; "
        f"{len(found.findings)} findings, {confirmed} confirmed"
    )


def place(finding: Finding) -> str:
    return f"{short(finding.file)}:{finding.line}"


def reached(finding: Finding) -> list[str]:
    """Which models come there, and what of a server has to let them."""
    by = f" ({finding.setting})" if finding.setting else ""
    wraps = finding.kind is Kind.WRAPS
    when = "from {} = {:,} on" if wraps else "at {} = {:,}" if finding.quantity else "at any load"
    return [
        f"{one.model}: {when.format(finding.quantity, one.threshold)}{by}"
        for one in finding.reaches
        if one.threshold
    ]


def short(file: str) -> str:
    """From the package on."""
    parts = file.replace("!", "/").split("/")
    return "/".join(parts[parts.index("sglang") :]) if "sglang" in parts else file


def reasons(found: Audit) -> list[tuple[str, int]]:
    """Why something cannot be told, the most frequent first."""
    counts: dict[str, int] = {}
    for kernel in found.kernels:
        if kernel.verdict is Verdict.UNTOLD:
            for reason in kernel.reasons[:1]:
                counts[reason] = counts.get(reason, 0) + 1
    return sorted(counts.items(), key=lambda one: (-one[1], one[0]))


@functools.lru_cache(maxsize=256)
def lines(file: str) -> tuple[str, ...]:
    if ".whl" in file:
        wheel, _, path = file.partition(".whl")
        with zipfile.ZipFile(f"{wheel}.whl") as opened:
            return tuple(opened.read(path.lstrip("/!")).decode().splitlines())
    return tuple(one.rstrip("\n") for one in linecache.getlines(file))


def around(finding: Finding, before: int = 8, after: int = 4) -> list[tuple[int, str, bool]]:
    """The code near a finding: number, line, whether it is the one."""
    text = lines(finding.file)
    first = max(0, finding.line - 1 - before)
    return [
        (number + 1, text[number], number + 1 == finding.line)
        for number in range(first, min(len(text), finding.line + after))
    ]


def mend(finding: Finding) -> str:
    """What would do: the first factor that a program or a load gives, made 64 bits wide."""
    if finding.kind is Kind.OVERRUNS:
        return f"a mask that ends where `{finding.element}` ends, or a larger `{finding.element}`"
    try:
        tree = ast.parse(finding.text.rstrip(",").lstrip("+ "))
    except SyntaxError:
        return "a cast of the row's number to tl.int64 before it is multiplied"
    products = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
    ]
    if not products:
        return "a cast to tl.int64 before the sum"
    first = ast.unparse(products[-1].left)
    return f"`{first}.to(tl.int64)` in place of `{first}`"


def name(file: str) -> str:
    return Path(file).name
