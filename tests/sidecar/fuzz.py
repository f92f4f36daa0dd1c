"""Throws hostile bytes at both wires: `python -m tests.sidecar.fuzz --inputs 1000000 --seed 1`.

Each input is checked three ways that need no second implementation: nothing escapes or hangs, each complete
command or request has one answer in its place, and how the bytes were cut into pieces changes none of them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import random
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import uvicorn

from fastdedup import Dedup, LocalLRU
from fastdedup.kernel.verbs import Verb
from fastdedup.sidecar.http.application import HttpApp
from fastdedup.sidecar.http.protocol import HttpProtocol
from fastdedup.sidecar.limits import Limits
from fastdedup.sidecar.namespaces import Namespaces, RawCodec
from fastdedup.sidecar.resp.commands import WITH_STORES
from fastdedup.sidecar.resp.connection import RespConnection
from fastdedup.sidecar.resp.frames import FrameError, Frames
from fastdedup.sidecar.service.metrics import Exposition
from fastdedup.stores.memory import MemoryStore
from fastdedup.stores.sidecar.wire import BY_NAME, MAX_ARGUMENTS, WITH_LEDGER

LIMITS = Limits(frame=64 * 1024, arguments=16, in_flight=64, batch=10, namespaces=20)
"""Small, so that inputs reach them."""
MAX_INPUT = 200_000
MAX_GROWTH = 256 * 1024 * 1024
"""Bytes that the process may grow by, over any number of inputs."""
TURNS = 2000
"""Of the loop, in which an input must be answered."""


class Finding(AssertionError):
    """What must not be."""


class Transport(asyncio.Transport):
    """Takes what a protocol writes, and closes it as a loop would."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.written = bytearray()
        self.paused = self.closing = self.lost = False
        self._protocol = protocol
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        if self.lost:
            raise Finding("written to after it was lost")
        if not self.closing:
            self.written += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            asyncio.get_running_loop().call_soon(self.lose)

    abort = close

    def lose(self, fault: Exception | None = None) -> None:
        """The connection is gone."""
        if not self.lost:
            self.closing = self.lost = True
            self._protocol.connection_lost(fault)

    async def take(self, data: Sequence[bytes], slowly: bool) -> None:
        """Hand pieces to the protocol; slowly: each once it reads on."""
        for piece in data:
            if self.closing:
                break
            self._protocol.data_received(piece)
            if slowly:
                await asyncio.sleep(0)
                for _ in range(TURNS):
                    if not self.paused or self.closing:
                        break
                    await asyncio.sleep(0)

    def pause_reading(self) -> None:
        self.paused = True

    def is_reading(self) -> bool:
        return not self.paused

    def resume_reading(self) -> None:
        self.paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class Faults(logging.Handler):
    """Keeps what is logged with an exception: nothing that a client sends is an internal error."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.seen.append(logging.Formatter().format(record))


# Pieces


def pieces(data: bytes, choice: random.Random) -> list[bytes]:
    """Cut in a few places, or, if it is short, into bytes."""
    if len(data) < 300 and choice.random() < 0.3:
        return [data[at : at + 1] for at in range(len(data))]
    cuts = sorted(choice.randrange(len(data) + 1) for _ in range(choice.randrange(1, 6)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]


# RESP


def pack(*parts: bytes) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def cut(data: Sequence[bytes], limits: Limits = LIMITS) -> tuple[list[list[bytes]], str]:
    """Return the commands of a stream, and what is wrong with it."""
    frames = Frames(max_bytes=limits.frame, max_arguments=limits.arguments)
    commands: list[list[bytes]] = []
    for piece in data:
        try:
            commands += frames.feed(piece)
        except FrameError as fault:
            if frames.feed(piece) or frames.unfinished:
                raise Finding("what is no RESP is parsed further") from None
            return commands + fault.before, str(fault)
    return commands, ""


async def check_frames(data: bytes, choice: random.Random) -> None:
    """However a stream is cut, its commands are the same, and within bounds."""
    commands, fault = cut([data])
    if (commands, fault) != cut(pieces(data, choice)):
        raise Finding("the pieces change the commands")
    for command in commands:
        most = MAX_ARGUMENTS if command[0].upper() == b"FD.RUN" else LIMITS.arguments
        if not 0 < len(command) <= most or len(pack(*command)) > LIMITS.frame:
            raise Finding("a command beyond its bounds")


def replies(data: bytes) -> list[Any]:
    """Read RESP replies; a Finding where they are none."""
    at = 0
    out: list[Any] = []

    def one() -> Any:
        nonlocal at
        ends = data.find(b"\r\n", at)
        if ends < 0:
            raise Finding(f"half a reply: {data[at:][:80]!r}")
        kind, text = data[at : at + 1], data[at + 1 : ends]
        at = ends + 2
        if kind in b"+-:#_":
            return kind + (text if kind in b"+-" else b"")
        size = int(text)
        if kind == b"$":
            if size < 0:
                return None
            value = data[at : at + size]
            if data[at + size : at + size + 2] != b"\r\n":
                raise Finding("a bulk string that is none")
            at += size + 2
            return value
        if kind in b"*%>":
            return [one() for _ in range(size * (2 if kind == b"%" else 1))]
        raise Finding(f"no reply: {kind + text!r}")

    while at < len(data):
        reply = one()
        if not (isinstance(reply, list) and reply[:1] == [b"freed"]):  # news, which nobody asked for just now
            out.append(reply)
    return out


def shape(command: list[bytes], reply: Any) -> Any:
    """Return what a reply is whatever the commands beside it do: those of a connection run at once."""
    if not command[0].upper().startswith(b"FD."):
        return reply if command[0].upper() not in (b"HELLO", b"CLIENT") else type(reply)
    refused = isinstance(reply, bytes) and reply.startswith(b"-ERR") and b"not ours" not in reply
    return reply if refused else None


class Fuzz:
    """One gate over `memory://`, and the checks against it."""

    def __init__(self, root: Dedup, store: MemoryStore) -> None:
        self.root = root
        self.store = store
        self.faults = Faults()
        self.closed = False
        self.counts: Counter[str] = Counter()
        logger = logging.getLogger("fastdedup")
        logger.addHandler(self.faults)
        logger.propagate = False
        asyncio.get_running_loop().set_exception_handler(self._escaped)
        self._new_gate()

    def _escaped(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.faults.seen.append(f"{context.get('message')}: {context.get('exception')!r}")

    def _new_gate(self) -> None:
        self.namespaces = Namespaces(self.root, limits=LIMITS)
        self.namespaces.render_metrics = Exposition(self.namespaces).render
        self.app = HttpApp(self.namespaces)
        self._state = uvicorn.server.ServerState()

    def _forget(self) -> None:
        """So that an input meets what it met before."""
        self.store.clear()

    def _check_log(self) -> None:
        if self.faults.seen:
            fault = self.faults.seen.pop()
            self.faults.seen.clear()
            raise Finding(f"an internal error: {fault}")

    async def _settle(self, done: Callable[[], bool], waits: bool, what: str) -> bool:
        for _ in range(20 if waits else TURNS):
            if done():
                return True
            await asyncio.sleep(0)
        if waits:
            return False
        ends = time.monotonic() + 5.0
        while not done():
            if time.monotonic() > ends:
                raise Finding(f"{what}: no answer")
            await asyncio.sleep(0.01)
        return True

    async def close(self) -> None:
        """End it, and let go of what it changed in this process."""
        await self.root.aclose()
        logger = logging.getLogger("fastdedup")
        logger.removeHandler(self.faults)
        logger.propagate = True

    # RESP

    async def resp(self, data: bytes, choice: random.Random) -> None:
        """Each command gets its reply, in its place."""
        commands, fault = cut([data])
        names = {command[0].upper() for command in commands}
        waits = b"WAIT" in data.upper() or b"FD.LISTEN" in names
        whole = await self._say([data], False, waits)
        self._check_log()
        names_in_order = [command[0].upper() for command in commands]
        if b"QUIT" in names:  # what comes after it gets no reply
            commands, fault = commands[: names_in_order.index(b"QUIT") + 1], ""
        expected = len(commands) + bool(fault)
        if not waits and len(whole) != expected:
            raise Finding(f"{len(whole)} replies to {expected} commands")
        for command, reply in zip(commands, whole, strict=False):
            self._check_reply(command, reply)
        if not waits:
            part = await self._say(pieces(data, choice), False, waits)
            slow = await self._say(pieces(data, choice), True, waits)
            for replies in (part, slow):
                if len(replies) != expected:
                    raise Finding(f"{len(replies)} replies to {expected} commands, in pieces")
                for command, one, other in zip(commands, whole, replies, strict=False):
                    if shape(command, one) != shape(command, other):
                        raise Finding(f"the pieces change a reply to {command!r}: {one!r} {other!r}")
        self._check_log()

    def _check_reply(self, command: list[bytes], reply: Any) -> None:
        name = command[0].upper()
        if name == b"PING" and reply != (command[1] if len(command) > 1 else b"+PONG"):
            refused = b"-ERR wrong number" if len(command) > 2 else b"-UNAVAILABLE"
            if not (isinstance(reply, bytes) and reply.startswith(refused)):
                raise Finding(f"{reply!r} to {command!r}")
        elif (
            name == b"FD.CLAIM"
            and not (isinstance(reply, list) and len(reply) == 7)
            and not (isinstance(reply, bytes) and reply.startswith(b"-"))
        ):
            raise Finding(f"{reply!r} to {command!r}")

    async def _say(self, data: Sequence[bytes], slowly: bool, waits: bool) -> list[Any]:
        self._forget()
        connections: set[Any] = set()
        connection = RespConnection(self.namespaces, connections, WITH_STORES)
        transport = Transport(connection)
        await transport.take(data, slowly)
        await self._settle(lambda: not connection.places, waits, "RESP")
        if not waits and transport.paused and not transport.closing:
            raise Finding("reading stays paused with nothing under way")
        transport.lose()
        await asyncio.sleep(0)
        if connections:
            raise Finding("a lost connection is still counted")
        if not waits and connection.extra:
            raise Finding(f"{connection.extra} operations are never accounted for")
        await self._settle(
            lambda: not connection.tasks.brief.tasks | connection.tasks.patient.tasks,
            False,
            "a task of a lost connection",
        )
        return replies(bytes(transport.written))

    # HTTP

    async def http(self, data: bytes, choice: random.Random) -> None:
        """Each request gets its answer, in its place; none is a 500."""
        waits = b"wait" in data.lower() or b"\\u00" in data
        whole, asked, complete = await self._ask([data], False, waits)
        closed = self.closed
        self._check_log()
        self._check_answers(whole, asked, complete, waits)
        slow, begun, complete = await self._ask(pieces(data, choice), True, waits)
        self._check_answers(slow, begun, complete, waits)
        if begun < asked and not self.closed:
            raise Finding(f"{begun} requests in pieces, {asked} at once")
        if begun > asked and not closed:
            raise Finding(f"{asked} requests at once, {begun} in pieces")
        self._check_log()

    def _check_answers(self, answers: list[int], begun: int, complete: int, waits: bool) -> None:
        final = [status for status in answers if status >= 200]
        if any(not (200 <= status < 300 or 400 <= status < 500) for status in final):
            raise Finding(f"answered {answers}")
        if not waits and not complete <= len(final) <= begun + 1:
            raise Finding(f"{answers} to {complete} requests, {begun} begun")

    async def _ask(self, data: Sequence[bytes], slowly: bool, waits: bool) -> tuple[list[int], int, int]:
        self._forget()
        names = self.namespaces
        connection = Counting(LIMITS, names.memory, names.turns, self.app, self._state)
        transport = Transport(connection)
        await transport.take(data, slowly)

        def idle() -> bool:
            running = connection._running
            return transport.closing or (
                not connection.pipeline
                and not connection.full
                and (running is None or running.answered or not running.whole)
            )

        await self._settle(idle, waits, "HTTP")
        methods = connection.methods
        self.closed = transport.closing
        complete = connection.complete
        if transport.closing:
            complete = min(complete, len(statuses(bytes(transport.written), methods)))
        transport.lose()
        await asyncio.sleep(0)
        await self._settle(lambda: not self._state.tasks, False, "a task of a lost connection")
        if self._state.connections:
            raise Finding("a lost connection is still counted")
        return statuses(bytes(transport.written), methods), len(methods), complete


class Counting(HttpProtocol):
    """Counts the requests that came whole."""

    def __init__(self, *positional: Any, **options: Any) -> None:
        super().__init__(*positional, **options)
        self.complete = 0
        self.methods: list[bytes] = []

    def on_headers_complete(self) -> None:
        self.methods.append(self.parser.get_method())
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self.complete += 1
        super().on_message_complete()


def statuses(data: bytes, methods: Sequence[bytes]) -> list[int]:
    """Read HTTP answers; a Finding where they are none."""
    at, found, finals = 0, [], 0
    while at < len(data):
        ends = data.find(b"\r\n\r\n", at)
        head = re.match(rb"HTTP/1\.1 (\d\d\d) ", data[at:ends]) if ends > 0 else None
        if head is None:
            raise Finding(f"no answer: {data[at:][:200]!r}")
        status = int(head[1])
        found.append(status)
        size = re.search(rb"\r\ncontent-length: (\d+)", data[at:ends])
        at = ends + 4
        if status >= 200:
            headless = (
                finals < len(methods) and methods[finals] == b"HEAD" and data[at : at + 5] in (b"", b"HTTP/")
            )
            finals += 1
            if size is None:
                raise Finding("an answer without a length")
            body = data[at : at + (0 if headless else int(size[1]))]
            at += len(body)
            if not headless and len(body) != int(size[1]):
                raise Finding("half an answer")
    return found


# Inputs

_KEYS = (
    b"k",
    b"order:1",
    b"\xff",
    b"",
    b"x" * 1024,
    b"default:=k",
    b"default:#k",
    b"sms:?k",
    b"\r\n",
    "é".encode(),
)
_OWNER_FIELD = b"\0" + b"o" * 10
_PROOF = (1).to_bytes(7, "big") + _OWNER_FIELD
_RECORD = b"\1P" + (7).to_bytes(7, "big") + b"\0" * 8 + b"\0" + b"o" * 10 + b"r"


def some_command(choice: random.Random) -> bytes:
    """A command that is well formed, or nearly."""
    key = choice.choice(_KEYS)
    kind = choice.randrange(14)
    options = [
        word
        for pair in (
            (
                b"NS",
                choice.choice((b"sms", b"no spaces", b"\xff", b"default", b"n%d" % choice.randrange(99))),
            ),
            (b"FP", choice.choice((b"ab" * 16, b"xyz", b"AB " * 10))),
            (b"OWNER", choice.choice((b"me", b"", b"\xff", b"o" * 64))),
            (b"LEASE", choice.choice((b"1", b"0", b"9" * 17, b"60000", b"-1", b"\xb2"))),
            (b"TTL", choice.choice((b"1", b"99999999999", b"60000"))),
            (b"FENCE", choice.choice((b"0", b"1", b"9007199254740993"))),
            (b"SUBJECT", b"s"),
            (b"EPHEMERAL",),
            (b"TOKEN",),
        )
        if choice.random() < 0.15
        for word in pair
    ]
    if kind < 4:
        return pack(b"FD.CLAIM", key, *options)
    if kind == 4:
        name = choice.choice((b"FD.COMPLETE", b"FD.FAIL", b"FD.RELEASE", b"FD.RENEW", b"FD.TOUCH"))
        return pack(name, key, b"me", *([b"r"] if choice.random() < 0.7 else []), *options)
    if kind == 5:
        name = choice.choice((b"FD.GET", b"FD.FORGET", b"FD.CONSUME", b"FD.REDEEM", b"FD.ISSUE"))
        return pack(name, *([key] if name != b"FD.ISSUE" else []), *options)
    if kind == 6:
        return pack(*choice.choice(_GREETINGS))
    if kind == 7:
        return (
            pack(b"fd.Claim", key)
            if choice.random() < 0.5
            else pack(b"FD.STORE", b"%d" % choice.randrange(4))
        )
    return some_run(choice)


_GREETINGS: tuple[tuple[bytes, ...], ...] = (
    (b"PING",),
    (b"PING", b"text\r\n"),
    (b"HELLO", b"3"),
    (b"HELLO", b"2"),
    (b"HELLO", b"4"),
    (b"CLIENT", b"ID"),
    (b"CLIENT", b"SETNAME", b"x"),
    (b"SELECT", b"0"),
    (b"INFO",),
    (b"COMMAND", b"DOCS"),
    (b"QUIT",),
    (b"NONE\xff\r\n+OK",),
    (b"FD.LISTEN",),
    (b"FD.CLAIM", b"k", b"WAIT", b"60000"),
)


def some_run(choice: random.Random) -> bytes:
    """A batch of a store's: mostly as one would send it."""
    run = choice.choice(list(BY_NAME.values()))
    verb = run.verb
    count = choice.choice((1, 1, 2, 3, 8))
    keys = [choice.choice((b"default:=a%d" % place, b"sms:=a", b"default:%a")) for place in range(count)]
    number = b"%d" % count
    if run in WITH_LEDGER.values():
        keys = [b"default:~ids{AAAA}=a%d" % place for place in range(count)]
    match verb:
        case Verb.CLAIM if run is WITH_LEDGER[verb]:
            args = [number, b"1000", b"60000", b"claim", b"1", b"9000000", b"7", b"9" * 15]
            args += [part for key in keys for part in (_OWNER_FIELD, key[-7:])] + [b"id"] * count
        case Verb.SETTLE if run is WITH_LEDGER[verb]:
            args = [number, b"9000000", b"999999", b"7", b"9", b"4", b"20", b"9" * 15, b"60000"]
            args += [part for key in keys for part in (_PROOF, b"r" * 9, key[-7:] + bytes(5))]
            args += [b"id"] * count
        case Verb.CLAIM:
            mode = choice.choice((b"claim", b"claim", b"redeem", b"consume", b"unless", b"token", b"0"))
            tails = [choice.choice((_OWNER_FIELD, b"\x02me", b"\x82me" + b"f" * 16, b"\x42me")) for _ in keys]
            args = [number, b"1000", b"60000", mode, b"1", *tails]
        case Verb.SETTLE:
            args = [number, choice.choice((b"S", b"F")), b"60000"]
            args += [part for _ in keys for part in (_PROOF, b"r" * choice.choice((0, 9, 3000)))]
        case Verb.RELEASE:
            args = [number, choice.choice((b"0", b"1")), *(_PROOF for _ in keys)]
        case Verb.RENEW:
            args = [number, b"1000", b"60000", *(_PROOF for _ in keys)]
        case Verb.TOUCH:
            args = [number, b"60000", *(_PROOF for _ in keys)]
        case Verb.ISSUE:
            args = [number, b"1000", *(b"\x40" + b"o" * 10 for _ in keys)]
        case Verb.TRANSITION:
            args = [
                part
                for _ in keys
                for part in (b"1000", b"c" * 10, choice.choice((b"", b"1")), b"b", b"a", b"\na\n", b"")
            ]
        case Verb.ADOPT:
            record = bytearray(_RECORD)
            record[1:2] = choice.choice((b"P", b"S", b"M", b"W", b"I", b"F", b"R"))
            record[17] = choice.choice((0, 0, 128, 63, 10, 64))
            args = [
                part
                for _ in keys
                for part in (b"1000", b"500", choice.choice((b"", _OWNER_FIELD)), bytes(record))
            ]
        case _:
            args = []
    if choice.random() < 0.3 and args:
        place = choice.randrange(len(args))
        args[place] = choice.choice(
            (b"", b"\xff", b"-1", b"1_0", b"9" * 18, args[place][:-1], args[place] + b"x", b"0")
        )
    given = number if choice.random() < 0.9 else choice.choice((b"0", b"257", b"9999", b"-1", b"\xb2", b""))
    return pack(b"FD.RUN", run.name.encode(), given, *keys, *args)


