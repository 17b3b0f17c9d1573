"""Verbs that keep named controllers; they talk to none."""

from argparse import Namespace

from pydantic import ValidationError

from eplb_service.cli.client import Client
from eplb_service.cli.contexts import (
    Context,
    Contexts,
    contexts_file,
    read_contexts,
    write_contexts,
)
from eplb_service.cli.ends import Answer, invalid
from eplb_service.cli.keys import asked_keys
from eplb_service.cli.options import Options
from eplb_service.cli.plain import Plain
from eplb_service.cli.words import table


def list_all(client: Client, options: Options, args: Namespace) -> Answer:
    """Show all contexts."""
    del client, options, args
    kept = read_contexts()
    contexts: dict[str, Plain] = {
        name: {**context.told()} for name, context in kept.contexts.items()
    }
    tree: Plain = {
        "file": str(contexts_file()),
        "current": kept.current,
        "contexts": contexts,
    }
    if not kept.contexts:
        return Answer("no contexts; `eplbctl context set NAME --endpoint HOST:PORT` adds one", tree)
    rows = [
        ("*" if name == kept.current else "", name, context.endpoint, context.deployment or "-")
        for name, context in sorted(kept.contexts.items())
    ]
    return Answer(table(("", "context", "endpoint", "deployment"), rows), tree)


def put(client: Client, options: Options, args: Namespace) -> Answer:
    """Add a context, or change it; the first one becomes the current one."""
    del client
    kept = read_contexts()
    given = vars(args)
    before = kept.contexts.get(args.name)
    if "endpoint" not in given and before is None:
        raise invalid(f"context {args.name} is new; say where it is with --endpoint HOST:PORT")
    endpoint = given.get("endpoint") or (before.endpoint if before else options.endpoint)
    deployment = given.get("deployment", before.deployment if before else "")
    keys = {**(before.told() if before else {}), **asked_keys(given)}
    try:
        made = Contexts(
            current=kept.current or args.name,
            contexts={
                **kept.contexts,
                args.name: Context.model_validate(
                    {**keys, "endpoint": endpoint, "deployment": deployment}
                ),
            },
        )
    except ValidationError as error:
        raise invalid(
            f"{args.name!r} is no name; letters, digits, dot, dash and underscore make one"
        ) from error
    write_contexts(made)
    return Answer(f"context {args.name} is {endpoint}", {"context": args.name})


def use(client: Client, options: Options, args: Namespace) -> Answer:
    """Make a context the current one."""
    del client, options
    kept = read_contexts()
    kept.named(args.name)
    write_contexts(kept.model_copy(update={"current": args.name}))
    return Answer(f"commands now go to context {args.name}", {"context": args.name})


def delete(client: Client, options: Options, args: Namespace) -> Answer:
    """Forget a context."""
    del client, options
    kept = read_contexts()
    kept.named(args.name)
    others = {name: context for name, context in kept.contexts.items() if name != args.name}
    current = None if kept.current == args.name else kept.current
    write_contexts(Contexts(current=current, contexts=others))
    return Answer(f"context {args.name} is forgotten", {"context": args.name})
