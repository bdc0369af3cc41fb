"""What may people build upon from Python? ``public_api.txt`` pins it.

After a change on purpose:  python tests/architecture/test_public_api.py
"""

from __future__ import annotations

import inspect
from pathlib import Path

from tightrope import api

PINNED = Path(__file__).with_name("public_api.txt")


def api_lines() -> list[str]:
    lines = []
    for name in api.__all__:
        found = vars(api)[name]
        if inspect.isfunction(found):
            lines.append(f"{name}{inspect.signature(found)}")
        elif found.__module__ == api.__name__:
            members = {key: member for key, member in vars(found).items() if not key.startswith("_")}
            lines += [member_line(name, key, member) for key, member in sorted(members.items())]
        else:
            lines.append(name)
    return lines


def member_line(owner: str, name: str, member: object) -> str:
    if isinstance(member, property):
        assert member.fget is not None
        return f"{owner}.{name}: {inspect.signature(member.fget).return_annotation}"
    assert inspect.isfunction(member)
    return f"{owner}.{name}{inspect.signature(member)}"


def test_the_public_api_is_the_pinned_one():
    assert api_lines() == PINNED.read_text().splitlines()


def test_everything_public_says_what_it_does():
    assert not [name for name in api.__all__ if not vars(api)[name].__doc__]


if __name__ == "__main__":
    PINNED.write_text("\n".join(api_lines()) + "\n")
