"""The scripts: their headers against the Python that calls them, and what every server shares."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import fastdedup.stores.redis.scripts as scripts
from fastdedup import ConfigError, Dedup
from fastdedup.kernel.codes import Code
from fastdedup.kernel.keyspace import Keyspace, Kind
from fastdedup.kernel.operations import (
    AdoptOp,
    ClaimOp,
    ForgetOp,
    IssueOp,
    Op,
    ReadOp,
    ReleaseOp,
    RenewOp,
    SettleOp,
    TouchOp,
    TransitionOp,
)
from fastdedup.kernel.owners import draw_owner
from fastdedup.kernel.terms import Mode, terms
from fastdedup.kernel.verbs import Verb
from fastdedup.ledger.forms import LedgerForm
from fastdedup.ledger.operations import (
    FirstOp,
    ForgetIdOp,
    LedgerOp,
    LedgerPlace,
    LedgerTerms,
    SeenOp,
    WeighOp,
)
from fastdedup.model import Outcome
from fastdedup.stores.redis.listener import CHANNEL
from fastdedup.stores.redis.scripts import lua_source
from fastdedup.stores.redis.verbs import FACES, load_scripts

from ..ops import move, stored
from ..servers import RedisServer

LUA = Path(__file__).parents[2] / "lua"
VERBS = [verb.value for verb in Verb]
FILES = sorted(path.stem for path in LUA.glob("*.lua"))
WIRE = Keyspace("t", Kind.CLAIM).wire


def whole_source(name: str) -> str:
    """The script with the shared texts that it names, but those that every script of its kind has."""
    text, places = (
        lua_source(name),
        re.compile(r" *-- Here stands (_claims|_look|_remember|_runs|_unless|_also)\.lua\.\n"),
    )
    while places.search(text):
        text = places.sub(lambda line: lua_source(line[1]), text)
    return text


@dataclass
class Header:
    """What a script's first comment says."""

    purpose: str
    keys: str
    argv: str
    returns: str

    @classmethod
    def of(cls, name: str) -> "Header":
        comment = re.match(r"(--.*\n)+", lua_source(name))
        assert comment, f"{name}.lua does not open with its header"
        text = re.sub(r"\s+", " ", re.sub(r"^--\s?", "", comment[0], flags=re.M))
        found = re.fullmatch(r"(.+?) KEYS\[i\] +(.+?) ARGV(?:\[i\])? +(.+?) returns +(.+?) ?", text)
        assert found, f"{name}.lua's header names KEYS, ARGV and returns in this order, not: {text}"
        return cls(*found.groups())

    def run_fields(self) -> list[str]:
        """The names that open each run, `count` first; none where the script has no runs."""
        found = re.match(r"after floor_us and limit, runs(?:,[^:]*)?: ([^;]+);", self.argv)
        return [re.sub(r"\(.*?\)", "", name).strip() for name in found[1].split(",")] if found else []

    def further_fields(self) -> list[str]:
        """The names that a run with a second key for each operation has behind these."""
        found = re.search(r"such a run also has (.+?), as for", self.argv)
        return found[1].replace(" and ", ", ").split(", ") if found else []

    def codes(self) -> set[str]:
        return set(re.findall(r"\b[A-Z_]{2,}\b", self.returns))


def test_every_verb_has_exactly_one_file() -> None:
    """And there are no other files but the shared ones."""
    shared = {"also", "batch", "claims", "dense", "ledger", "look", "record", "remember", "runs", "unless"}
    assert sorted([*VERBS, *(f"_{name}" for name in shared)]) == FILES


def test_every_verb_has_a_face() -> None:
    """A class that packs it and reads its reply."""
    assert set(FACES) == set(Verb)
    assert set(load_scripts()) == set(Verb)


@pytest.mark.parametrize("name", VERBS)
def test_a_script_opens_with_purpose_keys_argv_and_returns(name: str) -> None:
    """The purpose is one sentence at least; none of the four is left out."""
    header = Header.of(name)
    assert header.purpose.endswith(".")
    assert all((header.keys, header.argv, header.returns))
    assert header.returns.startswith("{now_us")


# The headers against pack()


def claim_op(number: int, lease: int = 30) -> ClaimOp:
    return ClaimOp(WIRE(str(number)), terms(Mode.CLAIM, lease, 90, False), draw_owner(), None)


