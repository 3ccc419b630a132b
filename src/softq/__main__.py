"""`python -m softq` is the command `softq`."""

from softq.cli import app

app(prog_name="softq")
