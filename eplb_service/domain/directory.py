"""Which controller each deployment belongs to, where there are several. Pure."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from eplb_service.domain.errors import Elsewhere


@dataclass(frozen=True, slots=True)
class Directory:
    """The same entries for all controllers, and which of them this one is."""

    mine: str = ""
    """This controller's endpoint, as entries have it."""
    entries: tuple[tuple[str, str], ...] = ()
    """Pattern of deployments' names, and the endpoint of their controller; the first that fits
    decides. What fits none is served wherever it comes."""

    def require_mine(self, deployment: str) -> None:
        """Raise Elsewhere for another controller's deployment.

        >>> Directory("a:1", (("k3/*", "a:1"), ("*", "b:1"))).require_mine("k3/0/serve/0/0")
        """
        for pattern, endpoint in self.entries:
            if fnmatchcase(deployment, pattern):
                if endpoint != self.mine:
                    raise Elsewhere(
                        f"deployment {deployment} belongs to the controller at {endpoint} "
                        f"(the directory's entry {pattern}); nothing was done, ask there",
                        endpoint=endpoint,
                    )
                return

    def is_mine(self, deployment: str) -> bool:
        """Whether a deployment may be served here."""
        try:
            self.require_mine(deployment)
        except Elsewhere:
            return False
        return True
