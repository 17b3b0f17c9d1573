"""What Redis holds of one deployment, and the commands that change it.

{eplb}:fence             the newest generation
{eplb}:beats             how often it has said that it leads
{eplb}:deployments       set of names
{eplb}:NAME              hash: record, settings, freeze, drained, start, start_after, highest,
                         version
{eplb}:NAME:epochs       hash: number to phase, reason, step, time and revision, as JSON
{eplb}:NAME:past         the same for numbers whose records are forgotten; never read whole
{eplb}:NAME:bodies       hash: number to an epoch's record, as codec.encode packs it
{eplb}:NAME:history      list of lines as JSON, the newest first
"""

from dataclasses import dataclass, replace
from typing import Final, cast

from pydantic import TypeAdapter

from eplb_service.controller.records import (
    DeploymentRecord,
    EpochEnd,
    EpochRecord,
    Freeze,
    HistoryEntry,
    Pulse,
)
from eplb_service.domain.ids import Epoch, Generation, Revision
from eplb_service.protocol.wave_state import WavePhase
from eplb_service.store.codec import decode, encode
from eplb_service.store.judge import HISTORY_KEPT, SETTLED_KEPT, unknown_deployment, unknown_epoch
from eplb_service.store.redis_wire import Command, Wire

FENCE = "{eplb}:fence"
BEATS = "{eplb}:beats"
NAMES = "{eplb}:deployments"


@dataclass(frozen=True, slots=True)
class Line:
    """How far one spent number came."""

    end: EpochEnd
    revision: Revision
    is_kept: bool
    """Whether its record is kept."""


RECORD: Final = TypeAdapter(DeploymentRecord)
FREEZE: Final = TypeAdapter(Freeze)
RANKS: Final = TypeAdapter(tuple[int, ...])
LINE: Final = TypeAdapter(Line)
ENTRY: Final = TypeAdapter(HistoryEntry)
SERVED = (WavePhase.SETTLED, WavePhase.COMMITTED)


@dataclass(frozen=True, slots=True)
class Keys:
    """Where one deployment is kept."""

    name: str

    @property
    def head(self) -> str:
        """Hash of what is small."""
        return f"{{eplb}}:{self.name}"

    @property
    def epochs(self) -> str:
        """Hash of lines."""
        return f"{self.head}:epochs"

    @property
    def past(self) -> str:
        """Hash of lines without records."""
        return f"{self.head}:past"

    @property
    def bodies(self) -> str:
        """Hash of records."""
        return f"{self.head}:bodies"

    @property
    def history(self) -> str:
        """List of lines of history."""
        return f"{self.head}:history"

    @property
    def all(self) -> tuple[str, ...]:
        """All that a write may touch, fence and head first."""
        return (FENCE, self.head, self.epochs, self.past, self.bodies, self.history, NAMES)


@dataclass(frozen=True, slots=True)
class Ledger:
    """One deployment as it is at one moment, without its records."""

    keys: Keys
    generation: Generation
    head: dict[str, bytes]
    lines: dict[Epoch, Line]

    @property
    def version(self) -> str:
        """Grows with every write; empty before the first."""
        return self.head.get("version", b"").decode()

    @property
    def record(self) -> DeploymentRecord | None:
        """None where nobody registered."""
        text = self.head.get("record")
        return RECORD.validate_json(text) if text else None

    @property
    def highest(self) -> Epoch:
        """The highest number spent, -1 before the first."""
        return Epoch(int(self.head.get("highest", b"-1")))

    @property
    def start_after(self) -> int:
        """Epochs up to this one are of an earlier shape."""
        return int(self.head.get("start_after", b"-1"))

    @property
    def start(self) -> EpochRecord | None:
        """What a group of another shape restarted into."""
        blob = self.head.get("start")
        return decode(blob, what=f"the start of {self.keys.name}") if blob else None

    @property
    def freeze(self) -> Freeze | None:
        """The operator's."""
        text = self.head.get("freeze")
        return FREEZE.validate_json(text) if text else None

    @property
    def drained(self) -> tuple[int, ...]:
        """Ranks that operators have drained."""
        return RANKS.validate_json(self.head.get("drained", b"[]"))

    def newest(self, *phases: WavePhase, after: int = -1, below: int | None = None) -> Epoch | None:
        """Return the highest number in one of the phases whose record is kept."""
        kept = (
            number
            for number, line in self.lines.items()
            if line.end.phase in phases and number > after and (below is None or number < below)
        )
        return max(kept, default=None)

    def require_registered(self) -> None:
        """Raise UnknownDeployment where nobody registered."""
        if "record" not in self.head:
            raise unknown_deployment(self.keys.name)


