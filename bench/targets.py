"""The targets of the benchmark: each with its figure, and pass or short."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

from bench.cluster import CLIENT, SERVER, three
from bench.committing import (
    ASYNCPG,
    GATE_ASYNCPG,
    GATE_SQLALCHEMY,
    HAND_ASYNCPG,
    HAND_SQLALCHEMY,
    INBOX_ASYNCPG,
    INBOX_SQLALCHEMY,
    SQLALCHEMY,
)
from bench.contest import BASELINE, OURS, P99
from bench.frozen import HEALTHY
from bench.growth import FEW_KEYS
from bench.held import ROWS as HELD
from bench.inbox import (
    ALL_STATEMENTS,
    BY_HAND,
    FOLDED,
    MARIADB,
    MARIADB_PURGE,
    POSTGRES,
    PURGE,
    RESULT,
    SQLITE,
    SQLITE_STATEMENTS,
    STATEMENTS,
    STORM,
)
from bench.ledger import CLAIMS as OUR_CLAIMS
from bench.ledger import DENSE, EXACT, FIRST, FIRST_FEW, FIRST_MANY, KEYS, NARROW, NARROWEST, RECORDS, WIDE
from bench.ledger import SERVER as SERVER_CPU
from bench.ledger import SET_NX as SET_NX_EX
from bench.ledger_windows import IDLE_P99, LEDGER
from bench.ledger_windows import KEYS as EXPIRING_KEYS
from bench.loops import CPU as LOOPS_CPU
from bench.loops import LOOPS
from bench.messages import A_KEY_EACH, BARE, BARE_LISTS, FASTSTREAM, GATE, ONE_KEY, SET_NX, SET_NX_16
from bench.messages_inbox import NAMES as DUPLICATES
from bench.messages_waits import DOWN, DOWN_BY_HAND, TWIN, TWIN_BY_HAND, TWIN_SHORT
from bench.pairs import ABOVE
from bench.peers import IDEMKIT, IDEMPOTENCY_KIT, IN_LISTS, POWERTOOLS, REDIS_BENCHMARK
from bench.processes import ONE, SAME, TWO
from bench.report import Report
from bench.sidecar import BATCHED, HOP, HTTP, RESP, RESP_PIPELINED
from bench.web import (
    ASGI_HEADER,
    CPU,
    DEFAULT_GC,
    DEPENDENCY,
    FASTAPI_PEER,
    IDEMKIT_WEB,
    MIDDLEWARE,
    PASS_THROUGH,
    REDIS_PY,
    UNTOUCHED,
)

CEILING = REDIS_BENCHMARK.name
HANDFUL = 10  # commands that our client sends; the table also has the commands of its scripts
HEADINGS = ("#", "target", "figure", "wanted", "aim", "verdict")
PASS, SHORT, BESIDE = "pass", "short", "no target"
Line = tuple[str, str, str, str, str, str]  # in the order of HEADINGS


@dataclass(frozen=True, slots=True)
class Target:
    """One line. A missing figure (NaN) is short; a line without `wanted` only adds a figure to a target."""

    number: str
    title: str
    figure: Callable[[Report], float]
    wanted: float | None = None
    aim: float | None = None
    at_least: bool = True

    def line(self, report: Report) -> Line:
        """Return the target's line, in the order of HEADINGS."""
        figure = self.figure(report)
        wanted, aim = (self._limit(limit) for limit in (self.wanted, self.aim))
        return self.number, self.title, f"{figure:.3g}", wanted, aim, self._verdict(figure)

    def _verdict(self, figure: float) -> str:
        if self.wanted is None:
            return BESIDE
        return PASS if (figure >= self.wanted if self.at_least else figure <= self.wanted) else SHORT

    def _limit(self, limit: float | None) -> str:
        return "" if limit is None else f"{'≥' if self.at_least else '≤'} {limit:g}"


def _figure(table: str, name: str, row: str = OURS) -> Callable[[Report], float]:
    return lambda report: report.table(table).row(row).figures.get(name, nan)


def _ratio(table: str, base: str, row: str = OURS) -> Callable[[Report], float]:
    return lambda report: report.table(table).row(row).ratios.get(base, nan)


def _storm(report: Report) -> float:
    return _figure("storm", "rate")(report) / _figure("fresh-1000", "rate")(report)


