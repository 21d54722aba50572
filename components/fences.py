"""Fenced blocks of a Markdown text."""

import re
from typing import NamedTuple

_FENCE = re.compile(r"([ \t]*+)(`{3,}+|~{3,}+)[ \t]*+([^\s`]*+)[^`]*+")


class Block(NamedTuple):
    """code: the text inside; language: its tag in lower case; closed: it has an end."""

    code: str
    language: str
    closed: bool


def fenced_blocks(text: str) -> tuple[list[Block], str]:
    """The fenced blocks and the text before the first (all of it where there is none).

    As CommonMark 0.31 has them, but at any indentation (in lists), the indentation of
    the fence taken from its content, and with a closing fence of backticks also at the
    end of the last line of content. text: lines end in "\\n".
    """
    blocks: list[Block] = []
    lead: list[str] = []
    inside: list[str] = []
    margin = mark = language = ""
    for line in text.split("\n"):
        match = _FENCE.fullmatch(line)
        if not mark:
            if match:
                margin, mark, language = match[1], match[2], match[3].lower()
            elif not blocks:
                lead.append(line)
            continue
        line = line.removeprefix(margin)
        bare = line.strip()
        glued = mark[0] == "`" and bare.endswith(mark) and not match
        if glued:
            inside.append(line.rstrip()[: -len(mark)])
        if glued or (set(bare) == {mark[0]} and len(bare) >= len(mark)):
            blocks.append(Block("\n".join(inside), language, True))
            mark, inside = "", []
        else:
            inside.append(line)
    if mark:
        blocks.append(Block("\n".join(inside), language, False))
    return blocks, "\n".join(lead) if blocks else text