def some_resp(choice: random.Random) -> bytes:
    """A stream of commands, then damaged."""
    return damaged(
        [some_command(choice) for _ in range(choice.choice((1, 1, 1, 2, 3, 6)))], _RESP_TOKENS, choice
    )


_RESP_TOKENS = (
    b"*400000000\r\n",
    b"$9999999999\r\n",
    b"*-1\r\n",
    b"$-1\r\n",
    b"*0\r\n",
    b"*1\r\n*1\r\n$4\r\nPING\r\n",
    b"\r\n",
    b"*",
    b"$70000\r\n" + b"x" * 70000,
    b"*3\r\n",
    b"*17\r\n$6\r\nFD.RUN\r\n",
    b"PING\r\n",
    b"*00001\r\n$4\r\nPING\r\n",
    b"$600\r\n" + b"y" * 600 + b"\r\n",
)


def damaged(parts: list[bytes], tokens: Sequence[bytes], choice: random.Random) -> bytes:
    """Repeat, swap, drop, flip, cut, insert: a few times, or not at all."""
    for _ in range(choice.choice((0, 0, 1, 2, 4))):
        place = choice.randrange(len(parts))
        match choice.randrange(7):
            case 0:
                parts.insert(place, parts[choice.randrange(len(parts))])
            case 1:
                parts[place], parts[-1] = parts[-1], parts[place]
            case 2:
                parts[place] = parts[place][: choice.randrange(len(parts[place]) + 1)]
            case 3 if parts[place]:
                flipped = bytearray(parts[place])
                flipped[choice.randrange(len(flipped))] ^= 1 << choice.randrange(8)
                parts[place] = bytes(flipped)
            case 4:
                parts.insert(place, choice.choice(tokens))
            case 5:
                at = choice.randrange(len(parts[place]) + 1)
                parts[place] = parts[place][:at] + choice.choice(tokens) + parts[place][at:]
            case _:
                parts[place] = re.sub(
                    rb"\d+", lambda _: b"%d" % choice.choice((0, 1, 99999)), parts[place], count=1
                )
    return b"".join(parts)[:MAX_INPUT]


