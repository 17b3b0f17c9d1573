"""The door of eplbctl: an interrupt while the rest is still being loaded leaves no trace."""

import sys


def main() -> int:
    """Run one command of the process's own command line and return its exit code."""
    try:
        from eplb_service.cli.main import main as run  # noqa: PLC0415 -- what may be interrupted
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; nothing was done\n")
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
