"""Ordinary tests. Some leave out an edge case, so that some mutants survive."""

from sglang import sizes


def test_pages():
    assert sizes.pages(1, 16) == 1
    assert sizes.pages(16, 16) == 1
    assert sizes.pages(17, 16) == 2


def test_padded():
    assert sizes.pad_tokens(17, 16) == 32


def test_starts_page():
    assert sizes.starts_page(32, 16)
    assert not sizes.starts_page(33, 16)


def test_a_page_starts_behind_the_padding():
    assert sizes.starts_page(sizes.pad_tokens(17, 16), 16)


def test_free_slots():
    assert sizes.free_slots(10, 3, 2) == 5
    assert sizes.free_slots(3, 3, 2) == 0


def test_window_start():
    assert sizes.window_start(100, 64) == 36
    assert sizes.window_start(10, 64) == 0


def test_kv_bytes():
    assert sizes.kv_bytes(layers=2, heads=4, width=8, item=1) == 128


def test_bucket():
    assert [sizes.bucket(size) for size in (1, 5, 8, 9)] == [1, 8, 8, 16]


def test_share():
    assert [sizes.share(10, 4, index) for index in range(4)] == [3, 3, 2, 2]
