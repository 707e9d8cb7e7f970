"""`python -m pac` is `pac`: what torchrun starts, `torchrun --nproc-per-node 8 -m pac train ...`."""

import sys

from pac.cli import main

if __name__ == "__main__":
    sys.exit(main())
