"""The faults: one short class each, and `FAULTS`, the table that plan and report are made of.

To add one: subclass `Fault`, give it a line in the table. `inject` brings the trouble about and
`heal` ends it; both return when that is done. `keeps_data = False` says that the server may forget
acknowledged writes between the two: the checker then counts what it otherwise calls a violation.
"""

from . import clients, groups, network, server
from .base import Fault, Scene

_ALL: tuple[type[Fault], ...] = (
    server.KillAof,
    server.KillEmpty,
    server.Freeze,
    server.ClientPause,
    server.DebugSleep,
    server.ScriptFlush,
    server.OutOfMemory,
    server.ReadOnly,
    server.MaxClients,
    server.Password,
    server.Loading,
    network.Refused,
    network.HalfOpen,
    network.Stalled,
    network.Partition,
    network.Cut,
    network.ReplyDropped,
    network.ReplyTorn,
    network.Delay,
    network.LateReplies,
    network.RoundAndRound,
    network.SameOwners,
    clients.CallersGone,
    server.ServerClockBack,
    clients.WorkerKilled,
    clients.WorkerFrozen,
    clients.LoopBlocked,
    clients.LoopBlockedBriefly,
    clients.ClockStep,
    clients.ClockStepInOutage,
    groups.SentinelKilled,
    groups.SentinelKilledWait,
    groups.SentinelFrozen,
    groups.SentinelFrozenWait,
    groups.SentinelFailover,
    groups.ClusterKilled,
    groups.ClusterKilledWait,
    groups.ClusterFrozen,
    groups.ClusterFailover,
    groups.SlotsMoved,
    groups.SlotsMovedBySlot,
)
FAULTS: dict[str, type[Fault]] = {fault.name: fault for fault in _ALL}
"""By name, in the order of the report."""

__all__ = ["FAULTS", "Fault", "Scene"]
