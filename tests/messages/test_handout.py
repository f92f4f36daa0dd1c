"""Messages are handed out in bursts, in order, and none is lost with a task that was cancelled."""

from __future__ import annotations

import asyncio

from fastdedup.messages.handout import BURST, Handout


async def test_messages_of_many_turns_are_handed_out_together() -> None:
    handout, got = Handout[int](), list[int]()

    async def take() -> None:
        got.append(await handout.take())

    tasks = [asyncio.create_task(take()) for _ in range(10)]
    for number in range(10):
        await asyncio.sleep(0)
        assert not got
        handout.give(number)
    await asyncio.gather(*tasks)
    assert got == list(range(10))


async def test_a_full_burst_waits_for_no_further_turn() -> None:
    handout = Handout[int]()
    for number in range(BURST):
        handout.give(number)
    taken = [asyncio.create_task(handout.take()) for _ in range(BURST)]
    await asyncio.sleep(0)  # they begin
    await asyncio.sleep(0)
    assert [task.result() for task in taken] == list(range(BURST))


async def test_a_cancelled_task_loses_no_message() -> None:
    handout = Handout[int]()
    gone, other = (asyncio.create_task(handout.take()) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    handout.give(7)
    assert await other == 7


async def test_a_task_that_is_cancelled_as_it_gets_a_message_hands_it_on() -> None:
    handout = Handout[int]()
    gone, other = (asyncio.create_task(handout.take()) for _ in range(2))
    await asyncio.sleep(0)
    for number in range(BURST):
        handout.give(number)
    handout._turn()  # both are woken, and have not run since
    gone.cancel()
    assert sorted([await other, *[await handout.take() for _ in range(BURST - 1)]]) == [*range(BURST)]


async def test_lost_messages_that_wait_for_a_task_are_forgotten() -> None:
    handout = Handout[int]()
    for number in range(BURST):
        handout.give(number)
    first = await handout.take()
    assert (first, handout.drop(lambda number: number % 2 == 0)) == (0, [*range(2, BURST, 2)])
    assert [await handout.take() for _ in range(BURST // 2)] == [*range(1, BURST, 2)]
