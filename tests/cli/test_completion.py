"""What a shell completes, asked of the shell itself."""

import shutil
import subprocess
from pathlib import Path

from tests.cli.conftest import Ctl


def test_bash_completes_verbs_and_options(ctl: Ctl, tmp_path: Path) -> None:
    ran = ctl("completion", "bash")
    assert (ran.code, ran.err) == (0, "")
    script = tmp_path / "eplbctl.bash"
    script.write_text(ran.out)
    ask = (
        f"source {script}; COMP_WORDS=(eplbctl {{words}}); COMP_CWORD={{at}}; "
        "$(complete -p eplbctl | sed 's/.*-F \\([^ ]*\\) .*/\\1/') eplbctl; echo ${{COMPREPLY[@]}}"
    )
    bash = shutil.which("bash")
    assert bash

    def completed(*words: str) -> list[str]:
        command = ask.format(words=" ".join(words), at=len(words))
        ended = subprocess.run(
            [bash, "--norc", "-c", command], capture_output=True, text=True, check=True
        )
        return ended.stdout.split()

    assert completed("roll") == ["rollback"]
    assert completed("config", "s") == ["set"]
    assert "--exit-code" in completed("plan", "--e")
    assert completed("map", "convert", "--to", "ten") == ["tensorrt-llm"]


def test_every_shell_gets_a_script(ctl: Ctl) -> None:
    for shell in ("zsh", "tcsh"):
        ran = ctl("completion", shell)
        assert (ran.code, "rebalance" in ran.out) == (0, True)
    assert ctl("completion", "csh").code == 2