def settle_op(number: int, keep: int = 30) -> SettleOp:
    return SettleOp(WIRE(str(number)), draw_owner(), 7, succeeded=True, keep_ms=keep, payload=b"[1]")


def touch_op(number: int, keep: int = 90) -> TouchOp:
    return TouchOp(WIRE(str(number)), draw_owner(), 7, keep)


def renew_op(number: int, lease: int = 30) -> RenewOp:
    return RenewOp(WIRE(str(number)), draw_owner(), 7, lease, 90)


def issue_op(number: int, ttl: int = 30) -> IssueOp:
    return IssueOp(WIRE(str(number)), draw_owner(), b"s" * 16, ttl)


def release_op(number: int, consumed: int = 0) -> ReleaseOp:
    return ReleaseOp(WIRE(str(number)), draw_owner(), 7, consumed=bool(consumed))


def adopt_op(number: int) -> AdoptOp:
    return AdoptOp(WIRE(str(number)), stored("S", draw_owner()), None)


@cache
def ledger_terms(window: int) -> LedgerTerms:
    return LedgerTerms(LedgerForm(capacity=10**8, width=7, window_ms=window, secret=b"s" * 32), "set", 99)


def first_op(number: int, window: int = 1000) -> FirstOp:
    return FirstOp(WIRE(str(number)), b"d" * 7 + b"n" * 5, ledger_terms(window))


def seen_op(number: int, window: int = 1000) -> SeenOp:
    return SeenOp(WIRE(str(number)), b"d" * 7, ledger_terms(window))


def forget_id_op(number: int, window: int = 1000) -> ForgetIdOp:
    return ForgetIdOp(WIRE(str(number)), b"d" * 7, ledger_terms(window))


def place_of(number: int) -> tuple[bytes, LedgerPlace]:
    return b"t:~l{AAAA}=%d" % number, LedgerPlace(b"t:~l{AAAA}", b"d" * 7, ledger_terms(1000))


def claim_unless_op(number: int, lease: int = 30) -> ClaimOp:
    wire, place = place_of(number)
    return ClaimOp(wire, terms(Mode.CLAIM, lease, 90, False, True), draw_owner(), None, place)


def settle_also_op(number: int, keep: int = 30) -> SettleOp:
    wire, place = place_of(number)
    return SettleOp(wire, draw_owner(), 7, succeeded=True, keep_ms=keep, payload=b"[1]", also=place)


def transition_op(number: int, keep: int = 30) -> TransitionOp:
    return move(WIRE(str(number)), "paid", "new", {"new", "held"}, keep_ms=keep)


@dataclass
class Run:
    """A run of ARGV: how an op is made, how many arguments each adds, and what stands before these.

    `second`: its operations have a second key.
    """

    script: str
    make: Callable[..., Any]
    per_key: int
    values: list[tuple[str, Any]]
    second: bool = False

    @property
    def fields(self) -> list[str]:
        """The names that the script's header gives."""
        header = Header.of(self.script)
        return header.run_fields() + (header.further_fields() if self.second else [])

    def pack(self, *ops: Any) -> list[Any]:
        return pack(self.script, list(ops))


OF_LEDGER: list[tuple[str, Any]] = [
    ("slot_us", 10_000),
    ("keep_ms", 1_250),
    ("width", 7),
    ("young", 16),
    ("named", 4),
    ("most", 2_000),
    ("until_ms", 99),
]
OF_LOOK: list[tuple[str, Any]] = [("slot_us", 10_000), ("width", 7), ("until_ms", 99)]


def of_claim(mode: str) -> list[tuple[str, Any]]:
    return [("lease_ms", "30"), ("keep_ms", "90"), ("mode", mode), ("watch", "0")]


RUNS = {
    "claim": Run("claim", claim_op, 1, of_claim("claim")),
    "claim unless": Run("claim", claim_unless_op, 2, [*of_claim("unless"), *OF_LOOK], True),
    "settle": Run("settle", settle_op, 2, [("state", "S"), ("keep_ms", 30)]),
    "settle also": Run("settle", settle_also_op, 3, [("state", "also"), ("keep_ms", 30), *OF_LEDGER], True),
    "release": Run("release", release_op, 1, [("consumed", 0)]),
    "renew": Run("renew", renew_op, 1, [("lease_ms", 30), ("keep_ms", 90)]),
    "touch": Run("touch", touch_op, 1, [("keep_ms", 90)]),
    "issue": Run("issue", issue_op, 1, [("ttl_ms", 30)]),
    "first": Run("first", first_op, 1, OF_LEDGER),
    "seen": Run("seen", seen_op, 1, [*OF_LOOK, ("from_ms", 0)]),
    "forget_id": Run("forget_id", forget_id_op, 1, OF_LOOK),
}


