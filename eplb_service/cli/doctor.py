"""Is everything well? Looks from outside at the controller, its clock, metrics and deployments."""

import io
import re
import tarfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from importlib.metadata import version as installed
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from eplb.v1 import admin_pb2 as pb

from eplb_service.cli.checks import Finding, Level, check, clock, version
from eplb_service.cli.client import Client
from eplb_service.cli.ends import Answer, Exit, Failure
from eplb_service.cli.files import write_whole
from eplb_service.cli.options import Options
from eplb_service.cli.plain import Plain, as_json, plain
from eplb_service.cli.show_status import show_refusals
from eplb_service.cli.words import count, table
from eplb_service.controller.views import StatusView
from eplb_service.server.admin_wire.plans import decode_history
from eplb_service.server.admin_wire.status import decode_heat, decode_refusal, decode_status

PACKAGE = "eplb-control-plane"
METRICS_PORT = 9464
ANSWER_S = 5.0
MOST_METRICS = 16 << 20
HISTORY = 1000
VERSION = re.compile(r'^eplb_build_info\{[^}]*version="([^"]*)"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Scrape:
    """One look at the metrics."""

    text: str
    date: str
    """The Date header; empty without one."""
    ours_s: float
    """Unix time here when it came."""


def doctor(client: Client, options: Options, args: Namespace) -> Answer:
    """Look at everything, and say what is wrong with what to do."""
    findings: list[Finding] = []
    files: dict[str, str] = {}
    views = _statuses(client, options, findings)
    where: str = args.metrics or f"{client.endpoint.rpartition(':')[0]}:{METRICS_PORT}"
    scrape = _scrape(where, findings)
    if scrape is not None:
        files["metrics.txt"] = scrape.text
        findings += _from_metrics(scrape)
    rows = [("controller", finding) for finding in findings]
    for view in views:
        rows += [(view.deployment, finding) for finding in check(view)]
    wrong = [finding for _, finding in rows if finding.level is Level.WRONG]
    tree: Plain = {
        "is_well": not wrong,
        "findings": [{"about": about, **_facts(finding)} for about, finding in rows],
    }
    shown = _shown(rows)
    if args.bundle is not None:
        files |= {"doctor.json": as_json(tree), "status.json": as_json(plain(views))}
        for view in views:
            files |= _answers(client, view.deployment)
        write_whole(args.bundle, _packed(files))
        shown += f"\n\n{count(len(files), 'file')} packed into {args.bundle}"
    if not wrong:
        return Answer(shown, tree)
    complaint = f"failed: {count(len(wrong), 'thing')} wrong; the list says what to do"
    return Answer(shown, tree, Exit.FAILED, complaint)


def _statuses(client: Client, options: Options, findings: list[Finding]) -> tuple[StatusView, ...]:
    try:
        request = pb.StatusRequest(deployment=options.deployment)
        response = client.ask(client.stub.Status, request)
    except Failure as failure:
        advice = "start it, name another with --endpoint, or look at its log"
        findings.append(Finding("connection", Level.WRONG, str(failure), advice))
        return ()
    findings.append(Finding("connection", Level.OK, f"{client.endpoint} answers"))
    found, refused = response.deployments, tuple(map(decode_refusal, response.refused))
    findings += [
        Finding("refused", Level.WRONG, told, "what a rank is started with must fit its deployment")
        for told in show_refusals(refused)
    ]
    if not found and not refused:
        text = "none is registered; one appears when its first rank connects"
        advice = "start the agents, or look at their logs"
        findings.append(Finding("deployments", Level.WRONG, text, advice))
    return tuple(decode_status(message) for message in found)


def _scrape(where: str, findings: list[Finding]) -> Scrape | None:
    """Ask for /metrics, without the proxies that pages of the web may need."""
    url = f"http://{where}/metrics"
    try:
        with build_opener(ProxyHandler({})).open(url, timeout=ANSWER_S) as answer:
            text = answer.read(MOST_METRICS).decode(errors="replace")
            date = answer.headers.get("Date", "")
    except (URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        findings.append(
            Finding(
                "metrics",
                Level.WRONG,
                f"{url} does not answer: {reason}",
                "server.metrics_host and server.metrics_port say where they are; name the place "
                "with --metrics HOST:PORT",
            )
        )
        return None
    findings.append(Finding("metrics", Level.OK, f"{url} answers"))
    return Scrape(text, date, time.time())


def _from_metrics(scrape: Scrape) -> Iterator[Finding]:
    told = VERSION.search(scrape.text)
    if told is None:
        text = "these metrics tell no version: they are not a controller's"
        yield Finding("version", Level.WRONG, text, "name the right place with --metrics HOST:PORT")
    else:
        yield version(told.group(1), installed(PACKAGE))
    try:
        theirs_s = parsedate_to_datetime(scrape.date).timestamp()
    except ValueError:
        yield Finding("clock", Level.NOTE, "the controller did not tell its time")
    else:
        yield clock(theirs_s, scrape.ours_s)


def _answers(client: Client, deployment: str) -> Mapping[str, str]:
    """What the controller says of one deployment; where it fails, its words."""
    stub = client.stub
    heat = pb.HeatRequest(deployment=deployment)
    history = pb.HistoryRequest(deployment=deployment, limit=HISTORY)
    config = pb.GetConfigRequest(deployment=deployment)
    asked: Mapping[str, Callable[[], Plain]] = {
        "heat": lambda: plain(decode_heat(client.ask(stub.Heat, heat))),
        "history": lambda: plain(decode_history(client.ask(stub.History, history))),
        "config": lambda: plain(dict(client.ask(stub.GetConfig, config).values)),
    }
    folder = re.sub(r"[^A-Za-z0-9_.-]", "_", deployment)
    found: dict[str, str] = {}
    for name, ask in asked.items():
        try:
            found[f"{folder}/{name}.json"] = as_json(ask())
        except Failure as failure:
            found[f"{folder}/{name}.failed.txt"] = f"{failure}\n"
    return found


def _packed(files: Mapping[str, str]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as packed:
        for name, text in sorted(files.items()):
            data = text.encode()
            member = tarfile.TarInfo(f"eplb-bundle/{name}")
            member.size, member.mtime, member.mode = len(data), int(time.time()), 0o644
            packed.addfile(member, io.BytesIO(data))
    return held.getvalue()


def _facts(finding: Finding) -> dict[str, Plain]:
    return {
        "what": finding.what,
        "level": str(finding.level),
        "text": finding.text,
        "advice": finding.advice or None,
    }


def _shown(rows: list[tuple[str, Finding]]) -> str:
    parts: list[str] = []
    for about in dict.fromkeys(about for about, _ in rows):
        own = [finding for of, finding in rows if of == about]
        lines: list[tuple[str, ...]] = []
        for finding in own:
            lines.append((str(finding.level), finding.what, finding.text))
            if finding.advice:
                lines.append(("", "", f"-> {finding.advice}"))
        parts.append(table((about, "", ""), lines))
    return "\n\n".join(parts)
