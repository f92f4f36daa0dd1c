"""`fastdedup demo --web` over plain HTTP: what it answers, that it works without JavaScript, and that it ends."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import psutil
import pytest
from click.testing import CliRunner

from fastdedup import Dedup
from fastdedup.cli.main import cli
from fastdedup.demo.shop.stats import Tally, total
from fastdedup.events import Degraded, LeaseLost, Unreplayed

from .shops import ShopProcess, order_in, token_in, until


@pytest.fixture(scope="module")
def shop() -> Iterator[ShopProcess]:
    with ShopProcess("--stock", "1000") as shop:
        yield shop


@pytest.fixture
def ada(shop: ShopProcess) -> Iterator[httpx.Client]:
    with shop.visitor("Ada") as client:
        yield client


def send(client: httpx.Client, token: str, quantity: object = 1) -> httpx.Response:
    return client.post("/orders", data={"one_time_token": token, "quantity": str(quantity)})


def order(client: httpx.Client, key: str | None, quantity: object = 1, **headers: str) -> httpx.Response:
    headers = {"x-buyer": "ada"} | headers | ({} if key is None else {"idempotency-key": f'"{key}"'})
    return client.post("/api/orders", json={"quantity": quantity}, headers=headers)


# The page


def test_only_who_is_signed_in_gets_a_form(shop: ShopProcess) -> None:
    with shop.visitor() as nobody, shop.visitor("Grace <i>") as grace:
        assert "one_time_token" not in nobody.get("/").text
        page = grace.get("/").text
    assert token_in(page)
    assert "Grace &lt;i&gt;" in page
    assert "<i>" not in page


def test_signing_out_ends_it(ada: httpx.Client) -> None:
    assert ada.post("/session/end").status_code == 303
    assert "one_time_token" not in ada.get("/").text


@pytest.mark.parametrize("name", ["", "x" * 41])
def test_a_name_has_a_length(shop: ShopProcess, name: str) -> None:
    with shop.visitor() as client:
        assert client.post("/session", data={"name": name}).status_code == 422


@pytest.mark.parametrize("cookie", ["", "no", "W10=.00", "WyJhIiwgIkFkYSJd." + "0" * 64, "é.ü"])
def test_a_session_that_nobody_signed_is_none(shop: ShopProcess, cookie: str) -> None:
    with shop.visitor() as client:
        page = client.get("/", headers={"cookie": f"halcyon_session={cookie}".encode()})
    assert (page.status_code, "one_time_token" in page.text) == (200, False)


def test_the_page_needs_nothing_from_elsewhere(ada: httpx.Client) -> None:
    page = ada.get("/")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "no-store" not in page.headers["cache-control"]  # or going back would show another form
    assert "//" not in page.text.replace("http://www.w3.org", "")
    for name in ("shop.css", "shop.js"):
        assert "immutable" in ada.get(f"/{name}").headers["cache-control"]


def test_every_page_is_another_form(ada: httpx.Client) -> None:
    assert token_in(ada.get("/").text) != token_in(ada.get("/").text)


# Ordering by the form


def test_the_same_form_is_one_order_byte_for_byte(shop: ShopProcess, ada: httpx.Client) -> None:
    before, token = shop.orders, token_in(ada.get("/").text)
    first, again = send(ada, token, 2), send(ada, token, 2)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.content == again.content
    assert order_in(first.text)
    assert again.headers["idempotency-replayed"] == "true"
    assert shop.orders == before + 1


@pytest.mark.parametrize("quantity", ["", "0", "6", "00015", "0001999", "-1", "1.5", "two", "²", "9" * 5000])
def test_a_form_that_makes_no_sense_uses_its_token_not_up(
    shop: ShopProcess, ada: httpx.Client, quantity: str
) -> None:
    before, token = shop.orders, token_in(ada.get("/").text)
    answer = send(ada, token, quantity)
    assert (answer.status_code, token_in(answer.text)) == (422, token)
    assert send(ada, token).status_code == 201
    assert shop.orders == before + 1


def test_a_form_without_its_token_is_refused_with_a_fresh_one(shop: ShopProcess, ada: httpx.Client) -> None:
    before, answer = shop.orders, ada.post("/orders", data={"quantity": "3"})
    assert answer.status_code == 400
    assert "Please send it again" in answer.text
    assert send(ada, token_in(answer.text)).status_code == 201
    assert shop.orders == before + 1


def test_who_is_not_signed_in_cannot_make_a_token_up(shop: ShopProcess) -> None:
    before = shop.orders
    with shop.visitor() as nobody:
        assert send(nobody, "made-up").status_code == 410
    assert shop.orders == before


async def test_a_form_that_is_still_being_worked_on_can_be_sent_again(shop: ShopProcess) -> None:
    with shop.visitor("Ada") as ada:
        token = token_in(ada.get("/").text)
        visit, name = json.loads(base64.urlsafe_b64decode(ada.cookies["halcyon_session"].partition(".")[0]))
        async with Dedup(f"unix://{shop.folder()}/redis.sock?db=0", namespace="shop:sale") as dedup:
            first = await dedup.tokens.redeem(
                token, subject=f"{visit}:{name}"
            )  # a worker that does not come to an end
            busy = await asyncio.to_thread(send, ada, token)
            await first.release()
        assert (busy.status_code, token_in(busy.text), busy.headers["retry-after"]) == (409, token, "1")
        assert send(ada, token).status_code == 201


# Ordering by JSON


def test_the_same_key_is_one_order(shop: ShopProcess, ada: httpx.Client) -> None:
    before, key = shop.orders, str(uuid.uuid4())
    first, again = order(ada, key), order(ada, key)
    assert (first.status_code, again.status_code, again.content) == (201, 201, first.content)
    assert again.headers["idempotency-replayed"] == "true"
    assert first.json() | {"order": ""} == {"order": "", "buyer": "ada", "quantity": 1, "degraded": False}
    assert order(ada, key, **{"x-buyer": "grace"}).content != first.content  # keys are each buyer's own
    assert shop.orders == before + 2


def test_other_contents_under_the_same_key_are_refused(shop: ShopProcess, ada: httpx.Client) -> None:
    before, key = shop.orders, str(uuid.uuid4())
    assert order(ada, key).status_code == 201
    assert order(ada, key, 2).status_code == 422
    assert shop.orders == before + 1


@pytest.mark.parametrize(
    ("key", "quantity", "buyer", "status"),
    [
        (None, 1, "ada", 400),
        ("key", 0, "ada", 422),
        ("key", 6, "ada", 422),
        ("key", "x", "ada", 422),
        ("key", 1, "", 422),
    ],
)
def test_bad_input_orders_nothing(
    shop: ShopProcess, ada: httpx.Client, key: str | None, quantity: object, buyer: str, status: int
) -> None:
    before = shop.orders
    assert order(ada, key and str(uuid.uuid4()), quantity, **{"x-buyer": buyer}).status_code == status
    assert shop.orders == before


# Behind the counter


def test_the_figures_of_all_workers_are_added_up() -> None:
    with ShopProcess() as shop:
        for _ in range(4):
            with shop.visitor() as client:  # a connection of its own, to either worker
                key = str(uuid.uuid4())
                assert [order(client, key).status_code for _ in range(3)] == [201] * 3
                assert order(client, key, 2).status_code == 422
        expected = {"orders": 4, "answered": 16, "replayed": 8, "refused": 4}
        until(lambda: expected.items() <= shop.stats().items(), description="all are counted")
        stats = shop.stats()
    assert (stats["sold"], stats["left"], stats["redis"]) == (4, 96, "up")
    assert stats["workers"] == [{"number": n, "breaker": "closed"} for n in (1, 2)]
    assert 0 < stats["p50_ms"] <= stats["p99_ms"]


def test_the_buttons_are_for_the_shops_own_pages(ada: httpx.Client) -> None:
    answer = ada.post("/redis", data={"do": "stop"}, headers={"sec-fetch-site": "cross-site"})
    assert answer.status_code == 403
    assert ada.post("/redis", data={"do": "explode"}).status_code == 422
    assert ada.get("/stats").json()["redis"] == "up"


def test_the_choice_for_outages_works_without_javascript(ada: httpx.Client) -> None:
    assert 'id="outage-refuse" checked' in ada.get("/").text
    assert ada.post("/outage", data={"outage": "local"}).status_code == 303
    assert 'id="outage-local" checked' in ada.get("/").text


# Sold out, and not open yet


def test_sold_out_is_kept_and_replayed_until_there_is_more() -> None:
    with ShopProcess("--stock", "2", "--workers", "1") as shop, shop.visitor("Ada") as ada:
        assert order(ada, "a").status_code == 201
        few = send(ada, token_in(ada.get("/").text), 2)
        assert (few.status_code, "Only 1 left" in few.text) == (410, True)
        assert order(ada, "b").status_code == 201
        late, again = order(ada, "c"), order(ada, "c")
        assert (late.status_code, late.json()) == (410, {"detail": "sold out", "left": 0})
        assert (again.content, again.headers["idempotency-replayed"]) == (late.content, "true")
        assert "Sold out" in send(ada, token_in(ada.get("/").text)).text
        assert ada.post("/restock").status_code == 303
        assert order(ada, "c").status_code == 410
        assert order(ada, "d").status_code == 201
        assert shop.orders == 3


def test_before_it_opens_nobody_buys_and_no_form_is_used_up() -> None:
    with ShopProcess("--opens-in", "3600", "--workers", "1") as shop, shop.visitor("Ada") as ada:
        page = ada.get("/").text
        assert "Opens at" in page
        early = send(ada, token_in(page))
        assert (early.status_code, token_in(early.text)) == (403, token_in(page))
        assert 3000 < int(early.headers["retry-after"]) <= 3601
        assert order(ada, "a").status_code == 403
        assert shop.orders == 0


# An outage


def test_orders_by_json_are_refused_or_taken_locally_as_the_buyer_chose() -> None:
    with ShopProcess("--workers", "1") as shop, shop.visitor() as careful, shop.visitor() as bold:
        bold.post("/outage", data={"outage": "local"})
        bold.post("/redis", data={"do": "stop"})
        refused = order(careful, "a")
        assert (refused.status_code, refused.headers["content-type"]) == (503, "application/problem+json")
        assert int(refused.headers["retry-after"]) >= 1
        first, again = order(bold, "b"), order(bold, "b")
        assert (first.status_code, first.json()["degraded"], again.content) == (201, True, first.content)
        stats = shop.stats()
        assert (stats["redis"], stats["orders"], stats["degraded"]) == ("down", 1, 1)
        bold.post("/redis", data={"do": "start"})
        until(lambda: shop.stats()["adopted"] == 1, description="the journal is replayed")
        until(lambda: shop.stats()["workers"][0]["breaker"] == "closed", description="the breaker closes")
        assert order(bold, "b").content == first.content
        assert order(careful, "a").status_code == 201
        assert shop.orders == 2


def test_two_workers_that_go_on_locally_may_both_sell_and_then_say_so() -> None:
    with ShopProcess("--workers", "2") as shop, shop.visitor() as bold:
        bold.post("/redis", data={"do": "stop"})
        orders = set()

        def ordered_at_both() -> bool:
            with shop.visitor() as buyer:  # a connection of its own, to either worker
                buyer.post("/outage", data={"outage": "local"})
                orders.add(order(buyer, "b").json()["order"])
            return len(orders) == 2

        until(ordered_at_both, description="both workers have sold under the same key")
        bold.post("/redis", data={"do": "start"})
        until(
            lambda: shop.stats()["conflicts"] == 1, description="the second worker to replay finds the first"
        )
        told = {order(bold, "b").json()["order"] for _ in range(3)}
        assert (len(told), told < orders) == (1, True)
        assert shop.orders == 2
        assert any("two owners of one key" in line["text"] for line in shop.stats()["events"])


def test_what_the_gate_says_is_kept_for_people(tmp_path: Path) -> None:
    tally = Tally(tmp_path, 1)
    for event in (
        Degraded("shop", "claim", True, "down"),
        LeaseLost("shop", "key", "owner", 1),
        Unreplayed("shop", "key", "owner", "closed before the store was back"),
    ):
        tally.on_event(event)
    tally.write("open")
    told = total(tmp_path)
    assert {line["text"] for line in told["events"]} == {
        "LeaseLost",
        "Not put into Redis: closed before the store was back.",
    }
    assert (told["workers"], told["p50_ms"]) == ([{"number": 1, "breaker": "open"}], None)


# Its life


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_leaves_nothing_behind(by: signal.Signals) -> None:
    with ShopProcess() as shop:
        family, folder = shop.family(), shop.folder()
        assert len(family) == 3
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


def demo(*options: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fastdedup", "demo", "--web", *options],
        env=os.environ | more,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_without_a_redis_server_it_says_what_to_install(tmp_path: Path) -> None:
    ended = demo(PATH=str(tmp_path))
    assert ended.returncode == 1
    assert "apt-get install redis-server" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_a_redis_server_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    fake = tmp_path / "redis-server"
    fake.write_text("#!/bin/sh\necho 'no room' >&2\nexit 3\n")
    fake.chmod(0o755)
    ended = demo(PATH=f"{tmp_path}:/bin:/usr/bin")
    assert (ended.returncode, "did not start: no room" in ended.stderr) == (1, True)


def test_a_port_that_is_taken_is_named() -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = demo("--port", str(port))
    assert (ended.returncode, f"127.0.0.1:{port}" in ended.stderr) == (1, True)


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn", "python_multipart"])
def test_without_its_extra_it_names_it(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)  # type: ignore[arg-type]
    result = CliRunner().invoke(cli, ["demo", "--web"])
    assert result.exit_code == 1
    assert "pip install 'fastdedup[web]'" in result.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--port", "0"], "--port needs --web"),
        (["--token-ttl", "1"], "--token-ttl needs --web"),
        (["--web", "--buyers", "5"], "--buyers cannot be used with --web"),
        (["--web", "--json"], "--json cannot be used with --web"),
    ],
)
def test_options_that_do_not_go_together_are_named(options: list[str], said: str) -> None:
    result = CliRunner().invoke(cli, ["demo", *options])
    assert (result.exit_code, said in result.stderr) == (2, True)