def pack(name: str, ops: list[Any]) -> list[Any]:
    return FACES[Verb(name)].call(ops)[1]


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_a_run_opens_with_the_fields_that_the_header_names(run: Run) -> None:
    """As many, in this order, with these values: then so much for each key, and nothing else."""
    assert run.fields == ["count", *[name for name, _ in run.values]]
    args = run.pack(*[run.make(number) for number in range(3)])
    assert args[: len(run.fields)] == [3, *[value for _, value in run.values]]
    assert len(args) == len(run.fields) + 3 * run.per_key


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_a_run_ends_where_the_terms_change(run: Run) -> None:
    """Neighbours with equal terms share one run; A, A, B, A are three."""
    args = run.pack(run.make(1), run.make(2), run.make(3, 31), run.make(4))
    size = len(run.fields)
    assert len(args) == 3 * size + 4 * run.per_key
    second = size + 2 * run.per_key
    third = second + size + run.per_key
    assert [args[0], args[second], args[third]] == [2, 1, 1]


@pytest.mark.parametrize("name", [name for name, run in RUNS.items() if not run.second])
def test_the_script_steps_over_a_run_as_far_as_the_header_says(name: str) -> None:
    """`a = a + n` after the fields of a run, and once more per key."""
    header, further = Header.of(name), RUNS.get(f"{name} unless") or RUNS.get(f"{name} also")
    expected = [len(header.run_fields()), RUNS[name].per_key]
    if further:
        expected += [len(header.further_fields()), further.per_key]
    source = whole_source(name)
    steps = [int(step) for step in re.findall(r"^ +a = a \+ (\d+)$", source, flags=re.M)]
    steps += [1 + int(heads) for heads in re.findall(r"^each_(?:run|id)\((\d+),", source, flags=re.M)]
    if "a = a + 1 + each" in source:  # one key and two arguments, or two keys and three arguments
        steps += [2, 3]
    assert sorted(steps) == sorted(expected)


def test_transition_takes_the_arguments_that_its_header_counts() -> None:
    """Seven per key, each of them named, in the order of the script's own parameters."""
    header = Header.of("transition")
    opening = "after floor_us and limit, seven per key: "
    assert header.argv.startswith(opening)
    names = re.sub(r"\([^)]*\)", "", header.argv.removeprefix(opening)).split(",")
    expected = ["keep_ms", "change", "version", "to", "initial", "sources", "again"]
    assert [name.strip() for name in names] == expected
    first, second = transition_op(1), transition_op(2)
    second.resent = True
    args = [30, b"c" * 10, "", "paid", "new", "\nheld\nnew\n"]
    assert pack("transition", [first, second]) == [*args, "", *args, "1"]


@pytest.mark.parametrize("name", ["read", "forget"])
def test_a_script_without_arguments_says_so(name: str) -> None:
    """ARGV is empty, however many keys."""
    assert Header.of(name).argv == "after floor_us and limit, nothing"
    assert pack(name, [ReadOp(b"a"), ForgetOp(b"b")]) == []
    assert "ARGV" not in lua_source(name).split("returns")[1]


# The headers against what comes back


@pytest.mark.parametrize("name", VERBS)
def test_the_codes_in_a_header_are_those_that_the_script_answers(name: str) -> None:
    """Neither one too many nor one too few."""
    body = re.sub(r"--.*", "", whole_source(name))
    used = {code.name for code in Code if re.search(rf"\b{code.name}\b", body)}
    # What `read`, `fetch` and `fetch_bucket` say of a value that cannot be used.
    if re.search(r"\bfault\b|\bfetch_bucket\b", body):
        used |= {"FOREIGN", "TOO_LARGE", "ELSEWHERE", "REFUSED"}
    if re.search(r"\banswer_known\b", body):  # of an id that another call has remembered
        used |= {"ALREADY", "PENDING"}
    if name == "forget_id":
        used.remove("ALREADY")  # only `look` says that
    named = Header.of(name).codes()
    # A claim's codes are the outcome table; pairs are named for the keys that were not OK.
    if name == "claim":
        assert used == named - {"SET"} | {
            "TAKEN",
            "REENTERED",
            "IN_PROGRESS",
            "SUCCEEDED",
            "FAILED",
            "MISMATCH",
            "FOREIGN",
            "TOO_LARGE",
            "ELSEWHERE",
            "REFUSED",
        }
    else:
        # A completion waits for no other call, and is content that the id is known.
        quiet = {"OK", "ALREADY", "PENDING"} if name == "settle" else {"OK"}
        assert used - quiet == named - quiet


