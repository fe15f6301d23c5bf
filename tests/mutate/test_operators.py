"""Operators: the faults of each in code of its kind, the code that all skip, and their pages."""

from __future__ import annotations

import re

import pytest
from small import list_changed_lines, list_cpp_lines, make_faults

from harness.core import paths
from harness.fixes.registry import toggle_catalogue
from harness.runs.mutate import operators
from harness.runs.mutate.mutation_operator import MutationOperator

OPERATORS = list(operators.load_operators().values())
PAGES = paths.project_folder() / "docs" / "operators"

# An operator, code, and the lines that its faults write, in the order of the source.
CASES = [
    (
        "drop-addend",
        """
        def f(base, prefix_len, rows):
            first = base + prefix_len
            place = rows * 2 - offset
            first += prefix_len
            names = ["a"] + extra
            return 1 + kinds
        """,
        ["first = base", "first = prefix_len", "place = rows * 2", "pass", "return kinds"],
    ),
    (
        "drop-clamp",
        """
        def f(rows, limit, place):
            a = tl.minimum(place, limit - 1)
            b = place.clamp(min=0, max=limit)
            c = max(rows, 1)
            return min(rows)
        """,
        ["a = limit - 1", "a = place", "b = place", "c = rows"],
    ),
    (
        "drop-size-factor",
        """
        def f(self, bs, topk, length):
            rows = torch.zeros((bs * topk * length,), dtype=torch.int32)
            size = bs * topk + 1
            other = torch.empty(size)
            width = row_width(self.topk, 4)
            return rows * topk
        """,
        [
            "rows = torch.zeros((bs * length,), dtype=torch.int32)",
            "rows = torch.zeros((topk * length,), dtype=torch.int32)",
            "rows = torch.zeros((bs * topk,), dtype=torch.int32)",
            "size = bs + 1",
            "size = topk + 1",
            "width = row_width(1, 4)",
        ],
    ),
    (
        "drop-size-factor",
        """
        def row_width(steps, topk):
            return steps * topk

        def row_place(steps, topk):
            return steps * topk
        """,
        ["return steps", "return topk"],
    ),
    (
        "keep-stale",
        """
        def f(self, n):
            self.table.fill_(0)
            self.lens[:n].copy_(lens)
            self.cache = None
            self.buffer[n:] = 0
            self.size = 0
            found = []
            out.append(n)
        """,
        ["pass"] * 4,
    ),
    (
        "lose-last-iteration",
        """
        def f(n, blocks):
            for i in range(n): pass
            for i in range(0, n, 4): pass
            for i in range(n + 1): pass
            for block in blocks: pass
            while i < n: pass
            for i in range(1): pass
            for i, block in enumerate(blocks): pass
        """,
        [
            "for i in range(n - 1): pass",
            "for i in range(0, n - 4, 4): pass",
            "for i in range(n): pass",
            "for block in list(blocks)[:-1]: pass",
            "while i < n - 1: pass",
        ],
    ),
    (
        "narrow-int64",
        """
        def f(row, stride, n):
            place = row.to(tl.int64) * stride
            wide = tl.cast(row, tl.int64)
            ids = torch.zeros(n, dtype=torch.int64)
            locs = ids.long()
            half = row.to(tl.int32)
        """,
        [
            "place = row * stride",
            "wide = row",
            "ids = torch.zeros(n, dtype=torch.int32)",
            "locs = ids.int()",
        ],
    ),
    (
        "neighbours-row",
        """
        @triton.jit
        def f(out_ptr, lens_ptr, stride):
            mine = tl.program_id(0)
            lane = tl.arange(0, 4)
            n = tl.load(lens_ptr + mine)
            tl.store(out_ptr + mine * stride + lane, n)
        """,
        ["n = tl.load(lens_ptr + (mine + 1))", "tl.store(out_ptr + (mine + 1) * stride + lane, n)"],
    ),
    (
        "neighbours-row",
        """
        def f(lens, table, req_idx, n):
            for i in range(n):
                out.append(lens[i])
            return table[req_idx, :n] + lens[n]
        """,
        ["out.append(lens[i - 1])", "return table[req_idx - 1, :n] + lens[n]"],
    ),
    (
        "off-by-one",
        """
        @triton.jit
        def f(out_ptr, n, stride):
            row = tl.program_id(0)
            place = row * stride
            live = lane < n
            return tl.load(out_ptr + place + lane, mask=live)
        """,
        ["place = row * (stride + 1)", "live = lane <= n"],
    ),
    (
        "off-by-one",
        """
        def f(table, length, kind):
            if length >= limit: pass
            if kind < other: pass
            a = table[:, :length]
            b = table[: length + 1]
            return table[:4], table[:-1]
        """,
        ["if length > limit: pass", "a = table[:, :length - 1]", "b = table[: length]"],
    ),
    (
        "padded-for-real",
        """
        def f(num_tokens, padded_num_tokens, bs, max_bs, other):
            grid = (num_tokens,)
            rows = padded_num_tokens
            return max_bs, other
        """,
        ["grid = (padded_num_tokens,)", "rows = num_tokens", "return bs, other"],
    ),
    (
        "padded-for-real",
        """
        def f(bs):
            early = bs
            max_bs = early + 1
            return bs
        """,
        ["return max_bs"],
    ),
    (
        "round-down",
        """
        def f(n, page_size):
            a = cdiv(n, page_size)
            b = (n + page_size - 1) // page_size
            c = (n + 127) // 128
            e = (n + k + size - 1) // size * size
            d = ceil_align(n + 1, page_size)
            return n // page_size
        """,
        [
            "a = n // page_size",
            "b = n // page_size",
            "c = n // 128",
            "e = (n + k) // size * size",
            "d = (n + 1) // page_size * page_size",
        ],
    ),
    (
        "round-down",
        """
        def f(seq_len, size):
            if seq_len > max_len:
                seq_len = cdiv(seq_len, size)
                raise ValueError
            größe = "é😀"; pages = [
                "é", cdiv(seq_len, size),
            ]
        """,
        ["seq_len = seq_len // size", '"é", seq_len // size,'],
    ),
    (
        "shrink-buffer",
        """
        def f(self, bs, page_size):
            a = torch.empty((bs + 1,))
            b = torch.zeros(bs, 4)
            size = bs + page_size
            c = torch.zeros(size)
            return other(bs)
        """,
        [
            "a = torch.empty((bs,))",
            "b = torch.zeros(bs - 1, 4)",
            "size = bs + page_size - page_size",
            "c = torch.zeros(size - 1)",
        ],
    ),
    (
        "skip-translation",
        """
        def f(self, pages, index):
            a = self.page_table[index]
            b = self.pool.translate_loc(pages)
            c = names[index]
            page_table[index] = 1
            kernel_map[grid](a)
        """,
        ["a = index", "b = pages"],
    ),
    (
        "skip-translation",
        """
        @triton.jit
        def f(table_ptr, keys_ptr, lane):
            a = tl.load(table_ptr + lane)
            return tl.load(keys_ptr + a)
        """,
        ["a = lane"],
    ),
    (
        "swap-arguments",
        """
        def f(kv_indptr, qo_indptr, out, topk):
            launch(kv_indptr, qo_indptr, out)
            launch(out, kv_indptr, topk)
            plan(a=kv_indptr, b=qo_indptr)
            return max(prefix_len, seq_len)
        """,
        ["launch(qo_indptr, kv_indptr, out)", "plan(a=qo_indptr, b=kv_indptr)"],
    ),
    (
        "widen-mask",
        """
        @triton.jit
        def f(out, lane, live, owned):
            tl.store(out + lane, 1, mask=live & owned)
            return tl.load(out + lane, mask=live, other=0)
        """,
        [
            "tl.store(out + lane, 1, mask=live)",
            "tl.store(out + lane, 1, mask=owned)",
            "return tl.load(out + lane)",
        ],
    ),
    (
        "widen-mask",
        """
        def f(flags, lens):
            live = (lens > 0) & valid
            return flags & bits
        """,
        ["live = lens > 0", "live = valid"],
    ),
    (
        "wrong-branch",
        """
        def f(self, mode, topk, fast):
            if mode.is_target_verify() and topk > 1: return 1
            if mode.is_decode(): return 2
            if fast: return 3
            if not fast: return 4
            if self.kind == "ragged": return 5
            if table is None: return 6
            if is_cuda(): return 7
            if topk > limit: raise ValueError
            if is_extend(batch): return 8
            return is_extend(batch)
        """,
        [
            "if mode.is_extend() and topk > 1: return 1",
            "if mode.is_target_verify(): return 1",
            "if topk > 1: return 1",
            "if mode.is_decode_or_idle(): return 2",
            "if not fast: return 3",
            "if fast: return 4",
            'if self.kind != "ragged": return 5',
            "if not is_extend(batch): return 8",
        ],
    ),
]


