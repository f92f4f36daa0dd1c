"""`examples/shop` over plain HTTP: what it answers, and that it works without JavaScript."""

from __future__ import annotations

import uuid
from pathlib import Path

import httpx
import pytest
import redis

from examples.shop.redis_server import ShopRedis, find_server
from examples.shop.stats import BOXES

from ..fixtures import fixture_with
from .shops import ShopProcess, order_in, token_in, until

ada = fixture_with(lambda open_shop: open_shop.visitor("Ada"))


def send(client: httpx.Client, token: str, quantity: object = 1) -> httpx.Response:
    return client.post("/orders", data={"one_time_token": token, "quantity": str(quantity)})


def order(client: httpx.Client, key: str | None, quantity: object = 1, **headers: str) -> httpx.Response:
    headers = {"x-buyer": "ada"} | headers | ({} if key is None else {"idempotency-key": f'"{key}"'})
    return client.post("/api/orders", json={"quantity": quantity}, headers=headers)


# The page


def test_only_who_is_signed_in_gets_a_form(open_shop: ShopProcess) -> None:
    with open_shop.visitor() as nobody, open_shop.visitor("Grace <i>") as grace:
        assert "one_time_token" not in nobody.get("/").text
        page = grace.get("/").text
    assert token_in(page)
    assert "Grace &lt;i&gt;" in page
    assert "<i>" not in page


@pytest.mark.parametrize("cookie", ["", "no", "W10=.00", "WyJhIiwgIkFkYSJd." + "0" * 64, "é.ü"])
def test_a_session_that_nobody_signed_is_none(open_shop: ShopProcess, cookie: str) -> None:
    with open_shop.visitor() as client:
        page = client.get("/", headers={"cookie": f"halcyon_session={cookie}".encode()})
    assert (page.status_code, "one_time_token" in page.text) == (200, False)


def test_the_page_needs_nothing_from_elsewhere(ada: httpx.Client) -> None:
    page = ada.get("/")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "no-store" not in page.headers["cache-control"]  # or going back would show another form
    assert "//" not in page.text.replace("http://www.w3.org", "")
    for name in ("shop.css", "shop.js"):
        assert "immutable" in ada.get(f"/{name}").headers["cache-control"]


# Ordering by the form


def test_the_same_form_is_one_order_byte_for_byte(open_shop: ShopProcess, ada: httpx.Client) -> None:
    before, token = open_shop.orders, token_in(ada.get("/").text)
    first, again = send(ada, token, 2), send(ada, token, 2)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.content == again.content
    assert order_in(first.text)
    assert again.headers["idempotency-replayed"] == "true"
    assert open_shop.orders == before + 1


def test_a_form_that_makes_no_sense_uses_its_token_not_up(open_shop: ShopProcess, ada: httpx.Client) -> None:
    before, token = open_shop.orders, token_in(ada.get("/").text)
    for quantity in ["", "0", "6", "00015", "0001999", "-1", "1.5", "two", "²", "9" * 5000]:
        answer = send(ada, token, quantity)
        assert (answer.status_code, token_in(answer.text)) == (422, token), quantity
    assert send(ada, token).status_code == 201
    assert open_shop.orders == before + 1


def test_a_form_without_its_token_is_refused_with_a_fresh_one(
    open_shop: ShopProcess, ada: httpx.Client
) -> None:
    before, answer = open_shop.orders, ada.post("/orders", data={"quantity": "3"})
    assert answer.status_code == 400
    assert "Please send it again" in answer.text
    assert send(ada, token_in(answer.text)).status_code == 201
    assert open_shop.orders == before + 1


def test_a_form_is_its_visits_own(open_shop: ShopProcess, ada: httpx.Client) -> None:
    """Others get a fresh form, and see nothing of an order; signing in under the same name is another visit."""
    before = open_shop.orders
    unused, used = (token_in(ada.get("/").text) for _ in range(2))
    number = order_in(send(ada, used).text)
    assert number
    with (
        open_shop.visitor("Grace") as grace,
        open_shop.visitor("Ada") as again,
        open_shop.visitor() as nobody,
    ):
        for client in (grace, again, nobody):
            refused, late = send(client, unused), send(client, used)
            assert (refused.status_code, late.status_code) == (403, 409)
            assert "This form is not yours" in refused.text
            assert "This form was used before" in late.text
            assert number not in late.text
            assert ('id="sign-in"' in late.text) is (client is nobody)
        assert send(nobody, "made-up").status_code == 410
        assert send(grace, token_in(send(grace, unused).text)).status_code == 201
    assert send(ada, unused).status_code == 201
    assert open_shop.orders == before + 3


# Ordering by JSON


def test_the_same_key_is_one_order(open_shop: ShopProcess, ada: httpx.Client) -> None:
    before, key = open_shop.orders, str(uuid.uuid4())
    first, again = order(ada, key), order(ada, key)
    assert (first.status_code, again.status_code, again.content) == (201, 201, first.content)
    assert again.headers["idempotency-replayed"] == "true"
    assert first.json() | {"order": ""} == {"order": "", "buyer": "ada", "quantity": 1, "degraded": False}
    assert order(ada, key, **{"x-buyer": "grace"}).content != first.content  # keys are each buyer's own
    assert open_shop.orders == before + 2


def test_other_contents_under_the_same_key_are_refused(open_shop: ShopProcess, ada: httpx.Client) -> None:
    before, key = open_shop.orders, str(uuid.uuid4())
    assert order(ada, key).status_code == 201
    assert order(ada, key, 2).status_code == 422
    assert open_shop.orders == before + 1


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
    open_shop: ShopProcess, ada: httpx.Client, key: str | None, quantity: object, buyer: str, status: int
) -> None:
    before = open_shop.orders
    assert order(ada, key and str(uuid.uuid4()), quantity, **{"x-buyer": buyer}).status_code == status
    assert open_shop.orders == before


