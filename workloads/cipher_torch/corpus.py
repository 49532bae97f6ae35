"""The text: sentences made from a small grammar by the seed, so that nothing has to be downloaded.

    the old keeper of the light wrote a short letter to his sister in the winter

Twenty-six letters and the blank. Letter frequencies come out near those of English prose, which is what makes
frequency analysis a fair opponent.

Not here: ciphers and batches (ciphers.py).
"""

from __future__ import annotations

import hashlib
import random

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
BLANK = len(ALPHABET)
SYMBOLS = len(ALPHABET) + 1


def _words(text: str) -> list[str]:
    return text.split()


_PEOPLE = _words("""
keeper sailor miller doctor farmer teacher widow captain painter judge clerk baker soldier stranger queen
gardener hunter printer weaver merchant scholar pilot nurse engineer shepherd
""")
_THINGS = _words("""
letter lantern boat map clock garden bridge window kettle ladder fiddle basket blanket compass mirror notebook
candle hammer barrel wagon telescope jacket violin quilt journal parcel box
""")
_PLACES = _words("""
harbour market valley kitchen forest station village cellar meadow library tower orchard river mountain island
chapel workshop crossing field quarry exchange
""")
_QUALITIES = _words("""
old young small heavy quiet broken yellow empty bright strange narrow wooden patient careful frozen gentle
curious grey hollow proud quick simple weary modest
""")
_DEEDS = _words("""
carried found sold repaired remembered watched painted hid opened measured borrowed described followed kept lost
examined wrapped left bought forgot judged mixed
""")
_TIMES = [
    "before the storm",
    "in the winter",
    "after supper",
    "at first light",
    "on the last day of june",
    "during the long war",
    "every second week",
    "when the bells rang",
    "without a word",
    "just as the train was leaving",
    "for the first time",
    "while it was raining",
    "in exchange for some bread",
    "until the candles were out",
]
_JOINTS = ("and", "but", "because", "so", "while", "although")


def sentences(count: int, seed: int) -> list[str]:
    """Make `count` sentences of lower-case letters and blanks, the same for the same seed."""
    draw = random.Random(f"corpus/{seed}")  # noqa: S311 - text, not a secret
    return [_sentence(draw) for _ in range(count)]


def digest(lines: list[str]) -> str:
    """The SHA-256 of a corpus: it is part of a run's identity."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def letters(text: str) -> list[int]:
    """0..25 for the letters, 26 for a blank."""
    return [BLANK if symbol == " " else ALPHABET.index(symbol) for symbol in text]


def _sentence(draw: random.Random) -> str:
    text = _clause(draw)
    if draw.random() < 0.4:
        text += f" {draw.choice(_JOINTS)} {_clause(draw)}"
    return text


def _clause(draw: random.Random) -> str:
    who = _noun(draw, _PEOPLE)
    if draw.random() < 0.3:
        who += f" of the {draw.choice(_PLACES)}"
    text = f"{who} {draw.choice(_DEEDS)} {_noun(draw, _THINGS)}"
    if draw.random() < 0.5:
        text += f" {draw.choice(('in', 'near', 'behind', 'beyond', 'outside'))} the {draw.choice(_PLACES)}"
    return f"{text} {draw.choice(_TIMES)}" if draw.random() < 0.6 else text


def _noun(draw: random.Random, words: list[str]) -> str:
    article = draw.choice(("the", "the", "his", "her", "their", "this"))
    quality = f"{draw.choice(_QUALITIES)} " if draw.random() < 0.5 else ""
    return f"{article} {quality}{draw.choice(words)}"