def _growth(report: Report) -> float:
    rows = report.table("growth").rows
    return rows[-1].ratios[FEW_KEYS] if rows else nan


def _crowd(name: str) -> Callable[[Report], float]:
    """Return a function for the worse figure of the two crowds at an absent key."""
    return lambda report: max((row.figures[name] for row in report.table("absent").rows), default=nan)


def _not_one_winner(report: Report) -> float:
    return max((abs(row.figures["winners"] - 1) for row in report.table("absent").rows), default=nan)


def _cpu_ratio(report: Report) -> float:
    return _figure("fresh-1000", "cpu_us")(report) / _figure("fresh-1000", "cpu_us", BASELINE)(report)


def _in_lists(name: str) -> Callable[[Report], float]:
    """A figure of `claim_many` beside that of claims awaited one by one."""
    return lambda report: (
        _figure("fresh-1000", name, IN_LISTS.name)(report) / _figure("fresh-1000", name)(report)
    )


def _misjudged(report: Report) -> float:
    return sum(_figure("processes", name, SAME)(report) for name in ("lost", "doubled"))


def _sidecar(names: tuple[str, str]) -> Callable[[Report], float]:
    return _ratio("sidecar", ABOVE, names[1])


def _web(names: tuple[str, str], base: str = ABOVE) -> Callable[[Report], float]:
    return _ratio("web", base, names[1])


def _commits(names: tuple[str, str], base: str = ABOVE) -> Callable[[Report], float]:
    return _ratio("committing", base, names[1])


def _cluster(callers: int, base: str) -> Callable[[Report], float]:
    return _ratio("cluster", base, three(callers))


def _healthy_p99(report: Report) -> float:
    return _ratio("frozen", ABOVE, HEALTHY[1])(report)


def _held_p99(report: Report) -> float:
    return _ratio("held", ABOVE, HELD[1])(report)


def _inbox(names: tuple[str, str]) -> Callable[[Report], float]:
    return _ratio("inbox", ABOVE, names[1])


def _inbox_storm(base: str) -> Callable[[Report], float]:
    return _ratio("inbox-storm", base, STORM[1])


def _storm_figure(name: str) -> Callable[[Report], float]:
    return _figure("inbox-storm", name, STORM[1])


def _purged(name: str, names: tuple[str, str]) -> Callable[[Report], float]:
    return _figure("inbox-purge", name, names[1])


def _half_duplicates(report: Report) -> float:
    return _ratio("messages-inbox", ABOVE, DUPLICATES[1])(report)


def _waits(name: str, row: str) -> Callable[[Report], float]:
    return _figure("messages-waits", name, row)


def _ledger(row: str, base: str = OUR_CLAIMS) -> Callable[[Report], float]:
    return _ratio("ledger", base, row)


def _bytes(row: str) -> Callable[[Report], float]:
    return _figure("ledger-memory", "bytes_an_id", row)


def _windows(name: str, row: str = LEDGER) -> Callable[[Report], float]:
    return _figure("ledger-windows", name, row)


def _server_us(report: Report) -> float:
    return _figure("ledger", "server_us", FIRST_MANY)(report)


def _get_p99(row: str) -> Callable[[Report], float]:
    return _ratio("ledger-windows", IDLE_P99, row)


def _p99_added(report: Report) -> float:
    return _figure("sidecar", "p99_added_us", HOP[1])(report) / 1000