@pytest.mark.parametrize("name", ["settle", "release", "renew", "touch", "issue"])
def test_a_reply_of_pairs_names_only_what_did_not_succeed(name: str) -> None:
    """{now_us, i, code, ...}: everything unnamed is OK."""
    assert Header.of(name).returns.startswith("{now_us, i, code, ...}: a pair")
    replies = FACES[Verb(name)].read(
        [ReadOp(b"a"), ReadOp(b"b"), ReadOp(b"c")], [9_000, 2, int(Code.FOREIGN)]
    )
    assert replies == [Code.OK, Code.FOREIGN, Code.OK]


def test_a_claims_reply_names_only_what_was_not_fresh() -> None:
    """Fresh claims cost nothing to answer: their fence is the server's time, for all of a run."""
    ops = [claim_op(1), claim_op(2, 60), claim_op(3)]
    fresh, unknown, last = FACES[Verb.CLAIM].read(ops, [9_000, 2, int(Code.UNKNOWN), b""])
    assert unknown.outcome is Outcome.UNKNOWN  # type: ignore[union-attr]
    for reply in (fresh, last):
        assert (reply.outcome, reply.fence, reply.attempt, reply.left_ms) == (Outcome.ACQUIRED, 9_000, 1, 30)  # type: ignore[union-attr]


def test_a_triple_too_short_is_an_error() -> None:
    """A reply that does not fit its script is never half read."""
    with pytest.raises(ValueError, match="shorter"):
        FACES[Verb.READ].read([ReadOp(b"a")], [9_000, 0, b"record"])


# What stands in both languages


def test_codes_are_the_same_numbers_in_both_languages() -> None:
    """`_record.lua` mirrors the IntEnum, all of it."""
    mirrored: dict[str, int] = {}
    for names, numbers in re.findall(r"^local ([A-Z_, ]+) = ([\d, ]+)$", lua_source("_record"), flags=re.M):
        mirrored |= dict(zip(names.split(", "), map(int, numbers.split(", ")), strict=True))
    assert mirrored == {code.name: code.value for code in Code}


def test_both_languages_name_the_same_channel() -> None:
    """Who publishes and who subscribes."""
    assert re.search(r"^local CHANNEL = '(.+)'$", lua_source("_record"), flags=re.M)[1] == CHANNEL  # type: ignore[index]


def test_both_languages_name_the_same_modes() -> None:
    """They are compared as text: the header lists all, and the script knows no other."""
    modes = {mode.value for mode in Mode}
    listed = re.search(r"mode: (.+?) keep_ms:", Header.of("claim").argv)
    assert listed
    assert {name.split()[0] for name in listed[1].split(" | ")} == modes | {"unless"}
    assert set(re.findall(r"mode [=~]= '(\w+)'", whole_source("claim"))) <= modes | {"unless"}


# What all servers share


def code_of(name: str) -> str:
    """The script without comments and strings."""
    text = re.sub(r"--.*", "", whole_source(name))
    return re.sub(r"'(?:[^'\\]|\\.)*'", "''", text)


@pytest.mark.parametrize("name", FILES)
def test_a_script_uses_only_what_every_server_has(name: str) -> None:
    """No library beyond the language's own, no shebang: Redis 6.2, 7, Valkey and fakeredis agree."""
    assert not lua_source(name).startswith("#!")
    assert not re.search(
        r"\b(cmsgpack|struct|bit|cjson|loadstring|redis\.log|redis\.setresp)\b", code_of(name)
    )
    assert "'GET'" not in "".join(re.findall(r"redis\.p?call\('SET'.*?\)", lua_source(name)))


