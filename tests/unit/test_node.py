"""A Cluster's node as a decider: where its calls go when the answer is not simply a reply. No server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from fastdedup import ConfigError, UnavailableError
from fastdedup.kernel.codes import Code
from fastdedup.kernel.operations import Op, ReleaseOp, Reply
from fastdedup.kernel.shards import MAX_HOPS
from fastdedup.kernel.verbs import Verb
from fastdedup.stores.base import Store
from fastdedup.stores.redis.cluster.node import Node, by_slot
from fastdedup.stores.redis.cluster.slots import (
    SLOTS,
    Layout,
    Redirection,
    host_or,
    read_layout,
    read_redirection,
    slot_of,
)
from fastdedup.stores.redis.cluster.store import ClusterStore
from fastdedup.stores.redis.cluster.topology import Topology
from fastdedup.stores.redis.server import ScriptCall, is_untouched

from ..waiting import wait_until

A, B, C = ("a", 1), ("b", 2), ("c", 3)
Script = Callable[[ScriptCall, bool], Any]


class Servers:
    """Answers for all nodes, as a test says: by the address and the keys that are asked for."""

    def __init__(self) -> None:
        self.store = ClusterStore("redis+cluster://a:1", timeout=1.0)
        self.topology: Topology[Node] = self.store.topology
        self.topology.refresh_soon = self._refresh_soon  # type: ignore[method-assign]
        self.refreshes = 0
        self.asked: list[tuple[str, list[bytes], bool]] = []
        self.answers: dict[str, Script] = {}

    def _refresh_soon(self) -> None:
        self.refreshes += 1

    def at(self, address: tuple[str, int], script: Script) -> Node:
        """A node; `script` gives the answer to a call: a word of Redis for an error, else a reply."""
        node = self.topology.node_at(address)
        node.batches_whole = False
        self.answers[node.name] = script

        async def deliver(
            verb: Verb, calls: Sequence[ScriptCall], *, asking: bool = False, guest: bool = False
        ) -> None:
            for call in calls:
                self.asked.append((address[0], [op.wire for op in call.ops], asking))
                answer = script(call, asking)
                call.answer = hiredis.ReplyError(answer) if isinstance(answer, str) else answer

        node.server.deliver = deliver  # type: ignore[method-assign]
        return node

    def holds_all(self, node: Node) -> None:
        self.topology.owners[:] = [node] * SLOTS
        self.topology._primaries = None


@pytest.fixture
def servers() -> Servers:
    return Servers()


def ops(*wires: bytes) -> list[Op]:
    return [ReleaseOp(wire, b"\1o", 0) for wire in wires]


def fine(call: ScriptCall, asking: bool) -> list[Reply]:
    return [Code.OK] * len(call.ops)


async def released(store: Store, *wires: bytes) -> list[Any]:
    return list(await store.execute(Verb.RELEASE, ops(*wires)))


async def test_a_batch_becomes_a_call_for_each_slot(servers: Servers) -> None:
    """The replies stand in the order of the operations all the same."""
    order = {b"{x}1": Code.OK, b"y": Code.LOST, b"{x}2": Code.FOREIGN}
    node = servers.at(A, lambda call, _: [order[op.wire] for op in call.ops])
    servers.holds_all(node)
    assert await released(node, *order) == list(order.values())
    assert [wires for _, wires, _ in servers.asked] == [[b"{x}1", b"{x}2"], [b"y"]]


async def test_moved_is_learned_and_followed(servers: Servers) -> None:
    """The next batch goes there at once, and the whole layout is asked for."""
    node = servers.at(A, lambda call, _: f"MOVED {slot_of(call.ops[0].wire)} b:2")
    other = servers.at(B, fine)
    servers.holds_all(node)
    assert await released(servers.store, b"key") == [Code.OK]
    assert servers.store.shard(b"key") is other
    assert servers.store.shards() == [node, other]
    assert servers.refreshes == 1
    assert await released(servers.store, b"key") == [Code.OK]
    assert [host for host, _, _ in servers.asked] == ["a", "b", "b"]
    [redirect] = await released(node, b"key")
    assert redirect.to is other, "what still comes to the old one is sent on"


async def test_ask_is_followed_but_not_learned(servers: Servers) -> None:
    """The slot is still on its way."""
    node = servers.at(A, lambda call, _: "ASK 1 b:2")
    servers.at(B, lambda call, asking: fine(call, asking) if asking else "MOVED 1 a:1")
    servers.holds_all(node)
    assert await released(servers.store, b"key") == [Code.OK]
    assert servers.asked == [("a", [b"key"], False), ("b", [b"key"], True)]
    assert servers.store.shard(b"key") is node


@pytest.mark.parametrize("refusal", ["TRYAGAIN Multiple keys request during rehashing of slot", "ASK 1 b:2"])
async def test_keys_of_a_slot_that_is_half_moved_go_one_by_one(servers: Servers, refusal: str) -> None:
    """Each of them is in one place. Redis 6.2 says ASK of all of them, also of those that are still here."""

    def here(call: ScriptCall, asking: bool) -> Any:
        if len(call.ops) > 1:
            return refusal
        return "ASK 1 b:2" if call.ops[0].wire == b"{x}2" else [Code.OK]

    node = servers.at(A, here)
    servers.at(B, lambda call, asking: [Code.LOST])
    servers.holds_all(node)
    assert await released(servers.store, b"{x}1", b"{x}2", b"{x}3") == [Code.OK, Code.LOST, Code.OK]


async def test_a_slot_that_never_settles_is_unavailable(servers: Servers) -> None:
    """Hops are bounded; so is TRYAGAIN for a single key."""
    node = servers.at(A, lambda call, _: "MOVED 1 b:2")
    servers.at(B, lambda call, _: "MOVED 1 a:1")
    servers.holds_all(node)
    with pytest.raises(UnavailableError, match="being moved"):
        await released(servers.store, b"key")
    assert len(servers.asked) <= MAX_HOPS
    servers.holds_all(servers.at(C, lambda call, _: "TRYAGAIN"))
    with pytest.raises(UnavailableError, match="being moved"):
        await released(servers.topology.node_at(C), b"key")


async def test_a_batch_goes_to_its_node_in_one_call(servers: Servers) -> None:
    """Whatever the slots; only the keys that the node does not serve are asked for again, one by one."""

    def here(call: ScriptCall, asking: bool) -> Any:
        if not call.declared:
            return [Code.ELSEWHERE if op.wire in (b"gone", b"moving") else Code.OK for op in call.ops]
        return "MOVED 1 b:2" if call.ops[0].wire == b"gone" else "ASK 1 c:3"

    node = servers.at(A, here)
    node.batches_whole = True
    servers.at(B, lambda call, asking: [Code.LOST])
    servers.at(C, lambda call, asking: fine(call, asking) if asking else "MOVED 1 a:1")
    servers.holds_all(node)
    batch = [b"x", b"gone", b"y", b"moving"]
    assert await released(servers.store, *batch) == [Code.OK, Code.LOST, Code.OK, Code.OK]
    assert servers.asked[:3] == [("a", batch, False), ("a", [b"gone"], False), ("a", [b"moving"], False)]
    assert sorted(servers.asked[3:]) == [("b", [b"gone"], False), ("c", [b"moving"], True)]


@pytest.mark.parametrize("error", ["CLUSTERDOWN Hash slot not served", "LOADING x", "OOM x", "NOPERM x"])
async def test_one_slots_trouble_is_a_reply_all_slots_trouble_is_raised(servers: Servers, error: str) -> None:
    """So the breaker counts a node that answers nothing, and no node that answers something."""
    node = servers.at(A, lambda call, _: error if b"bad" in call.ops[0].wire else [Code.OK])
    servers.holds_all(node)
    good, bad, worse = await released(node, b"good", b"bad1", b"bad2")
    assert good == Code.OK
    assert isinstance(bad, UnavailableError)
    assert isinstance(worse, UnavailableError)
    assert bad is not worse
    with pytest.raises(UnavailableError):
        await released(node, b"bad1", b"bad2")
    assert bool(servers.refreshes) is error.startswith(("CLUSTERDOWN", "LOADING"))


async def test_a_fault_is_raised_whatever_the_others_say(servers: Servers) -> None:
    """A programming error is no outage."""
    node = servers.at(A, lambda call, _: "ERR bad" if call.ops[0].wire == b"bad" else [Code.OK])
    servers.holds_all(node)
    with pytest.raises(ConfigError, match="a mistake, not an outage"):
        await released(node, b"good", b"bad")


async def test_the_store_by_itself_spreads_a_batch_over_its_nodes(servers: Servers) -> None:
    """For whoever uses it without a router: a node that is down concerns its own keys."""
    node = servers.at(A, fine)
    servers.holds_all(node)
    down = servers.at(B, lambda call, _: ConnectionRefusedError("refused"))
    servers.topology.owners[slot_of(b"down1")] = servers.topology.owners[slot_of(b"down2")] = down
    servers.topology.owners[slot_of(b"nobody")] = None
    replies = await released(servers.store, b"up1", b"down1", b"nobody", b"up2", b"down2")
    assert [reply if reply is Code.OK else type(reply) for reply in replies] == [
        Code.OK,
        UnavailableError,
        UnavailableError,
        Code.OK,
        UnavailableError,
    ]
    assert "refused" in str(replies[1])
    assert "no node is known" in str(replies[2])
    with pytest.raises(UnavailableError):
        await released(servers.store, b"down1", b"nobody")
    servers.holds_all(servers.at(C, lambda call, _: "ERR bad"))
    with pytest.raises(ConfigError):
        await released(servers.store, b"key")


async def test_a_probe_asks_for_a_key_of_the_nodes_own(servers: Servers) -> None:
    """Whatever slots it has; a node that has none is no good; the others are asked meanwhile, and when it fails."""
    node, other = servers.at(A, fine), servers.at(B, fine)
    servers.holds_all(other)
    tried: list[bytes] = []
    answers: list[Any] = [0, 0, 0, hiredis.ReplyError("ASK 1 b:2"), hiredis.ReplyError("READONLY x")]

    async def try_claim(key: bytes) -> Any:
        tried.append(key)
        return answers.pop(0)

    node.server.try_claim = try_claim  # type: ignore[method-assign]
    with pytest.raises(UnavailableError, match="holds no slot"):
        await node.probe(b"t:~!probe")
    servers.topology.owners[77] = node
    servers.topology._primaries = None
    await node.probe(b"t:~!probe")
    await node.probe(b"t:~!probe")
    await node.probe(b"{t}:~!probe")
    assert {slot_of(key) for key in tried} == {77}
    assert tried[0] == tried[1], "found once"
    assert tried[0].startswith(b"t:~!probe")
    before = servers.refreshes
    await node.probe(b"t:~!probe")
    assert servers.refreshes == before + 1
    with pytest.raises(UnavailableError, match="replica"):
        await node.probe(b"t:~!probe")
    assert servers.refreshes == before + 3


async def test_a_node_without_slots_is_let_go(servers: Servers) -> None:
    """It is no part any more; what comes back later is a new one."""
    node, other = servers.at(A, fine), servers.at(B, fine)
    servers.topology.adopt(Layout([(0, 100, A), (101, SLOTS - 1, B)], {C}, 5))
    assert servers.store.shards() == [node, other]
    servers.topology.adopt(Layout([(0, SLOTS - 1, B)], {A}, 6))
    assert servers.store.shards() == [other]
    servers.topology.adopt(Layout([(0, 100, A)], set(), 7))
    [back] = servers.store.shards()
    assert back is not node
    with pytest.raises(UnavailableError, match="no node is known"):
        servers.store.shard(next(b"%d" % n for n in range(1000) if slot_of(b"%d" % n) > 100))


async def test_the_layout_is_asked_for_once_for_all_and_not_too_often() -> None:
    """Whoever wants it shares the question under way; the next one comes after a pause."""
    store = ClusterStore("redis+cluster://a:1,b:2", timeout=1.0)
    topology = store.topology
    times: list[float] = []
    epochs = {A: 3, B: 7}
    loop = asyncio.get_running_loop()

    async def ask(address: Any) -> Layout:
        times.append(loop.time())
        layout = Layout([(0, SLOTS - 1, address)], set(), epochs[address])
        topology._check(layout)
        return layout

    topology.ask = ask  # type: ignore[method-assign]
    try:
        topology._epoch = 5
        await asyncio.gather(*(topology.refresh() for _ in range(10)))
        assert len(times) == 2, "each of the two seeds once"
        assert [node.name for node in topology.primaries] == ["Redis at b:2"], "the newer epoch"
        asked = times[-1]
        epochs[B] = 2
        await topology.refresh()
        assert loop.time() - asked > 0.2
        assert [node.name for node in topology.primaries] == ["Redis at a:1"], "nobody knows better"
    finally:
        await store.aclose()


async def test_the_layout_is_asked_for_again_while_a_probe_hangs() -> None:
    """However long the probe's deadline is: the node may be replaced at any time."""
    store = ClusterStore("redis+cluster://a:1", timeout=1.0)
    asked: list[Any] = []

    async def ask(address: Any) -> Layout:
        asked.append(address)
        raise UnavailableError("not yet")

    store.topology.ask = ask  # type: ignore[method-assign]
    try:
        with store.topology.asking():
            await wait_until(lambda: len(asked) == 3, description="a third question")
    finally:
        await store.aclose()


