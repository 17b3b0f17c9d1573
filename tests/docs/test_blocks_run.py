"""Every code block of README and docs is run as it stands, or is listed here as one that is not."""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import numpy as np
import pytest
import yaml

from eplb_service.domain.ids import FloatArray
from eplb_service.settings.sources import load_settings
from tests.docs.blocks import NEEDS, ROOT, Block, blocks_of, pages, unfenced
from tests.host.processes import await_so
from tests.observe.house import House, flat, house, skewed_heat
from tests.observe.scripted import TURN_S, ScriptedGroup

ALL = [block for page in pages() for block in blocks_of(page)]
KINDS = {"sh", "console", "yaml", "python", "text"}
NOT_RUN: Mapping[str, Mapping[str, int]] = {
    "README.md": {"minutes": 2, "venv": 1, "stays": 2},
    "deploy/README.md": {"cluster": 3, "stays": 1},
    "docs/install.md": {"docker": 1, "cluster": 4},
    "docs/placement.md": {"minutes": 1},
    "docs/quickstart.md": {"minutes": 1, "stays": 2},
    "docs/upgrade.md": {"cluster": 2},
    "docs/vllm.md": {"venv": 1, "stays": 1, "vllm": 1},
}
"""How many blocks of each page are not run, by what they need."""
ELSEWHERE = {"docs/security.md": "tests/docs/test_security_steps.py"}
"""Pages whose steps another test runs."""
RUN = sorted({b.page for b in ALL if b.kind in {"sh", "console"} and not b.need} - set(ELSEWHERE))
"""Pages with something to run."""
PLACEMENT = flat(layers=3, experts=64, ranks=8, slots=10)
BLOCK_S = 120.0
SHORTER = (
    (
        re.compile(r"(eplbctl record start (\S+)[^\n#;]*)"),
        r"rm -f \2; \1 --every 0.2s --for 2s ",
    ),
    (re.compile(r"(eplbctl (?:top|watch)\b[^\n#;]*)"), r"\1 --count 1 "),
)
"""What a reader stops by hand."""
ID = re.compile(r"\b[0-9a-f]{8}\b")