AT_MOST: dict[str, Any] = {"at_least": False}
TARGETS = (
    Target("1", "1000 callers, fresh, ratio to redis-benchmark", _ratio("fresh-1000", CEILING), 0.6, 0.9),
    Target("1", "1000 callers, fresh, ratio to redis-py", _ratio("fresh-1000", BASELINE), 12, 20),
    Target("2", "64 callers, fresh, ratio to redis-py", _ratio("fresh-64", BASELINE), 7, 10),
    Target("2", "64 callers, p99, ratio to redis-py's", _ratio("fresh-64", BASELINE + P99), 0.35, **AT_MOST),
    Target("3", "alone, p50, ratio to redis-py's", _ratio("alone", BASELINE), 1, 0.5, **AT_MOST),
    Target("4", "64 callers, full cycle, ratio to idempotency-kit", _ratio("cycle-64", IDEMPOTENCY_KIT.name), 10),
    Target("4", "64 callers, full cycle, ratio to idemkit", _ratio("cycle-64", IDEMKIT.name), 10),
    Target("4", "64 callers, full cycle, ratio to Powertools", _ratio("cycle-64", POWERTOOLS.name), 10),
    Target("5", "storm on settled keys, ratio to our fresh claims", _storm, 3),
    Target("5", "1000 callers of an absent key: commands we send", _crowd("sent"), HANDFUL, **AT_MOST),
    Target("5", "… writes in Redis, a result stored included", _crowd("writes")),
    Target("5", "… winners too many or too few", _not_one_winner, 0, **AT_MOST),
    Target("6", "client CPU per fresh claim, µs", _figure("fresh-1000", "cpu_us"), 4, 2.5, **AT_MOST),
    Target("6", "… ratio to redis-py's", _cpu_ratio),
    Target("14", "claim_many of 256 fresh keys, ratio to our 1000 callers", _in_lists("rate"), 1.5),
    Target("14", "… client CPU a key, ratio to a single claim's", _in_lists("cpu_us"), 0.6, **AT_MOST),
    Target("7", "rate at the most live keys, ratio to 10,000 keys", _growth, 0.85),
    Target("7", "growth of client memory, %", _figure("soak", "growth_pct"), 5, **AT_MOST),
    Target("7", "tasks, timers, futures left behind", _figure("soak", "left_behind"), 0, **AT_MOST),
    Target("8", "bytes per live record, MEMORY USAGE", _figure("memory", "memory_usage"), 165, **AT_MOST),
    Target("8", "… by the growth of used_memory", _figure("memory", "used_memory")),
    Target("9", "two processes, ratio to one", _ratio("processes", ONE, row=TWO), 1),
    Target("9", "winners lost or doubled between processes", _misjudged, 0, **AT_MOST),
    Target("10", "sidecar, FD.CLAIM, ratio to Redis's SET NX PX", _sidecar(RESP), 0.55),
    Target("10", "… both pipelined, 16 deep", _sidecar(RESP_PIPELINED), 0.35),
    Target("11", "sidecar, fresh claims by HTTP, ratio to a bare uvicorn", _sidecar(HTTP), 0.7),
    Target("11", "sidecar, /v1/batch of 100, ratio to single requests", _sidecar(BATCHED), 5),
    Target("12", "p99 that the sidecar adds at half load, ms", _p99_added),
    Target("12", "… beside the library's own p99, ms", _figure("sidecar", "p99_ms", HOP[0])),
    Target("13", "FastAPI POST with the middleware, fresh keys, ratio to without", _web(MIDDLEWARE), 0.7),
    Target("13", "… the server's CPU for a request, ratio to without", _web(MIDDLEWARE, CPU)),
    Target("13", "… with Python's own thresholds of the collector", _web(DEFAULT_GC)),
    Target("13", "… outside its routes", _web(UNTOUCHED), 0.97),
    Target("13", "… outside, the server's CPU for a request", _web(UNTOUCHED, CPU)),
    Target("13", "… a middleware that does nothing", _web(PASS_THROUGH)),
    Target("13", "… a middleware that does nothing, the server's CPU", _web(PASS_THROUGH, CPU)),
    Target("13", "… with Claimed()", _web(DEPENDENCY)),
    Target("13", "… by hand, redis-py", _web(REDIS_PY)),
    Target("13", "… with asgi-idempotency-header", _web(ASGI_HEADER)),
    Target("13", "… with fastapi-idempotency, in memory", _web(FASTAPI_PEER)),
    Target("13", "… with idemkit's middleware", _web(IDEMKIT_WEB)),
    Target("15", "Cluster, server CPU per claim, 1000 callers, to 1 Redis", _cluster(1000, SERVER), 1.15, **AT_MOST),
    Target("15", "… 64 callers", _cluster(64, SERVER), 1.6, **AT_MOST),
    Target("15", "Cluster, client CPU per claim, 1000 callers, to 1 Redis", _cluster(1000, CLIENT), 1.15, **AT_MOST),
    Target("15", "… 64 callers", _cluster(64, CLIENT), 1.5, **AT_MOST),
    Target("15", "Cluster, rate, 1000 callers, ratio to 1 Redis", _cluster(1000, ABOVE), 0.8),
    Target("15", "… 64 callers", _cluster(64, ABOVE), 0.8),
    Target("16", "p99 of healthy nodes, another is frozen, ratio to before", _healthy_p99, 1.5, **AT_MOST),
    Target("17", "sidecar, p99 of 100 active of 10,000 connections, ratio to 100", _held_p99, 2, **AT_MOST),
    Target("18", "inbox, ratio to a bare transaction, PostgreSQL", _inbox(POSTGRES), 0.75),
    Target("18", "… its two statements by hand", _inbox(STATEMENTS)),
    Target("18", "… with a result", _inbox(RESULT), 0.65),
    Target("18", "… its three statements by hand", _inbox(ALL_STATEMENTS)),
    Target("18", "… folded into the first statement", _inbox(FOLDED), 0.85),
    Target("18", "… MariaDB", _inbox(MARIADB), 0.7),
    Target("18", "… SQLite", _inbox(SQLITE), 0.9),
    Target("18", "… its two statements by hand", _inbox(SQLITE_STATEMENTS)),
    Target("18", "bytes an id in PostgreSQL", _figure("inbox", "bytes_an_id", POSTGRES[1]), 115, **AT_MOST),
    Target("18", "… of a table by hand, with text keys", _figure("inbox", "bytes_an_id", BY_HAND[1])),
    Target("19", "storm of ten-fold duplicates, gate and inbox, ratio to the inbox", _inbox_storm(ABOVE), 3),
    Target("19", "… p99 of a bystander", _inbox_storm(f"{STORM[0]} bystander"), 0.15, **AT_MOST),
    Target("19", "… transactions a message", _storm_figure("transactions_a_message"), 1, **AT_MOST),
    Target("20", "purge in PostgreSQL, rows a second", _purged("purged_rate", PURGE), 100_000),
    Target("20", "… p99 beside it, ratio to none", _ratio("inbox-purge", ABOVE, PURGE[1]), 3, **AT_MOST),
    Target("20", "purge in MariaDB, the longest batch, ms", _purged("batch_ms", MARIADB_PURGE), 50, **AT_MOST),
    Target("21", "Consumer with the gate, ratio to bare aio-pika callbacks", _ratio("messages", BARE, GATE), 0.6),
    Target("21", "… to SET NX EX by hand", _ratio("messages", SET_NX, GATE), 1.5),
    Target("21", "… to SET NX EX by hand over 16 connections", _ratio("messages", SET_NX_16, GATE), 1.5),
    Target("21", "… messages of 50 items, a key for each message", _ratio("messages", BARE_LISTS, ONE_KEY), 0.85),
    Target("21", "… a key for each item, by claim_many", _ratio("messages", BARE_LISTS, A_KEY_EACH)),
    Target("21", "… FastStream without dedup, ratio to bare callbacks", _ratio("messages", BARE, FASTSTREAM)),
    Target("22", "gate and inbox, half of it duplicates, ratio to the inbox", _half_duplicates, 1.3),
    Target("23", "deliveries of a message whose twin works for 2 s", _waits("deliveries", TWIN), 3, **AT_MOST),
    Target("23", "… with wait=1", _waits("deliveries", TWIN_SHORT), 3, **AT_MOST),
    Target("23", "… requeued at once", _waits("deliveries", TWIN_BY_HAND)),
    Target("24", "redeliveries while Redis is down", _waits("redelivered", DOWN), 0, **AT_MOST),
    Target("24", "… ms until consuming resumes", _waits("resumed_ms", DOWN), 1000, **AT_MOST),
    Target("24", "… redeliveries, requeued at once", _waits("redelivered", DOWN_BY_HAND)),
    Target("25", "bytes an id of an exact ledger", _bytes(EXACT), 12, **AT_MOST),
    Target("25", "… of a wide one", _bytes(WIDE), 22, **AT_MOST),
    Target("25", "… of a narrow one, 4 bytes wide", _bytes(NARROW), 7, **AT_MOST),
    Target("25", "… of a narrow one, 3 bytes wide", _bytes(NARROWEST), 7, **AT_MOST),
    Target("25", "… of a dense one", _bytes(DENSE), 0.5, **AT_MOST),
    Target("25", "… of SET NX EX", _bytes(KEYS)),
    Target("25", "… of our records", _bytes(RECORDS)),
    Target("25", "resident ÷ used memory after 1.5 windows", _windows("resident_ratio"), 1.15, **AT_MOST),
    Target("26", "Ledger.first, 1000 callers, ratio to our claims", _ledger(FIRST), 0.8),
    Target("26", "… first_many, lists of 256", _ledger(FIRST_MANY), 1.2),
    Target("26", "… first_many, lists of 64", _ledger(FIRST_FEW), 1.2),
    Target("26", "… SET NX EX, pipelines of 256", _ledger(SET_NX_EX)),
    Target("26", "server CPU an id, first_many, lists of 256, µs", _server_us, 5, **AT_MOST),
    Target("26", "… ratio to SET NX EX", _ledger(FIRST_MANY, KEYS + SERVER_CPU), 1.3, **AT_MOST),
    Target("26", "… lists of 64", _ledger(FIRST_FEW, KEYS + SERVER_CPU), 1.3, **AT_MOST),
    Target("27", "ids told new within three windows that were none", _windows("wrongly_new"), 0, **AT_MOST),
    Target("27", "ids told duplicates that were new", _windows("wrongly_duplicate"), 0, **AT_MOST),
    Target("27", "p99 of others' GET while ids expire, ratio to idle", _get_p99(LEDGER), 2, **AT_MOST),
    Target("27", "… while keys of SET NX PX expire", _get_p99(EXPIRING_KEYS)),
    Target("28", "uvloop, 1000 callers, fresh, ratio to asyncio's own loop", _ratio("loops", ABOVE, LOOPS[1])),
    Target("28", "… client CPU per claim", _ratio("loops", LOOPS_CPU, LOOPS[1])),
    Target("29", "an endpoint that commits with its response, asyncpg, ratio to its row", _commits(ASYNCPG), 0.8),
    Target("29", "… by SQLAlchemy's ORM", _commits(SQLALCHEMY), 0.8),
    Target("29", "… the server's CPU for a request, asyncpg", _commits(ASYNCPG, CPU)),
    Target("29", "… ratio to the inbox's row by hand, asyncpg", _commits(INBOX_ASYNCPG)),
    Target("29", "… ratio to the inbox's row by hand, SQLAlchemy's ORM", _commits(INBOX_SQLALCHEMY)),
    Target("29", "… the gate and the inbox's row by hand, ratio to its row, asyncpg", _commits(HAND_ASYNCPG)),
    Target("29", "… the same by SQLAlchemy's ORM", _commits(HAND_SQLALCHEMY)),
    Target("29", "… with Claimed(), the gate alone, asyncpg", _commits(GATE_ASYNCPG)),
    Target("29", "… with Claimed(), by SQLAlchemy's ORM", _commits(GATE_SQLALCHEMY)),
)  # fmt: skip


