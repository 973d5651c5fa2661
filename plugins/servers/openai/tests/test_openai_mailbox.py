"""Events on their way to the event loop."""

import asyncio
import threading

import pytest
from erniecore_openai.mailbox import Mailbox


def test_all_items_arrive_in_order_with_few_wake_ups():
    async def run():
        mailbox, queues = Mailbox(asyncio.get_running_loop()), [asyncio.Queue() for _ in range(3)]
        woken = []
        original = mailbox._empty
        mailbox._empty = lambda: (woken.append(1), original())

        def post():
            for number in range(3000):
                mailbox.post(queues[number % 3], number)

        threads = [threading.Thread(target=post) for _ in range(2)]
        for thread in threads:
            thread.start()
        found = [[await queue.get() for _ in range(2000)] for queue in queues]
        for thread in threads:
            thread.join()
        return found, woken, [queue.empty() for queue in queues]

    found, woken, empty = asyncio.run(run())
    assert all(empty)
    for first, numbers in enumerate(found):
        assert sorted(numbers) == sorted([*range(first, 3000, 3)] * 2)
    assert 0 < len(woken) < 6000


def test_items_that_wait_together_come_with_one_wake_up():
    async def run():
        loop, queue = asyncio.get_running_loop(), asyncio.Queue()
        mailbox, woken = Mailbox(loop), []
        original = mailbox._empty
        mailbox._empty = lambda: (woken.append(1), original())
        for number in range(8):
            mailbox.post(queue, number)
        first = [await queue.get() for _ in range(8)]
        mailbox.post(queue, 8)
        return [*first, await queue.get()], len(woken)

    assert asyncio.run(run()) == ([*range(9)], 2)


def test_a_loop_that_is_closed_refuses_every_item():
    loop = asyncio.new_event_loop()
    queue = asyncio.Queue()
    mailbox = Mailbox(loop)
    loop.close()
    for _ in range(2):
        with pytest.raises(RuntimeError):
            mailbox.post(queue, 1)