@pytest.mark.parametrize(("name", "code", "wanted"), CASES)
def test_an_operator_finds_the_places_of_its_kind(name: str, code: str, wanted: list[str]) -> None:
    assert sorted(list_changed_lines(code, name)) == sorted(wanted)


def test_every_operator_has_a_case_and_a_page_and_a_row_of_the_table() -> None:
    in_python = {o.name for o in OPERATORS if o.find_changes is not None}
    assert {name for name, _, _ in CASES} == in_python
    assert {page.stem for page in PAGES.glob("*.md")} == {*operators.load_operators(), "README"}
    rows = re.findall(r"^\| \[.*$", (PAGES / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [
        f"| [{o.name}]({o.name}.md) | {o.title} | {o.symptom.value} |" for o in OPERATORS
    ]


def test_what_only_tells_checks_or_annotates_is_left_alone() -> None:
    code = '''
    def f(seq_len: int = base + prefix_len, *rows: "cdiv(a, b)") -> table[idx]:
        """seq_len + prefix_len < max_len"""
        assert seq_len + prefix_len <= max_len, f"{seq_len + prefix_len}"
        torch._check(seq_len < max_len)
        logger.info("%s", seq_len + prefix_len)
        tl.static_assert(seq_len < max_len)
        assert_buffer_fits(seq_len + prefix_len)
        count: Size[seq_len + prefix_len] = told
        if seq_len > max_len:
            raise ValueError(seq_len + prefix_len)
        return f"{seq_len + prefix_len}"

    class K:
        def __repr__(self):
            return self.table[self.idx + self.offset]
    '''
    result = make_faults(code, *(set(operators.load_operators()) - {"padded-for-real"}))
    assert (result.faults, result.dropped) == ((), ())


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("a = cdiv(n, m) * k", "a = (n // m) * k"),
        ("a = k * cdiv(n, m)", "a = k * (n // m)"),
        ("a = cdiv(n, m).bit_length()", "a = (n // m).bit_length()"),
        ("a = (cdiv(n, m))", "a = (n // m)"),
        ("a = f(cdiv(n, m))", "a = f(n // m)"),
        ("a = cdiv(n + k, m)", "a = (n + k) // m"),
    ],
)
def test_what_takes_a_place_has_the_brackets_that_it_needs(code: str, wanted: str) -> None:
    (got,) = list_changed_lines(f"def g(n, m, k): {code}\n", "round-down")
    tree = compile(f"def g(n, m, k): {wanted}\n", "m", "exec").co_consts[0]
    assert compile(got + "\n", "m", "exec").co_consts[0].co_code == tree.co_code


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_the_page_of_an_operator_is_true(operator: MutationOperator) -> None:
    """It names the pull requests and existing toggles, and the operator generates its example."""
    page = (PAGES / f"{operator.name}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {operator.title}\n\n`{operator.name}`, ")
    assert f"symptom: {operator.symptom.value}\n" in page
    assert len(operator.prs) >= 2
    assert tuple(int(n) for n in re.findall(r"^- #(\d+), \*", page, re.MULTILINE)) == operator.prs

    last = re.search(
        r"^(Of this kind among the toggles: |No toggle of ours )(.*)\Z", page, re.M | re.S
    )
    assert last is not None
    toggles = re.findall(r"`([^`]+)`", last[2])
    assert set(toggles) <= {toggle.id for toggle in toggle_catalogue.load_catalogue()}
    assert bool(toggles) == last[1].startswith("Of this kind")

    example = re.search(r"```diff\n-(?P<old>.*)\n\+(?P<new>.*)\n```", page)
    assert example is not None
    old, new = example["old"], example["new"]
    body = [old, "    pass"] if old.endswith(":") else [old]
    if operator.find_changes is None:
        assert new in list_cpp_lines(f"__global__ void f() {{\n  {old}\n}}\n", operator.name)
        return
    names = "num_tokens, padded_num_tokens, num_blocks"
    code = "\n".join([f"@triton.jit\ndef f({names}):", *(f"    {line}" for line in body)])
    plain = code.replace("@triton.jit\n", "")
    assert new in list_changed_lines(code, operator.name) + list_changed_lines(plain, operator.name)
