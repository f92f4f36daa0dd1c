"""A sidecar that refused for a limit, a quota or a rule was taken for one that is down: policies granted its keys."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fastdedup import BreakerState, Claim, ConfigError, Dedup, LocalLRU, Outcome, UnavailableError
from fastdedup.events import Degraded, Event
from fastdedup.kernel.codes import Code
from fastdedup.kernel.operations import Op, Reply, mark_resent
from fastdedup.kernel.replies import RefusedAlone
from fastdedup.kernel.verbs import Verb
from fastdedup.testing import FakeStore

from ..otel import Otel
from ..servers import RedisServer
from ..sidecar.running import Sidecar
from ..waiting import acquired, wait_until

CONFIG = """
allow_stores = true

[namespaces.mail]

[limits]
replies = 65536

[[sockets]]
path = "{run}/slow.sock"
claims_per_second = 0.01
allow_stores = true

[[sockets]]
path = "{run}/full.sock"
pending = 1
allow_stores = true

[[sockets]]
path = "{run}/mail.sock"
namespaces = ["mail"]
claims_per_second = 5
allow_stores = true
"""


@pytest.fixture(scope="module")
def sidecar(redis_server: RedisServer) -> Iterator[Sidecar]:
    """A sidecar with little room for replies, sockets with quotas, and one that serves a single namespace."""
    with Sidecar("--url", redis_server.url, "--timeout", "5", "--grace", "0.1", config=CONFIG) as sidecar:
        yield sidecar
    with redis_server.client() as raw:
        raw.flushdb()


def url_of(path: Path) -> str:
    return f"sidecar://{path}"


async def test_results_that_have_no_room_at_once_come_one_after_the_other(sidecar: Sidecar) -> None:
    """LocalLRU granted keys that had succeeded. Traced claims also learn whose record they have met."""
    keys = [f"large-{number}" for number in range(12)]
    otel = Otel()
    async with (
        otel.instrument(Dedup(url_of(sidecar.path), timeout=10)) as first,
        otel.instrument(
            Dedup(url_of(sidecar.path), timeout=10, known_duplicates=0, on_unavailable=LocalLRU())
        ) as other,
    ):
        for spans in (contextlib.nullcontext(), otel.tracer.start_as_current_span("caller")):
            with spans:
                for key in keys:
                    await first.forget(key)
                    await (await first.claim(key)).complete("x" * 20_000)
                claims = await asyncio.gather(*map(other.claim, keys))
            assert {claim.outcome for claim in claims} == {Outcome.SUCCEEDED}


async def test_a_result_that_never_has_room_is_refused(sidecar: Sidecar) -> None:
    async with (
        Dedup(url_of(sidecar.path), timeout=10) as first,
        Dedup(url_of(sidecar.path), timeout=10, on_unavailable=LocalLRU()) as other,
    ):
        await (await first.claim("larger")).complete("x" * 70_000)
        with pytest.raises(UnavailableError, match=r"limits\.replies"):
            await other.claim("larger")


async def test_no_policy_grants_a_key_whose_large_result_had_no_turn_in_time() -> None:
    """LocalLRU granted it, because a claim that is given up after half of the timeout looked like an outage."""
    others_may_end = asyncio.Event()

    class NoRoom(FakeStore):
        others = 0

        async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
            if verb is Verb.CLAIM:
                await wait_until(lambda: self.others >= 3, description="the other batches are under way")
                return [Code.AGAIN for _ in ops]
            self.others += 1
            await others_may_end.wait()
            return await super().execute(verb, ops)

    async with Dedup(NoRoom(), timeout=1, on_unavailable=LocalLRU()) as dedup:
        claims = asyncio.gather(dedup.claim("key"), dedup.claim("key"), return_exceptions=True)
        move = dedup.machine("m", initial="a", transitions={"a": ("b",), "b": ()}).transition("m", to="b")
        others = asyncio.gather(dedup.get("key"), dedup.forget("key"), dedup.tokens.issue(), move)
        assert [repr(answer) for answer in await claims] == [
            repr(UnavailableError("the store was busy for 1 s"))
        ] * 2
        others_may_end.set()
        await others


async def test_a_refused_namespace_is_refused_alone(sidecar: Sidecar) -> None:
    """It failed all operations of its batch. Each sending of the batch was taken from `claims_per_second`."""
    path = sidecar.path.parent / "mail.sock"
    async with Dedup(url_of(path), timeout=5, namespace="mail", on_unavailable=LocalLRU()) as mail:
        payments = mail.scoped("payments")
        one, refused, two = await asyncio.gather(
            mail.claim("one"), payments.claim("key"), mail.claim("two"), return_exceptions=True
        )
        assert isinstance(refused, ConfigError)
        assert "serves mail only" in str(refused)
        assert isinstance(one, Claim)
        assert isinstance(two, Claim)
        assert one.acquired
        assert two.acquired
        assert not one.degraded


async def test_a_refused_namespace_is_refused_alone_though_the_sidecar_restarts(
    sidecar: Sidecar, tmp_path: Path
) -> None:
    """All of the batch failed with ConfigError if the connection broke before the sidecar refused it."""
    breaks = 2  # once for the batch that is begun, once for its first `execute`

    async def pass_on(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        nonlocal breaks
        answers, to_sidecar = await asyncio.open_unix_connection(sidecar.path.parent / "mail.sock")
        back = asyncio.create_task(pass_back(answers, to_client))
        while request := await client.read(1 << 16):
            if b"FD.RUN" in request and breaks:
                breaks -= 1
                break
            to_sidecar.write(request)
        to_sidecar.close()
        await back
        to_client.close()

    async def pass_back(answers: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        while answer := await answers.read(1 << 16):
            to_client.write(answer)

    path = tmp_path / "proxy.sock"
    async with (
        await asyncio.start_unix_server(pass_on, path),
        Dedup(url_of(path), timeout=5, namespace="mail") as mail,
    ):
        one, refused = await asyncio.gather(
            mail.claim("three"), mail.scoped("payments").claim("key"), return_exceptions=True
        )
    assert not breaks
    assert isinstance(refused, ConfigError)
    assert isinstance(one, Claim)
    assert one.acquired


async def test_clients_over_their_rate_are_told_when_to_ask_again(sidecar: Sidecar) -> None:
    """They took it for a sidecar that leaves: the breaker opened, and LocalLRU granted."""
    url = url_of(sidecar.path.parent / "slow.sock")
    async with Dedup(url, timeout=5, on_unavailable=LocalLRU()) as dedup:
        assert (await dedup.claim("key")).acquired
        for number in range(5):
            with pytest.raises(UnavailableError, match="claims_per_second") as refused:
                await dedup.claim(f"over-{number}")
            assert refused.value.retry_after > 10
        with pytest.raises(UnavailableError, match="claims_per_second") as refused:
            await dedup.records()
        assert refused.value.retry_after > 10
        assert dedup.breaker is BreakerState.CLOSED
        assert await dedup.get("key") is not None
        assert len(dedup.gate.connection.orphans) == 0


async def test_operations_over_the_quota_are_refused_and_no_policy_decides(sidecar: Sidecar) -> None:
    """LocalLRU granted a key that another process holds."""
    url = url_of(sidecar.path.parent / "full.sock")
    async with (
        Dedup(url_of(sidecar.path), timeout=5) as holder,
        Dedup(url, timeout=5, on_unavailable=LocalLRU()) as dedup,
    ):
        await holder.claim("held")
        one, held = await asyncio.gather(dedup.claim("one"), dedup.claim("held"), return_exceptions=True)
        assert isinstance(one, Claim)
        assert isinstance(held, UnavailableError)
        assert "may be (pending)" in str(held)
        assert held.retry_after == 0.1


async def test_what_ends_or_extends_a_claim_is_never_over_the_quota(sidecar: Sidecar) -> None:
    """LocalLRU released and granted a key that the store still held."""
    url, events = url_of(sidecar.path.parent / "full.sock"), list[Event]()
    async with (
        Dedup(url_of(sidecar.path), timeout=5) as other,
        Dedup(url, timeout=5, on_unavailable=LocalLRU(), on_event=events.append) as dedup,
    ):
        one, two = await dedup.claim("ends-1"), await dedup.claim("ends-2")
        await asyncio.gather(one.renew(), two.renew())
        await asyncio.gather(one.release(), two.release())
        assert (await other.claim("ends-1")).acquired
        assert (await other.claim("ends-2")).acquired
        assert await asyncio.gather(dedup.forget("ends-1"), dedup.forget("ends-2")) == [True, True]
    assert not any(isinstance(event, Degraded) for event in events)


async def test_a_claim_that_was_sent_twice_and_then_refused_is_released() -> None:
    """The first sending may have taken effect, although the second one did nothing."""

    class LostReply(FakeStore):
        refuses = True

        async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
            replies = await super().execute(verb, ops)
            if not self.refuses:
                return replies
            self.refuses = False
            mark_resent(ops)
            return [RefusedAlone("over the quota") for _ in ops]

    async with Dedup(LostReply()) as dedup:
        with pytest.raises(UnavailableError, match="over the quota"):
            await dedup.claim("key", lease=60)
        await acquired(dedup, "key", lease=60)


@pytest.mark.parametrize("is_resent", [False, True])
async def test_an_id_that_was_refused_is_taken_back_if_it_was_sent_twice(is_resent: bool) -> None:
    """Each refused id was looked for up to 8 times, and drove out the ids that may be there."""
    verbs = list[Verb]()

    class Refuses(FakeStore):
        async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
            verbs.append(verb)
            if verbs.count(Verb.FIRST) != 1 or verb is not Verb.FIRST:
                return await super().execute(verb, ops)
            if is_resent:
                await super().execute(verb, ops)
                mark_resent(ops)
            return [RefusedAlone("over the quota") for _ in ops]

    async with Dedup(Refuses()) as dedup:
        ledger = dedup.ledger("orders", window=60, capacity=1000)
        with pytest.raises(UnavailableError, match="over the quota"):
            await ledger.first("7")
        assert (Verb.FORGET_ID in verbs) is is_resent
        assert await ledger.first("7")


async def test_no_policy_grants_a_key_that_the_frame_has_no_room_for(redis_server: RedisServer) -> None:
    options = ("--url", redis_server.url, "--timeout", "5", "--grace", "0.1")
    with Sidecar(*options, config="allow_stores = true\n[limits]\nframe = 100\n") as narrow:
        async with Dedup(url_of(narrow.path), timeout=5, on_unavailable=LocalLRU()) as dedup:
            with pytest.raises(UnavailableError, match="more than the 100 bytes"):
                await dedup.claim("key")
