"""Damage model files at random and use them: ``python fuzz_files.py FOLDER SEED COUNT``, in a process of its own.

Whatever a file holds, it works or is refused by a `SoftqError` of one line. A crash ends the process, and so does a use that takes
longer than it may; what was last printed says which.
"""

import random
import signal
import sys
from pathlib import Path

from small_runs import single_thread
from softq.errors import SoftqError
from strange_files import change_notes, use

KINDS = ("tagger", "attributes", "parser", "classifier", "translator")
SECONDS = 10
ODD = (
    None,
    True,
    0,
    -1,
    1,
    7,
    10**6,
    10**30,
    1e300,
    float("nan"),
    float("inf"),
    "",
    "x",
    [],
    [[]],
    ["x"],
    {},
    {"a": 1},
)


def flip(path, draw):
    """Turn one bit of a file."""
    content = bytearray(path.read_bytes())
    place, bit = draw.randrange(len(content)), draw.randrange(8)
    content[place] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {place}"


def places_of(value, before=()):
    """All places in notes, in lists too."""
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, one in inside:
        yield (*before, key)
        yield from places_of(one, (*before, key))


def mutate(path, draw):
    """Put something odd in one place of the notes, or take it away."""
    told = []

    def change(notes):
        place = draw.choice(list(places_of(notes)))
        at = notes
        for key in place[:-1]:
            at = at[key]
        if draw.random() < 0.2:
            del at[place[-1]]
            told.append(f"no {place}")
        else:
            value = draw.choice(ODD)
            at[place[-1]] = value
            told.append(f"{value!r} at {place}")
        return notes

    tensor = draw.choice(("about", "source.about")) if path.name == "translator" else "about"
    change_notes(path, change, tensor)
    return f"{tensor}: {told[0]}"


def main(folder, seed, count):
    """Print what is done before it is done."""
    signal.signal(
        signal.SIGALRM, signal.SIG_DFL
    )  # which ends the process, in the midst of a kernel too
    whole = {kind: (folder / kind).read_bytes() for kind in KINDS}
    for kind in KINDS:
        use(kind, folder / kind)  # what has to be compiled is
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        kind = draw.choice(KINDS)
        path = folder / kind
        path.write_bytes(whole[kind])
        done = draw.choice((flip, flip, mutate))(path, draw)
        print(f"{number}: {kind}, {done}", flush=True)
        signal.alarm(SECONDS)
        try:
            use(kind, path)
        except SoftqError as error:
            if "\n" in str(error):
                raise
        signal.alarm(0)


if __name__ == "__main__":
    with single_thread():
        main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
