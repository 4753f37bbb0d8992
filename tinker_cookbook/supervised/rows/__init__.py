"""Data as people have it: files, folders and Hugging Face data sets, in the formats that are about.

rows = open_rows("my.jsonl")
examples = Examples(rows, train_on_what=TrainOnWhat.ALL_ASSISTANT_MESSAGES)   # every row is checked
examples[0]   # a conversation, or text
"""

from tinker_cookbook.supervised.rows.examples import Examples, OnBadRow
from tinker_cookbook.supervised.rows.files import open_rows
from tinker_cookbook.supervised.rows.formats import Example
from tinker_cookbook.supervised.rows.source import JoinedRows, Row, Rows

__all__ = ["Example", "Examples", "JoinedRows", "OnBadRow", "Row", "Rows", "open_rows"]