async def test_what_was_answered_and_goes_out_again_is_marked(servers: Servers) -> None:
    """One connection broke: the engine sends the whole batch again, also what another node has executed."""
    node = servers.at(A, fine)
    servers.holds_all(node)
    batch = ops(b"x", b"y")
    first, second = by_slot(batch)
    first.answer, second.answer = [Code.OK], ConnectionError("broken")
    told: list[Any] = []
    node._end(batch, [first, second], [None, None], told.append)
    for op in batch:
        assert op.resent  # type: ignore[attr-defined]
        op.resent = False  # type: ignore[attr-defined]
    node._end(batch, [second], [Code.OK, None], told.append)
    assert told == [None, None]
    assert [op.resent for op in batch] == [True, True]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (hiredis.ReplyError("NOSCRIPT No matching script."), True),
        (hiredis.ReplyError("MOVED 1 127.0.0.1:7001"), True),
        (hiredis.ReplyError("NOPERM No permissions to access a key"), True),
        (hiredis.ReplyError("NOPERM ACL failure in script: No permissions to access a key"), False),
        (hiredis.ReplyError("ERR user_script:7: attempt to index a nil value"), False),
        (ConnectionError("broken"), False),
    ],
)
def test_only_a_refusal_of_the_whole_script_proves_that_nothing_was_done(
    answer: Exception, expected: bool
) -> None:
    assert is_untouched(answer) is expected


