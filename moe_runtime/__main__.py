"""`python -m moe_runtime`: what the runtime can say of itself."""

import sys

from moe_runtime.runtime.capability_report import main

if __name__ == "__main__":
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone, so that nobody is left to tell
        code = 1
    sys.exit(code)
