"""Verbs on expert-map files; they talk to no controller and never write to the file they read."""

from argparse import Namespace
from pathlib import Path

from eplb_service.cli.client import Client
from eplb_service.cli.ends import Answer, Exit, invalid
from eplb_service.cli.files import read_bytes, write_whole
from eplb_service.cli.map_formats import MapFormat, ReadMap, read_map, write_map
from eplb_service.cli.options import Options
from eplb_service.cli.plain import Plain, plain
from eplb_service.cli.words import count, table
from eplb_service.domain.errors import EplbError, InvalidMapFile
from eplb_service.domain.map_file import MapFile, placement_of
from eplb_service.domain.placement import Placement
from eplb_service.domain.rules import Violation, violations

MAX_SHOWN = 50


def validate(client: Client, options: Options, args: Namespace) -> Answer:
    """Check a file against every rule of soundness."""
    del client, options
    path: Path = args.file
    try:
        found = _read(args).found
        num_experts: int = _highest(found) + 1 if args.experts is None else args.experts
        _require_room(found, num_experts)
        placement = placement_of(found, model_layers=found.layer_ids, num_experts=num_experts)
    except EplbError as error:
        raise invalid(f"{path}: {error}") from error
    broken = violations(placement)
    facts = _facts(path, found, placement, broken)
    if not broken:
        return Answer(f"{path} is sound: {_described(placement)}", facts)
    rows = [(str(found.layer_ids[v.layer]), v.rule, v.text) for v in broken[:MAX_SHOWN]]
    shown = table(("layer", "rule", "what is wrong"), rows, right=(0,))
    if len(broken) > MAX_SHOWN:
        shown += f"\nand {len(broken) - MAX_SHOWN} more; -o json lists all"
    complaint = f"invalid: {path} is not sound in {count(len(broken), 'place')}; it is untouched"
    return Answer(shown, facts, Exit.INVALID, complaint)


def convert(client: Client, options: Options, args: Namespace) -> Answer:
    """Write a file's placement down in another format."""
    del client, options
    read = _named(args)
    form = MapFormat(args.to)
    write_whole(args.out, write_map(read.found, form, hidden_layers=args.hidden_layers))
    layers = count(len(read.found.layers), "layer")
    facts: Plain = {"file": str(args.out), "from": str(read.format), "to": str(form)}
    return Answer(f"{layers} of {args.file} ({read.format}) written to {args.out} ({form})", facts)


def ascend_text(args: Namespace) -> str:
    """Return a file's placement in the format that the controller reads; raises Failure."""
    read = _named(args)
    if read.format is MapFormat.ASCEND:
        return read_bytes(args.file).decode()
    return write_map(read.found, MapFormat.ASCEND, hidden_layers=None).decode()


def _named(args: Namespace) -> ReadMap:
    try:
        return _read(args)
    except EplbError as error:
        raise invalid(f"{args.file}: {error}") from error


def _read(args: Namespace) -> ReadMap:
    form = MapFormat(args.form) if args.form else None
    return read_map(read_bytes(args.file), num_ranks=args.ranks, form=form)


def _require_room(found: MapFile, num_experts: int) -> None:
    """Raise InvalidMapFile where some expert must be missing, before tables are made for all."""
    if not num_experts:
        raise InvalidMapFile("no experts; expected one or more, in the file and by --experts")
    num_slots = max(sum(len(rank) for rank in ranks) for _, ranks in found.layers)
    if num_experts > num_slots:
        raise InvalidMapFile(
            f"{num_experts} experts (0 to {num_experts - 1}) do not fit {num_slots} slots; "
            "expected a slot for every expert"
        )


def _highest(found: MapFile) -> int:
    """The highest expert that occurs, which is all that a file says of their number."""
    return max(
        (expert for _, ranks in found.layers for rank in ranks for expert in rank), default=-1
    )


def _described(placement: Placement) -> str:
    layout = placement.layout
    each = sorted(set(layout.slots_per_rank))
    slots = str(each[0]) if len(each) == 1 else f"{each[0]} to {each[-1]}"
    return (
        f"{count(placement.num_layers, 'layer')}, {count(placement.num_experts, 'expert')} in "
        f"{count(layout.num_slots, 'slot')} on {count(layout.num_ranks, 'rank')} of {slots}"
    )


def _facts(
    path: Path, found: MapFile, placement: Placement, broken: tuple[Violation, ...]
) -> Plain:
    return {
        "file": str(path),
        "is_sound": not broken,
        "layers": list(found.layer_ids),
        "num_experts": placement.num_experts,
        "slots_per_rank": list(placement.layout.slots_per_rank),
        "violations": plain(broken),
    }
