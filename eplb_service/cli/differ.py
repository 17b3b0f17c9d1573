"""What differs between two placements: of epochs, or of files.

Axes    L MoE layers   N ranks
"""

from argparse import Namespace
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from eplb.v1 import admin_pb2 as pb

from eplb_service.cli.client import Client
from eplb_service.cli.ends import Answer, Exit, invalid
from eplb_service.cli.files import read_bytes
from eplb_service.cli.map_formats import read_map
from eplb_service.cli.options import MOST_IN_64_BITS, Options
from eplb_service.cli.plain import Plain, plain
from eplb_service.cli.words import count, table
from eplb_service.domain.errors import EplbError
from eplb_service.domain.map_file import MapFile, parse_map

MAX_SHOWN = 50


@dataclass(frozen=True, slots=True)
class RankChange:
    """What one rank holds more and less of in one layer."""

    layer: int
    rank: int
    gained: tuple[int, ...]
    lost: tuple[int, ...]


def diff(client: Client, options: Options, args: Namespace) -> Answer:
    """Show which ranks hold other experts."""
    before, after = (_found(client, options, args, word) for word in (args.before, args.after))
    changes = changed_ranks(before, after)
    tree: Plain = {"before": args.before, "after": args.after, "changes": plain(changes)}
    if not changes:
        return Answer(f"no difference between {args.before} and {args.after}", tree)
    rows = [
        (str(c.layer), str(c.rank), _listed(c.gained), _listed(c.lost)) for c in changes[:MAX_SHOWN]
    ]
    shown = table(("layer", "rank", "gained", "lost"), rows, right=(0, 1))
    if len(changes) > MAX_SHOWN:
        shown += f"\nand {len(changes) - MAX_SHOWN} more; -o json lists all"
    moved = sum(len(change.gained) for change in changes)
    shown += f"\n{count(moved, 'expert')} held by ranks that did not hold them before"
    return Answer(shown, tree, Exit.WOULD_CHANGE if args.exit_code else Exit.DONE)


def changed_ranks(before: MapFile, after: MapFile) -> tuple[RankChange, ...]:
    """Compare rank by rank, whatever the order of slots; raises Failure for unlike shapes."""
    layers = dict(before.layers)
    if list(layers) != list(after.layer_ids):
        raise invalid(f"one has layers {list(layers)}, the other {list(after.layer_ids)}")
    changes: list[RankChange] = []
    for layer, ranks in after.layers:
        if len(layers[layer]) != len(ranks):
            raise invalid(f"layer {layer} has {len(layers[layer])} ranks and {len(ranks)}")
        for rank, (old, new) in enumerate(zip(layers[layer], ranks, strict=True)):
            gained, lost = Counter(new) - Counter(old), Counter(old) - Counter(new)
            if gained or lost:
                more, less = (tuple(sorted(c.elements())) for c in (gained, lost))
                changes.append(RankChange(layer, rank, more, less))
    return tuple(changes)


def _listed(experts: tuple[int, ...]) -> str:
    return ", ".join(map(str, experts)) or "-"


def _found(client: Client, options: Options, args: Namespace, word: str) -> MapFile:
    """Take a number for an epoch, `served` for the one that is served, else a file."""
    if word == "served" or (word.isdecimal() and int(word) <= MOST_IN_64_BITS):
        epoch = 0 if word == "served" else int(word)
        request = pb.ExportRequest(deployment=options.deployment, epoch=epoch)
        return parse_map(client.ask(client.stub.Export, request).text)
    try:
        return read_map(read_bytes(Path(word)), num_ranks=args.ranks).found
    except EplbError as error:
        raise invalid(f"{word}: {error}") from error