PLAYED = {
    "1": ("fresh-1000",),
    "2": ("fresh-64",),
    "3": ("alone",),
    "4": ("cycle-64",),
    "5": ("storm", "absent"),
    "6": ("fresh-1000",),
    "7": ("growth", "soak"),
    "8": ("memory",),
    "9": ("processes",),
    "10": ("sidecar",),
    "11": ("sidecar",),
    "12": ("sidecar",),
    "13": ("web",),
    "14": ("fresh-1000",),
    "15": ("cluster",),
    "16": ("frozen",),
    "17": ("held",),
    "18": ("inbox",),
    "19": ("inbox-storm",),
    "20": ("inbox-purge",),
    "21": ("messages",),
    "22": ("messages-inbox",),
    "23": ("messages-waits",),
    "24": ("messages-waits",),
    "25": ("ledger-memory", "ledger-windows"),
    "26": ("ledger",),
    "27": ("ledger-windows",),
    "28": ("loops",),
    "29": ("committing",),
}
"""The scenarios of each target: without a played scenario the target has no verdict."""


def verdicts(report: Report) -> Sequence[Line]:
    """Return the line of every target whose scenarios were played."""
    played = {table.name for table in report.tables}
    return [target.line(report) for target in TARGETS if not played.isdisjoint(PLAYED[target.number])]
