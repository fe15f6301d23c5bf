"""For each operator, code of its kind and the faults that it makes there."""

from __future__ import annotations

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
