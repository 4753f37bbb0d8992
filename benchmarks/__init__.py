"""Figures that the documents quote. Each script writes its results, with the command, to `results/`."""

import tinker_engine as _first  # noqa: F401  how threads wait is settled before torch loads, which `import tinker` does, too
