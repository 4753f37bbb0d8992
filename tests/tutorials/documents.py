"""The code of a page as something to run: files to write, commands to type, and one Python script.

```python file=my_env.py     is written to that file
```sh                        is run by bash, in order
```python                    are, together, one script that is run after the commands
<!-- not run: needs ... -->  before a block: it is left out
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<why>.+?) -->\n+)?^```(?P<language>\w+)(?: file=(?P<file>\S+))?\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass
class Page:
    files: dict[str, str] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    script: str = ""
    not_run: list[str] = field(default_factory=list)  # why


def read_page(path: Path) -> Page:
    page = Page()
    for block in BLOCK.finditer(path.read_text(encoding="utf-8")):
        if block["why"]:
            page.not_run.append(block["why"])
        elif block["file"]:
            page.files[block["file"]] = block["code"]
        elif block["language"] == "sh":
            page.commands.append(block["code"])
        elif block["language"] == "python":
            page.script += block["code"]
    return page
