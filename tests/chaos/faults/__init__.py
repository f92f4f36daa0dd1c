"""The faults: one short class each, and `FAULTS`, the table that plan and report are made of.

To add one: subclass `Fault`, give it a line in the table. `inject` brings the trouble about and
`heal` ends it; both return when that is done. `keeps_data = False` says that the server may forget
acknowledged writes between the two: the checker then counts what it otherwise calls a violation.
"""

from .base import Fault, Scene
from .clients import (
    CallersGone,
    ClockStep,
    ClockStepInOutage,
    LoopBlocked,
    LoopBlockedBriefly,
    WorkerFrozen,
    WorkerKilled,
)
from .groups import (
    ClusterFailover,
    ClusterFrozen,
    ClusterKilled,
    ClusterKilledWait,
    SentinelFailover,
    SentinelFrozen,
    SentinelFrozenWait,
    SentinelKilled,
    SentinelKilledWait,
    SlotsMoved,
    SlotsMovedBySlot,
)
from .network import (
    Cut,
    Delay,
    HalfOpen,
    LateReplies,
    Partition,
    Refused,
    ReplyDropped,
    ReplyTorn,
    RoundAndRound,
    SameOwners,
    Stalled,
)
from .server import (
    ClientPause,
    DebugSleep,
    Freeze,
    KillAof,
    KillEmpty,
    Loading,
    MaxClients,
    OutOfMemory,
    Password,
    ReadOnly,
    ScriptFlush,
    ServerClockBack,
)

_ALL: tuple[type[Fault], ...] = (
    KillAof,
    KillEmpty,
    Freeze,
    ClientPause,
    DebugSleep,
    ScriptFlush,
    OutOfMemory,
    ReadOnly,
    MaxClients,
    Password,
    Loading,
    Refused,
    HalfOpen,
    Stalled,
    Partition,
    Cut,
    ReplyDropped,
    ReplyTorn,
    Delay,
    LateReplies,
    RoundAndRound,
    SameOwners,
    CallersGone,
    ServerClockBack,
    WorkerKilled,
    WorkerFrozen,
    LoopBlocked,
    LoopBlockedBriefly,
    ClockStep,
    ClockStepInOutage,
    SentinelKilled,
    SentinelKilledWait,
    SentinelFrozen,
    SentinelFrozenWait,
    SentinelFailover,
    ClusterKilled,
    ClusterKilledWait,
    ClusterFrozen,
    ClusterFailover,
    SlotsMoved,
    SlotsMovedBySlot,
)
FAULTS: dict[str, type[Fault]] = {fault.name: fault for fault in _ALL}
"""By name, in the order of the report."""

__all__ = ["FAULTS", "Fault", "Scene"]
