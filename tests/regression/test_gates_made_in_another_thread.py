"""Fault: while another thread made gates, a claim that learned of a success raised "Set changed size"."""

from __future__ import annotations

import gc
import sys
import threading

from fastdedup import Dedup


async def test_a_claim_does_not_see_them() -> None:
    over = threading.Event()

    def make_gates() -> None:
        while not over.is_set():
            gates = [Dedup("memory://") for _ in range(20)]
            del gates
            gc.collect(0)

    thread = threading.Thread(target=make_gates)
    former = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        async with Dedup("memory://", known_duplicates=5.0) as dedup:
            for number in range(1_500):
                async with dedup.claim(f"k{number}"):
                    pass
                assert not (await dedup.claim(f"k{number}")).acquired
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(former)
