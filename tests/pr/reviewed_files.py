"""The files of a small checkout, and of a toggle of it."""

ROWS = """\
WIDTH = 2
OTHER = 3


def make_table(shape):
    return shape


def count_rows(size):
    return make_table((size + 1, WIDTH))
"""
TOGGLE = """\
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
      - fixed: make_table((size + 1, WIDTH))
        buggy: make_table((size, WIDTH))
"""
PROJECT = '[project]\nname = "sglang"\ndynamic = ["version"]\ndependencies = ["openai==2.8.0"]\n'
