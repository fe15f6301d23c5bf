"""Computes a small server's pages, slots and buffers.

One statement a line and no `else`: a changed line is then a toggle by itself. No mutant that the
benchmark takes makes this code raise, which mutation tools call killed and `unfix prove` broken.
"""


def pages(tokens, page):
    """Return the number of pages for so many tokens."""
    return (tokens + page - 1) // page


def pad_tokens(tokens, page):
    """The tokens of whole pages."""
    return pages(tokens, page) * page


def starts_page(position, page):
    return position % page == 0


def free_slots(total, used, reserved):
    left = total - used - reserved
    if left < 0:
        return 0
    return left


def window_start(length, window):
    """The first position that a sliding window still sees."""
    start = length - window
    if start <= 0:
        return 0
    return start


def kv_bytes(layers, heads, width, item):
    """Keys and values of one token."""
    elements = 2 * layers * heads * width
    return elements * item


def bucket(size):
    """The power of two that holds a batch."""
    return 1 << (size - 1).bit_length()


def share(total, parts, index):
    """Return the size of one part; the first parts take the remainder."""
    base = total // parts
    if index < total % parts:
        return base + 1
    return base
