"""The files of a small checkout."""

from made_up_toggle import FIXED_FORM

ROWS = f"""\
WIDTH = 2
OTHER = 3


def make_table(shape):
    return shape


def count_rows(size):
    return {FIXED_FORM}
"""
PROJECT = '[project]\nname = "sglang"\ndynamic = ["version"]\ndependencies = ["openai==2.8.0"]\n'
