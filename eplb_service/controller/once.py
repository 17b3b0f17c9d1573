"""Under one request id a verb acts once, however often it is told."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import TypeVar, cast

from eplb_service.controller.deployment import Answered, Deployment
from eplb_service.controller.desk import ActRequest
from eplb_service.controller.views import NothingView, PlanView, RunView, StatusView
from eplb_service.domain.errors import InvalidRequest

T = TypeVar("T", PlanView | NothingView, RunView, StatusView, Mapping[str, str])

NUM_REQUESTS = 256
"""Ids that a deployment remembers."""


async def once(
    deployment: Deployment, act: ActRequest, what: str, work: Callable[[], Coroutine[None, None, T]]
) -> T:
    """Act once per request id: the same id again gets the same answer.

    what    verb, then what it was asked for, so that an id is not used twice

    A request that failed is forgotten, so that it can be tried again.
    """
    if not act.request_id:
        return await work()
    answers = deployment.answers
    found = answers.get(act.request_id)
    if found is None:
        found = Answered(what, asyncio.create_task(work()))
        answers[act.request_id] = found
        while len(answers) > NUM_REQUESTS:
            answers.popitem(last=False)
    elif found.what != what:
        raise _used_before(act.request_id, before=found.what, now=what)
    try:
        return await asyncio.shield(cast("asyncio.Task[T]", found.task))
    except Exception:
        if answers.get(act.request_id) is found:
            del answers[act.request_id]
        raise


def _used_before(request_id: str, *, before: str, now: str) -> InvalidRequest:
    verb, wanted = before.partition(" ")[0], now.partition(" ")[0]
    was = f"another {verb}" if verb == wanted else f"{_a(verb)}, and this is {_a(wanted)}"
    return InvalidRequest(
        f"request {request_id} was {was}; an id acts once, so nothing was done: use a fresh one"
    )


def _a(verb: str) -> str:
    return f"an {verb}" if verb[0] in "aeiou" else f"a {verb}"