# Slots of a Cluster: computed as Redis does, and read from what its nodes say.


@pytest.mark.parametrize(
    ("key", "slot"),
    [
        (b"123456789", 0x31C3),  # the specification's own example
        (b"foo", 12_182),
        (b"", 0),
        (b"{user1000}.following", 3_443),
        (b"{user1000}.followers", 3_443),
        (b"foo{}{bar}", 8_363),  # nothing between the first braces: all of it counts
        (b"foo{{bar}}zap", 4_015),  # between the first "{" and the first "}" after it
        (b"foo{bar}{zap}", 5_061),
        (b"}{bar}", 5_061),
    ],
)
def test_a_key_falls_into_its_slot(key: bytes, slot: int) -> None:
    """The examples of the Cluster specification."""
    assert slot_of(key) == slot


@given(st.binary(max_size=40) | st.text("{}ab", max_size=12).map(str.encode))
def test_any_key_falls_into_the_slot_that_redis_py_says(key: bytes) -> None:
    """Braces or none."""
    assert slot_of(key) == key_slot(key)


@pytest.mark.parametrize(
    ("error", "found"),
    [
        ("MOVED 3999 10.0.0.1:7000", Redirection(True, 3999, ("10.0.0.1", 7000))),
        ("ASK 0 host.example:7000", Redirection(False, 0, ("host.example", 7000))),
        ("MOVED 16383 ::1:7000", Redirection(True, 16383, ("::1", 7000))),
        ("MOVED 1 :7000", Redirection(True, 1, ("asked", 7000))),
        ("ASK 1 ?:7000", Redirection(False, 1, ("asked", 7000))),
        ("MOVED 16384 host:7000", None),
        ("MOVED 1 host", None),
        ("MOVED", None),
        ("MOVED x y:z", None),
        ("CLUSTERDOWN Hash slot not served", None),
        ("ERR MOVED 1 host:7000", None),
    ],
)
def test_a_redirection_is_read(error: str, found: Redirection | None) -> None:
    """A node that does not know its own name has the address that we asked."""
    assert read_redirection(error, "asked") == found


