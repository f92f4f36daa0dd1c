"""`python -m examples.shop` as a process: its options, what it needs, what it leaves behind; and a crowd at it."""

from __future__ import annotations

import asyncio
import signal
import sys
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from click.testing import CliRunner

from examples.shop.__main__ import main

from .shops import ShopProcess, until


@pytest.mark.parametrize(("by", "workers"), [(signal.SIGINT, 2), (signal.SIGHUP, 1)])
def test_it_leaves_nothing_behind(by: signal.Signals, workers: int) -> None:
    with ShopProcess("--workers", str(workers)) as shop:
        family, folder = shop.family(), shop.folder()
        assert len(family) == workers + 1
        assert folder.stat().st_mode & 0o077 == 0
        assert shop.end(by) == 0
        assert not folder.exists()
        assert not [process for process in family if process.is_running()]


def test_a_killed_parent_leaves_nothing_behind() -> None:
    with ShopProcess() as shop:
        family, folder = shop.family(), shop.folder()
        shop.process.kill()
        shop.process.wait()
        until(
            lambda: not folder.exists() and not any(map(_lives, family)),
            description="workers, Redis and the folder are gone",
        )


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_worker_that_dies_ends_the_demo_with_a_reason() -> None:
    with ShopProcess("--workers", "2") as shop:
        folder = shop.folder()
        next(child for child in shop.family() if "redis" not in child.name()).kill()
        assert shop.process.wait(30) == 1
        assert "a worker of the shop ended by itself, with exit code -9" in shop.said
        assert not folder.exists()


def opened(*options: str, **environment: str) -> Any:
    return CliRunner().invoke(main, options, env=environment)


def test_without_a_redis_server_it_says_what_to_install(tmp_path: Path) -> None:
    found = opened(PATH=str(tmp_path))
    assert found.exit_code == 1
    assert "apt-get install redis-server" in found.stderr
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn", "python_multipart"])
def test_without_its_extra_it_names_it(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)  # type: ignore[arg-type]
    result = CliRunner().invoke(main)
    assert result.exit_code == 1
    assert "pip install 'fastdedup[sidecar,web]'" in result.stderr


# The sale under load: a crowd at two workers, each of whom clicks three times at once


BUYERS, STOCK, CLICKS = 300, 40, 3


async def test_exactly_the_stock_is_sold_and_every_click_of_a_buyer_is_told_the_same() -> None:
    lanes = asyncio.Semaphore(22)

    async def clicks(client: httpx.AsyncClient, buyer: int) -> list[httpx.Response]:
        headers = {"x-buyer": f"buyer-{buyer}", "idempotency-key": str(uuid.uuid4())}
        async with lanes:
            asked = (client.post("/api/orders", json={"quantity": 1}, headers=headers) for _ in range(CLICKS))
            return await asyncio.gather(*asked)

    with ShopProcess("--stock", str(STOCK)) as shop:
        async with httpx.AsyncClient(
            base_url=shop.url, timeout=30.0, trust_env=False, verify=False
        ) as client:
            told = await asyncio.gather(*(clicks(client, buyer) for buyer in range(BUYERS)))
        stats = shop.stats()
    for answers in told:
        assert len({(answer.status_code, answer.content) for answer in answers}) == 1
        assert sum("idempotency-replayed" in answer.headers for answer in answers) == CLICKS - 1
    assert Counter(first.status_code for first, *_ in told) == {201: STOCK, 410: BUYERS - STOCK}
    assert len({first.content for first, *_ in told if first.status_code == 201}) == STOCK
    assert (stats["orders"], stats["sold"], stats["left"]) == (STOCK, STOCK, 0)
