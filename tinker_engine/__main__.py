"""`python -m tinker_engine` is `tinker-engine`."""

import sys

from tinker_engine.cli import main

sys.exit(main())
