"""The door of eplbctl: an interrupt while the rest is still being loaded leaves no trace."""

import os
import sys

STREAMS = 3


def main() -> int:
    """Run one command of the process's own command line and return its exit code."""
    _fill_closed_streams()
    # What gRPC logs is for its makers, and it reads this when it is loaded.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from eplb_service.cli.main import main as run  # noqa: PLC0415 -- what may be interrupted
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; nothing was done\n")
        return 130
    return run()


def _fill_closed_streams() -> None:
    """Let no connection get the number of a stream that was closed, and no complaint be lost."""
    for number in range(STREAMS):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is this one
    if sys.stderr is None:  # so it is with 2>&-
        sys.stderr = os.fdopen(2, "w", closefd=False)


if __name__ == "__main__":
    sys.exit(main())