_HTTP_TOKENS = (
    b"\r\n",
    b"\r\n\r\n",
    b"content-length: 5\r\n",
    b"content-length: 99999999999\r\n",
    b"transfer-encoding: chunked\r\n",
    b"expect: 100-continue\r\n",
    b"connection: close\r\n",
    b"connection: upgrade\r\nupgrade: h2c\r\n",
    b"upgrade: websocket\r\n",
    b"a: " + b"b" * 40_000,
    b"\0",
    b"\xff",
    b"ffffffffffffffff\r\n",
    b"CONNECT a:1 HTTP/1.1\r\n\r\n",
    b"GET * HTTP/1.1\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
    b"x" * 70_000,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"HTTP/1.0\r\n",
    b"[" * 2000,
    b"\\ud800",
    b"1e999",
)
_PATHS = (
    b"/v1/claims",
    b"/v1/claims/complete",
    b"/v1/claims/fail",
    b"/v1/claims/release",
    b"/v1/claims/renew",
    b"/v1/claims/touch",
    b"/v1/tokens",
    b"/v1/tokens/consume",
    b"/v1/tokens/redeem",
    b"/v1/batch",
    b"/v1/records?key=k",
    b"/v1/records?key=%ff",
    b"/healthz",
    b"/readyz",
    b"/metrics",
    b"/problems/in-progress",
    b"/v1/claims?x=1",
    b"http://a/v1/claims",
    b"//[",
    b"*",
)


