"""Builds a sidecar and runs it. Main path: `run` → `Sidecar.main`.

On SIGTERM or SIGINT it stops accepting connections, answers the requests under way, writes the journal into the store
if that answers, and ends. A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import select
import signal
import socket
from collections.abc import Callable, Sequence
from math import ceil
from time import monotonic_ns
from typing import Any

import uvloop

from ...errors import ConfigError
from ...events import Event
from ...gateway import Dedup
from ..counters import Counters
from ..http.application import HttpApp
from ..http.routes import store_answers
from ..namespaces import Namespaces, RawCodec
from ..urls import without_secrets
from .config import Config
from .listener import BoundSocket
from .logs import EventLog, facts, log, set_up
from .metrics import Exposition, journal_lines
from .metrics_port import metrics_port
from .mistakes import Mistakes
from .reload import Merged
from .server import ServedSocket, SidecarServer
from .sockets import Listening, allow_list, listening, others
from .systemd import notify
from .takeover import take_places, tell_to_stop

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOOK_AGAIN = 0.02
"""Seconds between two looks whether the journals are empty."""
_MIN_BATCH = 32
"""Claims in a batch, below which they are not spread over further batches. More than in a library's gate: the clients
want the same cores, and a batch costs the sidecar and Redis the same whether it is half full or full."""


def run(
    config: Config,
    *,
    on_listening: Callable[[str], None] = lambda where: None,
    take_over: bool = False,
    read_again: Callable[[], Config] | None = None,
) -> int:
    """Serve until a signal; return the exit code.

    Args:
        config: its settings.
        on_listening: called with the socket's path once connections are accepted.
        take_over: take the sockets over from the sidecar that serves them, if one does.
        read_again: returns the present settings, for SIGHUP; raises Mistakes.

    Raises:
        ConfigError: the socket or the store cannot be used as configured.
    """
    undo = set_up(config.log_level, config.log_format)
    try:
        room = make_room(config.limits.connections)
        with (
            listening(config, take_over=take_over) as sockets,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            return runner.run(Sidecar(config, sockets, on_listening, read_again, room).main())
    finally:
        undo()


class Sidecar:
    """A sidecar, from its start to its end."""

    def __init__(
        self,
        config: Config,
        sockets: Listening,
        on_listening: Callable[[str], None],
        read_again: Callable[[], Config] | None = None,
        room: int | None = None,
    ) -> None:
        self._config = config  # mutable: SIGHUP changes it
        self._room = room
        self._read_again = read_again
        self._listeners = listeners = sockets.all
        self._successors = sockets.successors
        self._on_listening = on_listening
        self._path = listeners[0].path
        self._counters = Counters()
        self._events = EventLog(keys=config.log_keys)
        # Mutable: the server, once it is made; the address of its metrics, and what closes that port; the task that
        # takes over what the old sidecar has until its end; the task to cancel for a stop at once; the
        # signals that came; the end of the time to stop.
        self._server: ServiceServer | None = None
        self._metrics: str | None = None
        self._task: asyncio.Task[Any] | None = None
        self._told: list[signal.Signals] = []
        self._heir: asyncio.Task[None] | None = None
        self._ports: contextlib.AsyncExitStack
        self._until = 0.0

    async def main(self) -> int:
        """Serve until a signal; return the exit code: 0, or 128 plus the signal if work was cut off."""
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for each in _SIGNALS:
            loop.add_signal_handler(each, self._signalled, each)
        if self._read_again is not None:
            loop.add_signal_handler(signal.SIGHUP, self._reload, self._read_again)
        try:
            await self._serve()
        except asyncio.CancelledError:
            if len(self._told) < 2:
                raise
            log.warning("stopped at once", extra=facts(signal=self._told[-1].name))
            return 128 + self._told[-1]
        finally:
            self._events.flush()
        return 0

    async def _serve(self) -> None:
        namespaces = make_namespaces(self._config, self._counters, self._events)
        async with contextlib.AsyncExitStack() as self._ports:
            if not self._successors:  # else the running sidecar has the port
                await self._open_metrics(namespaces)
            await self._serve_socket(namespaces)

    async def _open_metrics(self, namespaces: Namespaces) -> None:
        port = metrics_port(namespaces, self._config.metrics_address)
        self._metrics = await self._ports.enter_async_context(port)

    async def _serve_socket(self, namespaces: Namespaces) -> None:
        namespaces.audit = self._events.audit
        await namespaces.root.open()
        if self._successors:
            await self._check_store(namespaces)
        server = self._server = ServiceServer(
            self._config, namespaces, self._ready, self._listeners, self._room
        )
        if self._told:
            server.should_exit = True
        gc.collect()
        gc.freeze()  # the objects so far stay: the collector need not look at them again
        # A claim's objects are freed by their reference counts; a search for cycles at every 700 objects is waste.
        gc.set_threshold(20_000, 20, 50)
        await server.serve(sockets=[each.socket for each in self._listeners])
        if self._heir is not None:
            self._heir.cancel()
        left = server.abandon()
        await namespaces.ephemeral.releases.finish(self._until)
        await self._bring_home(namespaces)
        await namespaces.root.aclose()
        log.info("stopped", extra=facts(connections_cut=left))

    async def _check_store(self, namespaces: Namespaces) -> None:
        """Refuse to take the place of a running sidecar if our own store does not answer."""
        if not await store_answers(namespaces.root):
            raise ConfigError(
                "not taken over: our own store does not answer; the running sidecar is left alone"
            )

    def _take_over(self) -> None:
        take_places(self._successors)
        self._heir = asyncio.get_running_loop().create_task(self._inherit(), name="fastdedup-inherit")
        tell_to_stop(self._successors)
        log.info("took over", extra=facts(pid=self._successors[0].pid))

    async def _inherit(self) -> None:
        """Take what the old sidecar has until its end: the locks, and the port of the metrics."""
        for each in self._successors:
            await each.inherit_lock()
        try:
            assert self._server is not None
            await self._open_metrics(self._server.namespaces)
        except ConfigError as error:
            log.error("no metrics over TCP", extra=facts(why=str(error)))

    async def _bring_home(self, namespaces: Namespaces) -> None:
        """Wait within `grace` for a store that does not answer: without it the policy's answers are lost."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._until):
                while any(journal_lines(namespaces).values()):  # noqa: ASYNC110 -- journals have no event
                    await asyncio.sleep(_LOOK_AGAIN)

    def _ready(self) -> None:
        config = self._config
        metrics = {} if self._metrics is None else {"metrics": self._metrics}
        further = {"sockets": [str(each.path) for each in self._listeners[1:]]} if config.sockets else {}
        if self._successors:
            self._take_over()
        notify("READY=1")
        log.info(
            "started",
            extra=facts(
                socket=str(self._path),
                **further,
                store=without_secrets(config.url),
                namespace=config.namespace,
                pid=os.getpid(),
                **metrics,
            ),
        )
        self._on_listening(str(self._path))

    def _reload(self, read_again: Callable[[], Config]) -> None:
        """Read the settings again, and say what became of them (SIGHUP)."""
        notify(f"RELOADING=1\nMONOTONIC_USEC={monotonic_ns() // 1000}")
        try:
            news = Merged(self._config, read_again())
            if self._server is not None:
                self._server.change_rules(news)
        except ConfigError as error:
            lines = error.lines if isinstance(error, Mistakes) else [str(error)]
            log.error("not reloaded, the settings stay as they were", extra=facts(mistakes=lines))
        else:
            self._config = news.config
            set_up(news.config.log_level, news.config.log_format)
            self._events.show_keys(news.config.log_keys)
            log.info("reloaded", extra=facts(changed=news.changed))
            if news.left:
                log.warning("these settings need a restart", extra=facts(settings=news.left))
        notify("READY=1")

    def _signalled(self, which: signal.Signals) -> None:
        self._told.append(which)
        if len(self._told) > 1 and self._task is not None:
            self._task.cancel()
            return
        notify("STOPPING=1")
        self._until = asyncio.get_running_loop().time() + self._config.grace
        open_now = 0 if self._server is None else len(self._server.connections)
        log.info("stopping", extra=facts(signal=which.name, connections=open_now))
        if self._server is not None:
            if any(each.replaced for each in self._listeners):
                self._server.namespaces.ephemeral.releases.leave()
            self._server.should_exit = True