def read(wire: Wire, name: str) -> Ledger:
    """Look at one deployment."""
    keys = Keys(name)
    fence, head, lines = wire.look(("GET", FENCE), ("HGETALL", keys.head), ("HGETALL", keys.epochs))
    generation = Generation(int(cast("bytes | None", fence) or b"0"))
    found = {int(number): LINE.validate_json(line) for number, line in pairs(lines)}
    return Ledger(
        keys,
        generation,
        {field.decode(): value for field, value in pairs(head)},
        {Epoch(number): found[number] for number in sorted(found)},
    )


def pulse(wire: Wire) -> Pulse:
    """Look who led last, and how often it has said so."""
    fence, beats = wire.look(("GET", FENCE), ("GET", BEATS))
    newest, said = (int(cast("bytes | None", one) or b"0") for one in (fence, beats))
    return Pulse(Generation(newest), said)


def past_line(wire: Wire, ledger: Ledger, number: Epoch) -> Line | None:
    """Look for a number that is too old to be in the ledger."""
    text = cast("bytes | None", wire.ask("HGET", ledger.keys.past, number))
    return LINE.validate_json(text) if text else None


def line_of(wire: Wire, ledger: Ledger, number: Epoch) -> Line:
    """Return how far a number came; raises UnknownEpoch for one that was never spent."""
    ledger.require_registered()
    found = ledger.lines.get(number) or past_line(wire, ledger, number)
    if found is None:
        raise unknown_epoch(ledger.keys.name, number)
    return found


def body(wire: Wire, name: str, number: Epoch) -> EpochRecord | None:
    """Read one record; None where it is not kept."""
    blob = cast("bytes | None", wire.ask("HGET", Keys(name).bodies, number))
    return decode(blob, what=f"epoch {number} of {name}") if blob else None


def pairs(reply: object) -> list[tuple[bytes, bytes]]:
    """Return fields and values of a hash, from either shape that clients give to HGETALL."""
    if isinstance(reply, dict):
        return list(cast("dict[bytes, bytes]", reply).items())
    flat = cast("list[bytes]", reply)
    return list(zip(flat[::2], flat[1::2], strict=True))


# ---- commands -----------------------------------------------------------------


def set_record(keys: Keys, record: DeploymentRecord) -> list[Command]:
    """Insert a deployment, or renew its record."""
    return [("SADD", NAMES, keys.name), ("HSET", keys.head, "record", RECORD.dump_json(record))]


def set_line(keys: Keys, line: Line) -> Command:
    """Write how far a number came."""
    key = keys.epochs if line.is_kept else keys.past
    return ("HSET", key, line.end.epoch, LINE.dump_json(line))


def _forget(keys: Keys, line: Line) -> list[Command]:
    """Drop a number's record; the number itself stays."""
    number = line.end.epoch
    return [
        ("HDEL", keys.bodies, number),
        ("HDEL", keys.epochs, number),
        set_line(keys, replace(line, is_kept=False)),
    ]


def spend(ledger: Ledger, record: EpochRecord, phase: WavePhase) -> list[Command]:
    """Write a number down, with everything that its orders need."""
    keys, number = ledger.keys, record.wave.epoch
    line = Line(EpochEnd(number, phase, "", 0, record.spent_at_s), Revision(0), is_kept=True)
    return [
        ("HSET", keys.bodies, number, encode(record)),
        set_line(keys, line),
        ("HSET", keys.head, "highest", number),
    ]


def number_alone(wire: Wire, ledger: Ledger, record: EpochRecord) -> list[Command]:
    """Write a number down that is not on record, without its placement."""
    number = record.wave.epoch
    if number in ledger.lines or past_line(wire, ledger, number):
        return []
    end = EpochEnd(number, WavePhase.SETTLED, "", 0, record.spent_at_s)
    return [set_line(ledger.keys, Line(end, Revision(0), is_kept=False))]


def forget_aborted(ledger: Ledger) -> list[Command]:
    """Drop the records of epochs that were never served and can no longer be open."""
    return [
        command
        for line in ledger.lines.values()
        if line.end.phase is WavePhase.ABORTED
        for command in _forget(ledger.keys, line)
    ]


def forget_old(ledger: Ledger, settled: Epoch) -> list[Command]:
    """Drop epochs that are too old to return to, once `settled` is settled too."""
    done = [n for n, line in ledger.lines.items() if line.end.phase is WavePhase.SETTLED]
    oldest_dropped = sorted({*done, settled})[:-SETTLED_KEPT][-1:]
    return [
        command
        for last in oldest_dropped
        for number, line in ledger.lines.items()
        if number <= last
        for command in _forget(ledger.keys, line)
    ]


def add_history(keys: Keys, entry: HistoryEntry) -> list[Command]:
    """Add a line of history and drop those that are too old to keep."""
    return [
        ("LPUSH", keys.history, ENTRY.dump_json(entry)),
        ("LTRIM", keys.history, 0, HISTORY_KEPT - 1),
    ]