# Behind the counter


def test_the_figures_of_all_workers_are_added_up(open_shop: ShopProcess) -> None:
    before = open_shop.settled_stats()
    for _ in range(4):
        with open_shop.visitor() as client:  # a connection of its own, to either worker
            key = str(uuid.uuid4())
            assert [order(client, key).status_code for _ in range(3)] == [201] * 3
            assert order(client, key, 2).status_code == 422
    expected = {"orders": 4, "answered": 16, "ordered": 4, "replayed": 8, "refused": 4, "sold_out": 0}
    expected |= {"sold": 4, "left": -4, "later": 0}

    def all_counted() -> bool:
        stats = open_shop.stats()
        return {name: stats[name] - before[name] for name in expected} == expected

    until(all_counted, description="all are counted")
    stats = open_shop.stats()
    assert stats["answered"] == sum(stats[box] for box in BOXES)
    assert (stats["oversold"], stats["redis"]) == (before["oversold"], "up")
    assert stats["workers"] == [{"number": n, "breaker": "closed"} for n in (1, 2)]
    assert 0 < stats["p50_ms"] <= stats["p99_ms"]


def test_the_buttons_are_for_the_shops_own_pages(ada: httpx.Client) -> None:
    answer = ada.post("/redis", data={"do": "stop"}, headers={"sec-fetch-site": "cross-site"})
    assert answer.status_code == 403
    assert ada.post("/redis", data={"do": "explode"}).status_code == 422
    assert ada.get("/stats").json()["redis"] == "up"


# Sold out


def test_sold_out_is_kept_and_replayed_until_there_is_more(small_shop: ShopProcess) -> None:
    before = small_shop.orders
    with small_shop.visitor("Ada") as ada:
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
    assert small_shop.orders == before + 3


# An outage


async def test_a_write_is_in_the_file_when_it_is_answered_also_if_the_disk_is_busy(tmp_path: Path) -> None:
    server = ShopRedis(find_server(), tmp_path / "redis.sock")
    await server.start()
    try:
        with redis.Redis(unix_socket_path=str(tmp_path / "redis.sock"), decode_responses=True) as raw:
            kept = [raw.config_get(name)[name] for name in ("appendonly", "appendfsync")]
        # With everysec a write waits up to 2 s for a flush that is under way, and a kill loses it though answered.
        assert kept == ["yes", "no"]
    finally:
        await server.stop()


def test_orders_are_refused_or_taken_locally_as_the_buyer_chose(small_shop: ShopProcess) -> None:
    for _ in range(2):
        small_shop.restock()
    before = small_shop.stats()
    with small_shop.visitor() as careful, small_shop.visitor() as bold, small_shop.visitor("Grace") as grace:
        form = token_in(grace.get("/").text)
        bold.post("/outage", data={"outage": "local"})
        bold.post("/redis", data={"do": "stop"})
        refused = order(careful, "refused")
        assert (refused.status_code, refused.headers["content-type"]) == (503, "application/problem+json")
        assert int(refused.headers["retry-after"]) >= 1
        late = token_in(grace.get("/").text)  # the window is lit all the same
        refused_form = send(grace, form)
        assert (refused_form.status_code, int(refused_form.headers["retry-after"]) >= 1) == (503, True)
        assert "We cannot take orders just now" in refused_form.text
        first, again = order(bold, "local"), order(bold, "local")
        assert (first.status_code, first.json()["degraded"], again.content) == (201, True, first.content)
        stats = small_shop.stats()
        assert stats["redis"] == "down"
        assert [stats[name] - before[name] for name in ("orders", "degraded")] == [1, 1]
        bold.post("/redis", data={"do": "start"})
        adopted = before["adopted"] + 2  # the order, and the late form
        until(lambda: small_shop.stats()["adopted"] == adopted, description="the journal is replayed")
        until(
            lambda: small_shop.stats()["workers"][0]["breaker"] == "closed", description="the breaker closes"
        )
        assert any("put into Redis, 0 in conflict" in line["text"] for line in small_shop.stats()["events"])
        assert order(bold, "local").content == first.content
        assert order(careful, "refused").status_code == 201
        assert [send(grace, token).status_code for token in (form, late)] == [201, 201]
    assert small_shop.orders == before["orders"] + 4


def test_two_workers_that_go_on_locally_may_both_sell_and_then_say_so(open_shop: ShopProcess) -> None:
    before, key = open_shop.settled_stats(), str(uuid.uuid4())
    with open_shop.visitor() as bold:
        bold.post("/redis", data={"do": "stop"})
        orders = set()

        def ordered_at_both() -> bool:
            with open_shop.visitor() as buyer:  # a connection of its own, to either worker
                buyer.post("/outage", data={"outage": "local"})
                orders.add(order(buyer, key).json()["order"])
            return len(orders) == 2

        until(ordered_at_both, description="both workers have sold under the same key")
        bold.post("/redis", data={"do": "start"})
        until(
            lambda: open_shop.stats()["conflicts"] == before["conflicts"] + 1,
            description="the second worker to replay finds the first",
        )
        told = {order(bold, key).json()["order"] for _ in range(3)}
    assert (len(told), told < orders) == (1, True)
    stats = open_shop.stats()
    assert stats["orders"] == before["orders"] + 2
    assert stats["oversold"] == before["oversold"] + 1  # one key took one unit from the shelf
    assert any("two owners of one key" in line["text"] for line in stats["events"])