def make_namespaces(config: Config, counters: Counters, on_event: Callable[[Event], None]) -> Namespaces:
    """Return the namespaces that a configuration describes; their connection is not open yet."""
    root = Dedup(
        config.url,
        namespace=config.namespace,
        timeout=config.timeout,
        replicas=config.replicas,
        on_shortfall=config.on_shortfall,
        codec=RawCodec(),
        on_event=on_event,
        credentials=config.credentials(),
        **config.default_options(),
    )
    root.gate.observers.beside = counters
    root.gate.connections.common.incidents = None  # the sidecar's `EventLog` tells of each event
    root.gate.connections.common.min_batch = _MIN_BATCH
    namespaces = Namespaces(
        root,
        settings=config.other_namespaces(),
        limits=config.make_limits(),
        counters=counters,
        configured_only=config.configured_only,
        ledgers=config.ledger_options(),
    )
    namespaces.render_metrics = Exposition(namespaces).render
    return namespaces


# How many connections the process may have open at once: the system limits its open files (RLIMIT_NOFILE).
#
# Without a free file the system refuses connections without a word, and the way to Redis cannot be opened again. So
# the sidecar raises its limit as far as it may, refuses connections before it is reached, and says why.

RESERVE = 320
"""Files for all else: refused connections, places beyond the limit, metrics (128 + 64), the store, the log."""
_FEWEST = 32
"""Connections for which the files must do."""


