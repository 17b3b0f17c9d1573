"""What a soak attacks: ranks, their ways, a controller on Ray, and a store on a disk of its own."""

import subprocess
from pathlib import Path

from tests.soak.ledger import Ledger
from tests.system.controller import ControllerProcess
from tests.system.rank import NUM_RANKS
from tests.system.world import World

HOSTS = tuple(f"127.0.0.{10 + rank}" for rank in range(NUM_RANKS))
"""Each rank's way has an address of its own, so that the kernel can drop one rank's packets."""
DISK_MB = 16
COMMAND_S = 10.0


class House:
    """One world, and the disk under its store. Use `close` at its end."""

    def __init__(self, folder: Path, ledger: Ledger) -> None:
        self.ledger = ledger
        self.disk = folder / "disk"
        self.num_controllers = 1
        self._folder = folder
        self.disk.mkdir()
        run("mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "eplb-soak", str(self.disk))
        try:
            self.world = World(folder, "up", store=self.disk / "eplb.db", hosts=HOSTS)
        except BaseException:
            run("umount", "--lazy", str(self.disk))
            raise

    def successor(self) -> ControllerProcess:
        """Return a further controller over the same store; its process is not started."""
        self.num_controllers += 1
        folder = self._folder / f"controller-{self.num_controllers}"
        folder.mkdir()
        return ControllerProcess(folder, "up", store=self.world.controller.store)

    def replace_group(self) -> None:
        """Start the engine anew after its ranks have died."""
        self.world.ranks.kill()
        self.ledger.close_group(self.world.ranks)
        self.world.start_ranks()

    def close(self) -> None:
        """End every process, and take the disk away."""
        self.ledger.close_group(self.world.ranks)
        self.world.close()
        run("umount", "--lazy", str(self.disk))


def run(*command: str) -> None:
    """Run a command of the system; raises CalledProcessError, after its own words on stderr."""
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True, timeout=COMMAND_S)