def some_request(choice: random.Random) -> bytes:
    """A request that is well formed, or nearly."""
    path = choice.choice(_PATHS)
    method = choice.choice(
        (b"POST", b"POST", b"POST", b"GET", b"HEAD", b"DELETE", b"PUT", b"CONNECT", b"OPTIONS")
    )
    facts: dict[str, Any] = {"key": choice.choice(("k", "", "é", "x" * 1025, 7, "\x00", "a\ud800"))}
    for name, values in _FACTS.items():
        if choice.random() < 0.12:
            facts[name] = choice.choice(values)
    if path.startswith(b"/v1/tokens"):
        facts.pop("key")
    if path in (
        b"/v1/claims/complete",
        b"/v1/claims/fail",
        b"/v1/claims/release",
        b"/v1/claims/renew",
        b"/v1/claims/touch",
    ):
        facts.setdefault("owner", "me")
    ask: Any = facts
    if path == b"/v1/batch":
        ops = ("claim", "complete", "fail", "release", "renew", "touch", "issue", "consume", "redeem", "none")
        ask = [{"op": choice.choice(ops), **facts} for _ in range(choice.choice((0, 1, 2, 5, 11)))]
    body = json.dumps(ask).encode() if method not in (b"GET", b"HEAD", b"CONNECT") else b""
    lines = [b"%b %b HTTP/1.%d" % (method, path, choice.random() < 0.95), b"host: a"]
    if choice.random() < 0.1:
        lines.append(choice.choice(_HTTP_TOKENS).strip())
    if body and choice.random() < 0.3:
        half = len(body) // 2
        chunks = [chunk for chunk in (body[:half], body[half:]) if chunk]
        lines.append(b"transfer-encoding: chunked")
        body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    elif body:
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join([*lines, b"", b""]) + body


