"""Every expression of every dashboard has data in a real Prometheus.

It watches a real controller with real agents; test_alerts_fire.py has the alerts.
"""

import re
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from eplb.v1 import admin_pb2

from tests.host.processes import await_so
from tests.observe.dashboards import DASHBOARDS, RULES, dashboard, expressions
from tests.observe.house import CALL_S, House, house
from tests.observe.tools import Prometheus, hurried, prometheus, webhook
from tests.system.group import Group
from tests.system.rank import AGREE_EVERY, NUM_RANKS

pytestmark = [pytest.mark.slow, pytest.mark.processes]
VLLM = "\n".join(
    f'{name}_bucket{{le="{le}"}} {{count}}'
    for name in ("vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds")
    for le in ("0.1", "1.0", "+Inf")
)


class _Vllm(BaseHTTPRequestHandler):
    """Stands in for vLLM's exporter: its names, with counts that grow."""

    count = 0

    def do_GET(self) -> None:
        type(self).count += 5
        body = (VLLM.replace("{count}", str(type(self).count)) + "\n").encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@dataclass
class Site:
    """Everything that runs."""

    home: House
    prometheus: Prometheus
    group: Group
    """Real agents."""
    real: str
    """The name of their deployment."""

    def serve_and_move(self) -> None:
        """Serve, let a plan run to its end, and serve on: all that a minute's rates are of."""
        self.group.serve(120)
        self.home.apply(self.real, "random", "to have something to show")
        self.group.serve_until(
            lambda: self.home.status(self.real).operation.running.phase == "done",
            within_steps=4000,
            what="the plan is done",
        )
        self.group.serve(120)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Generator[Site]:
    folder = tmp_path_factory.mktemp("live")
    with ExitStack() as stack:
        protocol: dict[str, str | float | bool] = {"agree_every": AGREE_EVERY}
        planning: dict[str, str | float | bool] = {"deadline_s": 60.0}
        home = stack.enter_context(house(folder, planning=planning, protocol=protocol))
        vllm = ThreadingHTTPServer(("127.0.0.1", 0), _Vllm)
        Thread(target=vllm.serve_forever, daemon=True).start()
        stack.callback(vllm.server_close)
        stack.callback(vllm.shutdown)
        hook, _ = stack.enter_context(webhook())
        targets = {
            "home": ("/metrics", home.metrics_port),
            "experts": ("/metrics/experts", home.metrics_port),
            "vllm": ("/metrics", vllm.server_port),
        }
        rules = hurried(RULES.read_text())
        watching = stack.enter_context(prometheus(folder, targets, rules=rules, hook=hook))
        real = Group([home.endpoint] * NUM_RANKS)
        stack.callback(real.kill)
        (status,) = home.admin.Status(admin_pb2.StatusRequest(), timeout=CALL_S).deployments
        yield Site(home, watching, real, status.deployment)


def substituted(expr: str, deployment: str) -> str:
    """What Grafana would send."""
    return expr.replace("$__rate_interval", "60s").replace(
        "$deployment", re.escape(deployment).replace("\\", "\\\\")
    )


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_expression_of_every_dashboard_has_data(site: Site, name: str) -> None:
    missing = {
        (title, substituted(expr, site.real)) for title, expr in expressions(dashboard(name))
    }

    def is_complete() -> bool:
        site.group.serve(1)  # a rate needs something that goes on
        for title, expr in tuple(missing):
            if site.prometheus.query(expr):
                missing.discard((title, expr))
        return not missing

    site.serve_and_move()
    await_so(is_complete, within_s=60, what="data for every expression", lacking=missing)
