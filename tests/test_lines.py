"""Two pipe ends that send each other more than a pipe's capacity."""

from __future__ import annotations

import select
import threading

from harness.core.pipes import make_pipe_pair

MUCH = b"x" * 300_000  # a pipe's capacity is 65,536


def test_neither_end_waits_for_the_other_while_both_have_much_to_say() -> None:
    here, other = make_pipe_pair()

    def answer() -> None:
        other.send(MUCH)  # before it reads
        while not (lines := other.receive_lines()):
            pass
        other.send(b"%d" % len(lines[0]))

    answering = threading.Thread(target=answer, daemon=True)
    answering.start()
    here.send_without_blocking(MUCH)
    heard: list[bytes] = []
    while len(heard) < 2:
        ready = select.select([here.read_end], here.pending_write_ends, [], 10.0)
        assert any(ready), "both wait"
        here.flush()
        heard += here.receive_lines() if ready[0] else []
    answering.join(10.0)
    for line in (here, other):
        line.close()
    assert heard == [MUCH, b"%d" % len(MUCH)]