_FACTS: dict[str, tuple[Any, ...]] = {
    "namespace": ("sms", "no spaces", "\n", "é", None),
    "owner": ("me", "", "\ud800", "o" * 64, "é" * 40, 5),
    "fingerprint": ("ab" * 16, {"a": [1, 2]}, 1e308, "\ud800", 10**30),
    "lease": (1, 0, 5.0, 1e300, 10**30, "1", True),
    "ttl": (1, 60_000, -1),
    "fence": (0, 1, 2**53, 1.5),
    "token": ("t", True, "é", "\x00", "x" * 256),
    "result": ({"a": 1}, [[]] * 3, None, "\ud800", 10**40),
    "error": ("e",),
    "subject": ("s", {"a": "\ud800"}, 10**30),
    "surplus": (1,),
}


def some_http(choice: random.Random) -> bytes:
    """A stream of requests, then damaged."""
    return damaged(
        [some_request(choice) for _ in range(choice.choice((1, 1, 1, 2, 4)))], _HTTP_TOKENS, choice
    )


def peak() -> int:
    """Bytes of memory that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def opened() -> Fuzz:
    """Return the checks, with everything under them made."""
    store = MemoryStore(clock=lambda: 1.8e9)
    return Fuzz(await Dedup(store, codec=RawCodec(), on_unavailable=LocalLRU()).open(), store)


async def one(fuzz: Fuzz, wire: str, data: bytes, choice: random.Random) -> None:
    """Check one input; a Finding carries it."""
    check = {"frames": check_frames, "resp": fuzz.resp, "http": fuzz.http}[wire]
    fuzz.counts[wire] += 1
    try:
        await check(data, choice)
    except Exception as fault:
        raise Finding(f"{wire}: {fault!r}\ninput: {data[:3000]!r}") from fault


async def throw(inputs: int, seed: int, keep_going: bool = False) -> tuple[Fuzz, list[str]]:
    """Check so many inputs; return what was found."""
    choice = random.Random(seed)
    fuzz = await opened()
    found: list[str] = []
    before = 0
    for number in range(inputs):
        if number == min(2000, inputs // 2):
            gc.collect()
            before = peak()
        wire = choice.choices(("frames", "resp", "http"), (15, 3, 2))[0]
        make = some_http if wire == "http" else some_resp
        data = choice.randbytes(choice.randrange(200)) if choice.random() < 0.03 else make(choice)
        try:
            await one(fuzz, wire, data, random.Random(number))
        except Finding as finding:
            if not keep_going:
                raise
            found.append(str(finding))
            if len(found) > 50:
                break
    if peak() - before > MAX_GROWTH:
        found.append(f"grew by {peak() - before} bytes, to {peak()}")
    await fuzz.close()
    return fuzz, found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--inputs", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--keep-going", action="store_true", help="list up to 50 findings")
    given = options.parse_args()
    begun = time.monotonic()
    fuzz, found = asyncio.run(throw(given.inputs, given.seed, given.keep_going))
    counts = ", ".join(f"{count} {wire}" for wire, count in sorted(fuzz.counts.items()))
    print(f"{counts}; {time.monotonic() - begun:.0f} s; peak RSS {peak() >> 20} MiB; {len(found)} findings")
    for finding in found:
        print(finding, end="\n\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
