"""The command line of verbs on files: expert maps, controllers by name, completion."""

from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

from eplb_service.cli import acts, audit, completing, context_verbs, maps, reads
from eplb_service.cli.adder import Adder, offer_wait
from eplb_service.cli.map_formats import MapFormat
from eplb_service.cli.options import small_number, whole_number


def add_files(add: Adder) -> None:
    """Add export, import and the verbs on map files."""
    export = add(
        "export", reads.export, "write a placement as an expert map", "eplbctl export map.json"
    )
    export.add_argument("file", type=Path, nargs="?", metavar="FILE", help="default: stdout")
    export.add_argument(
        "--epoch", type=whole_number, default=0, metavar="EPOCH", help="default: the served one"
    )
    imported = add.act(
        "import",
        acts.import_map,
        "go to the placement of an expert map",
        "eplbctl import map.json --wait",
    )
    _name_map(imported)
    imported.add_argument(
        "--reshape",
        action="store_true",
        help="fit a map that was made for other slot counts to this deployment",
    )
    either = imported.add_mutually_exclusive_group()
    either.add_argument(
        "--dry-run",
        action="store_true",
        help="draw, price and judge the plan only; `apply` starts it",
    )
    offer_wait(either)
    _add_map_files(add)


def _add_map_files(add: Adder) -> None:
    group = add.group(
        "map", "work on expert-map files, without a controller", "eplbctl map validate map.json"
    )
    about = "check a file against every rule; never writes"
    for adder in (add, group):
        words = "map validate" if adder is group else "validate"
        _say_experts(adder("validate", maps.validate, about, f"eplbctl {words} map.json"))
    convert = group(
        "convert",
        maps.convert,
        "write a file's placement down in another engine's format",
        "eplbctl map convert map.json map.yaml --to tensorrt-llm",
    )
    _name_map(convert)
    convert.add_argument("out", type=Path, metavar="OUT", help="file to write")
    convert.add_argument("--to", choices=[str(f) for f in MapFormat], required=True)
    convert.add_argument(
        "--hidden-layers",
        type=small_number,
        metavar="N",
        help="layers of the model, dense ones too, for sglang (default: up to the last MoE layer)",
    )


def _say_experts(validate: ArgumentParser) -> None:
    _name_map(validate)
    validate.add_argument(
        "--experts",
        type=whole_number,
        metavar="N",
        help="experts of the model (default: as many as the highest id in the file says)",
    )


def _name_map(parser: ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="a placement in any known format")
    parser.add_argument(
        "--from",
        dest="form",
        choices=[str(f) for f in MapFormat],
        help="its format (default: what it looks like)",
    )
    parser.add_argument(
        "--ranks",
        type=small_number,
        metavar="N",
        help="ranks to deal its slots to; vllm-ascend's files name theirs, which must be as many",
    )


def add_contexts(add: Adder) -> None:
    """Add the verbs that keep controllers by name."""
    group = add.group(
        "context",
        "keep controllers by name",
        "eplbctl context set prod --endpoint eplb.prod:50051",
    )
    listed = group("list", context_verbs.list_all, "show all", "eplbctl context list")
    put = group(
        "set",
        context_verbs.put,
        "add one, or change it",
        "eplbctl context set prod --endpoint eplb.prod:50051 --deployment k3/a/decode/0/ep64",
    )
    use = group("use", context_verbs.use, "make one the default", "eplbctl context use prod")
    delete = group("delete", context_verbs.delete, "forget one", "eplbctl context delete prod")
    for parser in (put, use, delete):
        parser.add_argument("name", metavar="NAME")
    for parser in (listed, put, use, delete):
        parser.set_defaults(needs_controller=False)


def add_audit(add: Adder) -> None:
    """Add the verb that shows what operators did."""
    shown = add(
        "audit",
        audit.audit,
        "show who changed what, newest first, or check that nothing of it was tampered with",
        "eplbctl audit verify",
    )
    shown.add_argument(
        "action",
        nargs="?",
        choices=(audit.LIST, audit.VERIFY),
        default=audit.LIST,
        metavar="ACTION",
        help="list (default), or verify: check the chain of digests",
    )
    shown.add_argument(
        "--limit", type=small_number, default=20, metavar="N", help="most entries (default: 20)"
    )
    shown.add_argument(
        "--head", type=audit.head, metavar="HEAD", help="with verify: a head that was noted before"
    )


def add_completion(add: Adder, parser: Callable[[], ArgumentParser]) -> None:
    """Add the verb that prints a shell's completion of all that `parser` returns."""
    completion = add(
        "completion",
        completing.completion,
        "print a script that completes verbs and options in a shell",
        "eplbctl completion bash",
    )
    completion.add_argument("shell", choices=completing.SHELLS)
    completion.set_defaults(needs_controller=False, parser=parser)
