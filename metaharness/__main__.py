"""`python -m metaharness` is the command `metaharness`."""

import sys

from metaharness.cli import main

sys.exit(main())
