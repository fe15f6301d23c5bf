"""A toggle for a release of a few files, with the form of its code that is fixed."""

FIXED_FORM = "make_table((size + 1, WIDTH))"
TOGGLE = f"""\
id: made-up
title: a row is one short
family: made_up
symptom: out-of-bounds
upstream: [1]
devices: [cpu]
why: It is a test.
variants:
  - releases: ">=0.5.9"
    target: sglang.srt.rows:count_rows
    edits:
      - fixed: {FIXED_FORM}
        buggy: {FIXED_FORM.replace(" + 1", "")}
"""
