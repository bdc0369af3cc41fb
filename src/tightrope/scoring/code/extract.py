"""Which part of a response is the code?"""

from __future__ import annotations

import re

FENCE = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)(?:^[ \t]*```[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)


def code_of(response: str) -> str:
    """The last fenced block, closed or cut off; without one, the whole response.

    >>> code_of("So:\\n```python\\nx = 1\\n```\\nDone.")
    'x = 1\\n'
    >>> code_of("x = 2")
    'x = 2'
    """
    blocks = FENCE.findall(response)
    return blocks[-1] if blocks else response