def test_a_layout_is_read() -> None:
    """Of Redis 6.2 (three fields a node) and of 7 (four); hosts empty or unknown are the one asked."""
    slots: list[Any] = [
        [0, 5, [b"a", 7000, b"one"], [b"b", 7001, b"two"]],
        [6, 6, [b"", 7002, b"three", []], [None, 7003, b"four", [b"hostname", b"x"]]],
        [7, 16383, [b"?", 7004, b"five", []]],
    ]
    layout = read_layout(slots, b"cluster_state:ok\r\ncluster_current_epoch:17\r\n", "asked")
    assert layout.ranges == [(0, 5, ("a", 7000)), (6, 6, ("asked", 7002)), (7, 16383, ("asked", 7004))]
    assert layout.replicas == {("b", 7001), ("asked", 7003)}
    assert layout.ids == {b"one", b"three", b"five"}
    assert (layout.epoch, layout.ok) == (17, True)
    assert read_layout(slots, None, "asked").epoch == 0
    assert not read_layout(slots, b"cluster_state:fail\r\ncluster_current_epoch:17\r\n", "asked").ok


def test_a_host_is_the_announced_one() -> None:
    """If there is one."""
    assert [host_or(named, "asked") for named in ("host", "", "?")] == ["host", "asked", "asked"]
