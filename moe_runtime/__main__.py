"""`python -m moe_runtime`: what the runtime can say of itself."""

import sys

from moe_runtime.runtime.capability_report import main

if __name__ == "__main__":
    sys.exit(main())
