"""The `like` pattern: `%` is any run of characters, `_` is one character, the escape character makes the next one literal.

The pattern is cut at each `%`. The first piece must begin the text, the last must end it, and each piece between is looked
for behind the one before, at its leftmost place: if any placement fits, the leftmost does. So a test costs at most
O(text x pattern), where a regular expression with as many `.*` could need a power of the text's length.
"""

from __future__ import annotations

from collections.abc import Callable

# One piece: its characters, None where any one character stands.
_Piece = tuple[str | None, ...]


def compile_like(pattern: str, escape: str | None) -> Callable[[str], bool]:
    """A test for the pattern. ValueError if the escape character is followed by nothing or by an ordinary character."""
    pieces = _pieces(pattern, escape)
    if len(pieces) == 1:
        whole = pieces[0]
        if None not in whole:
            literal = _literal(whole)
            return lambda text: text == literal
        return lambda text: len(text) == len(whole) and _fits(whole, text, 0)
    first, *middle, last = pieces
    finders = [_finder(piece) for piece in middle if piece]
    least_chars = sum(len(piece) for piece in pieces)

    def matches(text: str) -> bool:
        if len(text) < least_chars or not _fits(first, text, 0):
            return False
        end = len(text) - len(last)
        if not _fits(last, text, end):
            return False
        position = len(first)
        for find in finders:
            position = find(text, position, end)
            if position < 0:
                return False
        return True

    return matches


def _pieces(pattern: str, escape: str | None) -> list[_Piece]:
    pieces: list[list[str | None]] = [[]]
    chars = iter(pattern)
    for char in chars:
        if char == escape:
            literal = next(chars, None)
            if literal is None or literal not in ("%", "_", escape):
                raise ValueError(f"the escape character {escape!r} must precede %, _ or itself")
            pieces[-1].append(literal)
        elif char == "%":
            pieces.append([])
        else:
            pieces[-1].append(None if char == "_" else char)
    return [tuple(piece) for piece in pieces]


def _literal(piece: _Piece) -> str:
    return "".join(char for char in piece if char is not None)


def _fits(piece: _Piece, text: str, start: int) -> bool:
    return all(char is None or char == text[start + index] for index, char in enumerate(piece))


def _finder(piece: _Piece) -> Callable[[str, int, int], int]:
    """A function from (text, start, end) to where the leftmost fit ends, or -1."""
    size = len(piece)
    if None not in piece:
        literal = _literal(piece)

        def find_literal(text: str, start: int, end: int) -> int:
            found = text.find(literal, start, end)
            return found if found < 0 else found + size

        return find_literal

    def find(text: str, start: int, end: int) -> int:
        for begin in range(start, end - size + 1):
            if _fits(piece, text, begin):
                return begin + size
        return -1

    return find
