"""Mailboxes and bell: bounded, and never a wait for the one who posts or rings."""

import threading
import time

from worker_agent.applier.mailbox import Bell, Mailbox


def test_items_come_out_in_order_and_a_full_box_refuses_and_counts() -> None:
    box: Mailbox[int] = Mailbox(2)
    assert [box.post(n) for n in range(4)] == [True, True, False, False]
    assert box.num_dropped == 2
    assert [box.take(), box.take(), box.take()] == [0, 1, None]
    assert box.post(9)


def test_what_is_peeked_at_stays() -> None:
    box: Mailbox[int] = Mailbox(2)
    assert box.peek() is None
    box.post(1)
    assert (box.peek(), box.take(), box.take()) == (1, 1, None)


def test_a_bell_rung_before_the_wait_is_heard() -> None:
    bell = Bell()
    bell.ring()
    started_s = time.monotonic()
    bell.wait(5)
    assert time.monotonic() - started_s < 1


def test_a_bell_rung_often_wakes_once() -> None:
    bell = Bell()
    for _ in range(1000):
        bell.ring()
    bell.wait(1)
    started_s = time.monotonic()
    bell.wait(0.05)
    assert time.monotonic() - started_s > 0.04


def test_nothing_is_lost_between_two_threads() -> None:
    box: Mailbox[int] = Mailbox(16)
    posted, taken = Bell(), Bell()
    got: list[int] = []

    def take() -> None:
        deadline_s = time.monotonic() + 20
        while len(got) < 500 and time.monotonic() < deadline_s:
            posted.wait(1)
            while (item := box.take()) is not None:
                got.append(item)
            taken.ring()

    taker = threading.Thread(target=take)
    taker.start()
    sent = 0
    deadline_s = time.monotonic() + 20
    while sent < 500 and time.monotonic() < deadline_s:
        while sent < 500 and box.post(sent):
            sent += 1
        posted.ring()
        taken.wait(1)
    taker.join(20)
    assert got == list(range(500))
