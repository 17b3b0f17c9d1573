"""From which placements a simulation sets out.

Axes    L MoE layers   E logical experts
"""

from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator

from eplb_service.cli.ends import invalid
from eplb_service.cli.files import read_bytes
from eplb_service.cli.loads import Loads
from eplb_service.cli.map_formats import read_map
from eplb_service.cli.options import small_number
from eplb_service.cli.what_if import flat_start, redundancies
from eplb_service.domain.errors import EplbError
from eplb_service.domain.map_file import placement_of
from eplb_service.domain.placement import Placement
from eplb_service.domain.rules import require_sound

AUTO = "auto"


def slot_counts(text: str) -> tuple[int, ...]:
    """Read numbers with commas; `auto` is none, for what divides to be tried."""
    if text == AUTO:
        return ()
    return tuple(sorted({small_number(part.strip()) for part in text.split(",")}))


def some_slots(text: str) -> tuple[int, ...]:
    """Read numbers of slots with commas."""
    if text == AUTO:
        raise ArgumentTypeError(f"{text!r} is no number; --redundancy {AUTO} tries what divides")
    return slot_counts(text)


def starts(loads: Loads, args: Namespace) -> Iterator[Placement]:
    """Yield the placement that each number of slots sets out from, fewest slots first.

    It is the one that was served, by --map or by a recording, where it has as many slots and
    ranks, else the flat one that engines load. Raises Failure or InvalidSettings for what
    cannot be.
    """
    num_experts = loads.tokens.shape[2]
    served = _served(loads, args)
    num_ranks = args.ranks if served is None else served.layout.num_ranks
    if num_ranks is None:
        raise invalid("say how many ranks there are with --ranks N, or give a --map that tells")
    own = 0 if served is None else served.layout.num_slots - num_experts
    for redundancy in _asked(args, num_experts, num_ranks, own):
        if served is not None and redundancy == own:
            yield served
        else:
            yield flat_start(loads.total, num_ranks=num_ranks, redundancy=redundancy)


def _asked(args: Namespace, num_experts: int, num_ranks: int, own: int) -> tuple[int, ...]:
    if args.slots is not None:
        if min(args.slots) < num_experts:
            raise invalid(f"{min(args.slots)} slots for {num_experts} experts; expected no fewer")
        return tuple(slots - num_experts for slots in args.slots)
    if args.redundancy is None:
        return (own,)
    return args.redundancy or redundancies(num_experts, num_ranks)


def _served(loads: Loads, args: Namespace) -> Placement | None:
    if args.map is not None:
        return _placement(str(args.map), read_bytes(args.map), loads, args.ranks)
    if loads.placement:
        found = _placement(f"{args.file}: placement", loads.placement.encode(), loads, None)
        return found if args.ranks in {None, found.layout.num_ranks} else None
    return None


def _placement(path: str, data: bytes, loads: Loads, num_ranks: int | None) -> Placement:
    """Read the placement that is served; raises Failure where it is not one for this load."""
    _, num_layers, num_experts = loads.tokens.shape
    try:
        found = read_map(data, num_ranks=num_ranks).found
        placement = placement_of(found, model_layers=found.layer_ids, num_experts=num_experts)
        require_sound(placement)
    except EplbError as error:
        raise invalid(f"{path}: {error}") from error
    if placement.num_layers != num_layers:
        raise invalid(f"{path} has {placement.num_layers} layers, the load {num_layers}")
    return placement