@pytest.mark.parametrize("name", FILES)
def test_a_script_assigns_no_global(name: str) -> None:
    """Redis forbids it at run time, in whatever branch it stands; this finds it in all of them."""
    code = code_of(name)
    declared = set(re.findall(r"\w+", " ".join(re.findall(r"\blocal (?:function )?([\w, ]+)", code))))
    declared |= set(re.findall(r"\w+", " ".join(re.findall(r"\bfor ([\w, ]+?) (?:=|in)\b", code))))
    declared |= set(re.findall(r"\w+", " ".join(re.findall(r"\bfunction ?\w*\(([\w, ]*)\)", code))))
    declared |= {"_also": {"ledgers"}, "_unless": {"claim_unless"}}.get(name, set())  # by the text around it
    assigned = re.findall(r"^ *(?:if .* then )?((?:\w+)(?:, \w+)*) = ", code, flags=re.M)
    names = {name for group in assigned for name in group.split(", ")}
    fields = set(re.findall(r"^ +(\w+) = [^\n]*,$", code, flags=re.M))  # of a table
    assert names - declared - fields == set()
    assert not re.search(r"^ *function ", code, flags=re.M)


# Loading


def test_a_missing_script_names_the_remedy() -> None:
    """A package that was installed by halves."""
    with pytest.raises(ConfigError, match=r"nothing\.lua is missing: .* install it again"):
        lua_source("nothing")


def test_a_claim_makes_the_functions_for_records_only_on_conflict() -> None:
    """They cost as much as three fresh claims. Every other script reads each record, so it makes them first."""
    record = lua_source("_record")
    for verb, script in load_scripts().items():
        head, _, own = script.text.partition(record)
        assert head.startswith(lua_source("_batch"))
        assert ("local function conflicts()" in head) == (verb is Verb.CLAIM)
        assert own.rstrip().endswith("return reply")


def test_scripts_lie_in_the_package_or_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel carries them inside; a checkout has them next to the package."""
    inside = tmp_path / "fastdedup" / "lua"
    inside.mkdir(parents=True)
    (inside / "claim.lua").write_text("-- inside", encoding="utf-8")
    monkeypatch.setattr(scripts, "__file__", str(tmp_path / "fastdedup/stores/redis/scripts.py"))
    assert lua_source.__wrapped__("claim") == "-- inside"
    (tmp_path / "lua").mkdir()
    (tmp_path / "lua" / "read.lua").write_text("-- beside", encoding="utf-8")
    assert lua_source.__wrapped__("read") == "-- beside"


def op_for(verb: Verb) -> Op:
    makers: dict[Verb, Callable[[int], Op]] = {
        Verb.CLAIM: claim_op,
        Verb.SETTLE: settle_op,
        Verb.RELEASE: release_op,
        Verb.RENEW: renew_op,
        Verb.TOUCH: touch_op,
        Verb.ISSUE: issue_op,
        Verb.TRANSITION: transition_op,
        Verb.READ: lambda number: ReadOp(WIRE(str(number))),
        Verb.FORGET: lambda number: ForgetOp(WIRE(str(number))),
        Verb.ADOPT: adopt_op,
        Verb.LEDGER: lambda number: LedgerOp(WIRE(str(number)), b"{}", 1000),
        Verb.FIRST: lambda number: first_op(number, 10_000),
        Verb.SEEN: lambda number: seen_op(number, 10_000),
        Verb.FORGET_ID: lambda number: forget_id_op(number, 10_000),
        Verb.WEIGH: lambda number: WeighOp(WIRE(str(number)), ledger_terms(10_000)),
    }
    return makers[verb](1)


@pytest.mark.parametrize("verb", Verb)
async def test_a_server_that_lost_its_scripts_gets_them_again(
    verb: Verb, redis_url: str, redis_server: RedisServer
) -> None:
    """NOSCRIPT comes before anything is done, so the batch is sent again with the text: nobody notices."""
    async with Dedup(redis_url) as dedup:
        with redis_server.client() as raw:
            raw.script_flush()
            store = dedup.gate.connection.store
            (first,) = await store.execute(verb, [op_for(verb)])
            assert raw.script_exists(load_scripts()[verb].sha) == [True]
            raw.flushdb()
            (second,) = await store.execute(verb, [op_for(verb)])
        assert type(first) is type(second)
