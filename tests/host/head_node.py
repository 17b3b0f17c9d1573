"""A Ray head, and the entries of deploy/ used on it as deploy/README.md says.

`python -m tests.host.head_node FOLDER JOB_LINE SERVE_LINE`, where only the loopback
interface exists; prints what every command and page answered, as JSON.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from http import HTTPStatus
from pathlib import Path
from time import monotonic, sleep
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

BIN = Path(sys.executable).parent
DASHBOARD = "http://127.0.0.1:8265"
PAGE = "http://127.0.0.1:8000/"
START_S = 90.0
COMMAND_S = 120.0
PAGE_S = 90.0
END_S = 30.0
LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Answer:
    """How a command ended, or what a page said (with its status as the code)."""

    code: int
    text: str
    complaint: str = ""


def main() -> int:
    """Walk through the entries; whatever fails is seen in what is printed."""
    folder, job_line, serve_line = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "RAY_USAGE_STATS_ENABLED": "0"}
    head = subprocess.Popen(
        [
            *(str(BIN / "ray"), "start", "--head", "--block", "--num-cpus=2"),
            *("--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", "--dashboard-port=8265"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=(folder / "head.log").open("wb"),
        stderr=subprocess.STDOUT,
        env=env,
    )
    try:
        await_page(f"{DASHBOARD}/api/version", HTTPStatus.OK, within_s=START_S)
        answers = walk(job_line, serve_line, env)
    finally:
        end(head)
    sys.stdout.write(json.dumps({name: asdict(answer) for name, answer in answers.items()}) + "\n")
    return 0


def end(head: subprocess.Popen[bytes]) -> None:
    """End it by its pid; Ray takes its time to end what it started."""
    head.terminate()
    try:
        head.wait(END_S)
    except subprocess.TimeoutExpired:
        head.kill()
        head.wait(END_S)


def walk(job_line: str, serve_line: str, env: Mapping[str, str]) -> Mapping[str, Answer]:
    """Use every entry once, in an order in which each must do its own work."""
    answers: dict[str, Answer] = {}
    answers["job"] = run(job_line, env)
    answers["job again"] = run(job_line, env)
    answers["status after job"] = run("eplbctl -o json status", env)
    answers["down after job"] = run("eplb-service down --address auto", env)
    answers["serve"] = run(serve_line, env)
    answers["page"] = await_page(PAGE, HTTPStatus.OK, within_s=PAGE_S)
    answers["status after serve"] = run("eplbctl -o json status", env)
    answers["down after serve"] = run("eplb-service down --address auto", env)
    answers["page without actor"] = await_page(
        PAGE, HTTPStatus.SERVICE_UNAVAILABLE, within_s=PAGE_S
    )
    return answers


def run(line: str, env: Mapping[str, str]) -> Answer:
    """Run a command line as a shell would."""
    done = subprocess.run(
        shlex.split(line),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=env,
        timeout=COMMAND_S,
        check=False,
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def await_page(url: str, status: HTTPStatus, *, within_s: float) -> Answer:
    """Ask again and again until the status comes; returns the last answer either way."""
    give_up_at = monotonic() + within_s
    while True:
        answer = look(url)
        if answer.code == status or monotonic() > give_up_at:
            return answer
        sleep(LOOK_S)


def look(url: str) -> Answer:
    """Ask once; 0 stands for no answer at all."""
    try:
        with urlopen(url, timeout=10) as page:
            return Answer(page.status, page.read().decode())
    except HTTPError as refused:
        return Answer(refused.code, refused.read().decode())
    except (URLError, OSError) as silent:
        return Answer(0, str(silent))


if __name__ == "__main__":
    sys.exit(main())