@dataclass
class Stage:
    """A controller with one deployment, and a reader's folder."""

    home: House
    group: ScriptedGroup
    folder: Path
    environment: Mapping[str, str]
    ids: dict[str, str] = field(default_factory=dict[str, str])
    """The id of a plan here, by the one that a page shows."""
    last: str = ""
    """Id of the plan that was drawn last."""
    heat: FloatArray = field(default_factory=lambda: skewed_heat(PLACEMENT))
    """[L, E] what the load is like; it is never quite the same."""
    noise: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def turn_over(self) -> None:
        """Let other experts be hot, so that each page finds something to do."""
        self.heat = np.roll(self.heat, 7, axis=1)
        self.group.heat = self.heat
        assert self.run("eplbctl unfreeze").returncode == 0

        def is_uneven() -> bool:
            return self.home.status(self.group.name).imbalance.mean > 1.1

        await_so(is_uneven, within_s=60, what="an imbalance")

    def run(self, text: str) -> "subprocess.CompletedProcess[str]":
        """Run commands in the reader's folder, in a shell that ends where one fails."""
        for pattern, shorter in SHORTER:
            text = pattern.sub(shorter, text)
        text = text.replace("HOST:PORT", self.home.endpoint)
        text = re.sub(r"\bPLAN\b", self.last, text)
        running = subprocess.Popen(
            ["sh", "-eu", "-c", text],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        give_up_at = monotonic() + BLOCK_S
        while True:
            self.group.heat = self.heat * self.noise.uniform(0.98, 1.02, self.heat.shape)
            with suppress(subprocess.TimeoutExpired):
                out, err = running.communicate(timeout=TURN_S)
                break
            if monotonic() > give_up_at:
                running.kill()
        done = subprocess.CompletedProcess(text, running.returncode, out, err)
        if drawn := re.search(r"^plan ([0-9a-f]{8}) ", done.stdout, re.MULTILINE):
            self.last = drawn.group(1)
        return done

    def say_again(self, command: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of a transcript, with the ids that its plans have here."""
        return self.run(ID.sub(lambda shown: self.ids.get(shown.group(), shown.group()), command))

    def has_drawn(self, shown: str, text: str) -> None:
        """Remember which plan of a transcript the last one here is."""
        if drawn := re.search(r"^plan ([0-9a-f]{8}) ", shown, re.MULTILINE):
            here = re.search(r"^plan ([0-9a-f]{8}) ", text, re.MULTILINE)
            assert here, f"a plan was to be shown: {text}"
            self.ids[drawn.group(1)] = here.group(1)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Generator[Stage]:
    folder = tmp_path_factory.mktemp("reader")
    with house(tmp_path_factory.mktemp("house")) as home:
        group = home.serve("demo", PLACEMENT, skewed_heat(PLACEMENT))
        for name in ("deploy", "benchmarks"):
            (folder / name).symlink_to(ROOT / name)
        shutil.copy(ROOT / "benchmarks" / "data" / "olmoe_expert_counts.npz", folder / "counts.npz")
        own = {k: v for k, v in os.environ.items() if not k.startswith("EPLB_")}
        environment = {
            **own,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "EPLB_ENDPOINT": home.endpoint,
            "EPLB_CONTEXTS": str(folder / "contexts.toml"),
            "COLUMNS": "100",
        }
        await_so(lambda: home.has_window(group.name), within_s=60, what="a load window")
        on_stage = Stage(home, group, folder, environment)
        recorded = on_stage.run("eplbctl record start recorded.npz")
        assert recorded.returncode == 0, recorded.stderr
        yield on_stage


def transcript(text: str) -> list[tuple[str, str]]:
    """The commands of a transcript, each with what is shown below it."""
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return [(part.partition("\n")[0], part.partition("\n")[2].strip()) for part in parts]


def labels(text: str) -> set[str]:
    """First words of lines, as far as they are labels and no figures."""
    return set(re.findall(r"^([a-z][a-z-]+)(?: {2,}| [0-9a-f]{8} )", text, re.MULTILINE))


def test_every_block_says_what_it_is() -> None:
    assert not [str(block) for block in ALL if block.kind not in KINDS]
    assert not [
        str(b) for b in ALL if b.kind in {"sh", "console"} and b.mark and b.need not in NEEDS
    ]
    assert not {page.name: found for page in pages() if (found := unfenced(page))}


def test_what_is_not_run_is_listed() -> None:
    found: dict[str, Counter[str]] = {}
    for block in ALL:
        if block.need:
            found.setdefault(block.page, Counter())[block.need] += 1
    assert found == {page: Counter(needs) for page, needs in NOT_RUN.items()}


@pytest.mark.parametrize("block", [b for b in ALL if b.need == "minutes"], ids=str)
def test_every_target_of_make_is_there(block: Block) -> None:
    """Those that take minutes are not made, only looked for."""
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"^make ([a-z-]+)", block.text, re.MULTILINE)
    assert named
    assert set(named) <= known


@pytest.mark.parametrize("block", [b for b in ALL if b.kind == "yaml"], ids=str)
def test_settings_are_settings(block: Block, tmp_path: Path) -> None:
    if block.mark or block.page in ELSEWHERE:
        assert yaml.safe_load(block.text)
        return
    config = tmp_path / "settings.yaml"
    config.write_text(block.text)
    load_settings(config)


@pytest.mark.parametrize("block", [b for b in ALL if b.kind == "python"], ids=str)
def test_python_compiles_and_finds_what_it_imports(block: Block) -> None:
    compile(block.text, str(block), "exec")
    imports = [line for line in block.text.splitlines() if line.startswith(("import ", "from "))]
    assert imports
    exec("\n".join(imports), {})  # noqa: S102 - our own page


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", RUN)
def test_the_commands_of_a_page_do_as_it_says(stage: Stage, page: str) -> None:
    stage.turn_over()
    for block in (b for b in ALL if b.page == page and not b.need):
        if block.kind == "sh":
            done = stage.run(block.text)
            assert done.returncode == 0, f"{block}: {done.stdout}{done.stderr}"
        if block.kind == "console":
            for command, shown in transcript(block.text):
                done = stage.say_again(command)
                said = done.stdout + done.stderr
                is_refusal = shown.startswith("refused: ")
                assert done.returncode == (3 if is_refusal else 0), f"{block}: {command}: {said}"
                stage.has_drawn(shown, done.stdout)
                missing = labels(shown) - labels(said)
                assert not missing, f"{block}: {command}: {missing} are not in {said}"