def make_room(connections: int) -> int:
    """Raise the limit of open files to what so many connections need; return how many connections it allows.

    Raises:
        ConfigError: the limit allows next to no connection.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + RESERVE
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = _raised(needed if hard == resource.RLIM_INFINITY else min(needed, hard), soft, hard)
    room = connections if soft == resource.RLIM_INFINITY else soft - RESERVE
    if room < _FEWEST:
        raise ConfigError(
            f"the system lets this process open {soft} files (ulimit -n, systemd: LimitNOFILE=): "
            f"raise that to {needed}, which {connections} connections need"
        )
    if room < connections:
        log.warning(
            "fewer connections than configured: raise the limit of open files (ulimit -n, systemd: LimitNOFILE=)",
            extra=facts(open_files=soft, needed=needed, connections=room, configured=connections),
        )
    return min(room, connections)


def _raised(wanted: int, soft: int, hard: int) -> int:
    """Raise the soft limit, and return what it is then: some systems allow less than the hard limit says."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


_LAST_CALL = 0.02
"""Seconds for clients that connected before the socket was removed: they are accepted, and their requests read."""
_HAND_OVER = 1.0
"""Seconds that a sidecar whose sockets were taken over serves on for the clients that it has."""


class ServiceServer(SidecarServer):
    """The server of `fastdedup serve`: it tells of its start, changes rules on SIGHUP, and hands its clients over.

    It leaves signals to the sidecar, which tells it what they ask for.

    Args:
        config: its settings.
        namespaces: the namespaces that these describe.
        on_started: called when it accepts connections.
        listeners: its sockets.
        room: see `SidecarServer`.
    """

    def __init__(
        self,
        config: Config,
        namespaces: Namespaces,
        on_started: Callable[[], None],
        listeners: Sequence[BoundSocket],
        room: int | None = None,
    ) -> None:
        super().__init__(
            namespaces,
            HttpApp(namespaces),
            allowed=allow_list(config),
            grace=config.grace,
            stores=config.allow_stores,
            others=others(config, namespaces, listeners),
            room=room,
        )
        self._on_started = on_started
        self._listeners = listeners
        namespaces.counters.connections = lambda: self.connections

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        """Leave signals alone: uvicorn would raise them again before the `Dedup` closes."""
        return contextlib.nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections (uvicorn calls this)."""
        await super().startup(sockets)
        self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Remove the sockets, accept the clients that have connected, and go on as uvicorn does.

        Clients that connect to systemd's socket meanwhile wait in it for the next sidecar.
        """
        taken_over = [each for each in self._listeners if each.leave()]
        if any(each.own for each in self._listeners):
            await asyncio.sleep(_LAST_CALL)
        if taken_over:
            await self._hand_over()
        await super().shutdown(sockets)

    def change_rules(self, news: Merged) -> None:
        """Serve by other rules from now on. Clients of sockets whose rules changed, or who may not connect any more,
        get the answers that they wait for, and must connect again.

        Raises:
            ConfigError: the rules cannot be followed; nothing is changed.
        """
        config = news.config
        new = others(config, self.namespaces, self._listeners, only=news.sockets)
        self.config.timeout_graceful_shutdown = ceil(config.grace)
        if not {"allow_uids", "allow_gids", "allow_stores"}.isdisjoint(news.changed):
            self.main = ServedSocket(
                self.namespaces, self.main.app, allowed=allow_list(config), stores=config.allow_stores
            )
        self.others |= new
        for each in [each for each in self.connections if not each.transport.is_closing()]:
            served = self.socket_of(each.transport)
            changed = served in new.values() or (served is self.main and "allow_stores" in news.changed)
            if changed or self.refusal(each.peer, served):
                each.shutdown()

    async def _hand_over(self) -> None:
        """Serve on for the clients that we have: most connect for one request. Those to come connect elsewhere."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HAND_OVER):
                while self.connections or self._has_waiting():  # noqa: ASYNC110 -- uvicorn has no event for it
                    await asyncio.sleep(_LAST_CALL)

    def _has_waiting(self) -> bool:
        """True if clients have connected that are not accepted yet."""
        look = select.poll()
        for each in self._listeners:
            look.register(each.socket.fileno(), select.POLLIN)
        return bool(look.poll(0))

    def abandon(self) -> int:
        """Abort the connections whose work has not ended in time; return their number."""
        left = list(self.connections)
        for connection in left:
            connection.cut()
        self.namespaces.turns.untold.finish()
        return len(left)
