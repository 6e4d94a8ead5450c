"""`python -m benchmarks.gpu MODULE:FUNCTION`: see `part`, whose exceptions must be the ones that parts raise."""

import sys

from benchmarks.gpu.part import main

if __name__ == "__main__":
    sys.exit(main())
