"""TRL as a peer: SFT, DPO and GRPO on rows of text, from a folder that TRL was unpacked into.

TRL is pure Python. It imports `datasets`, pandas and pyarrow, which softq does not need; where they
are missing, a stand-in holds the rows in a list, which is all that these three trainers use of
them.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from typing import Any

from transformers.utils import is_datasets_available, is_pandas_available

PACKAGES = ("datasets", "pandas", "pyarrow")


class ListDataset:
    """Rows in a list, with the methods of `datasets.Dataset` that TRL calls."""

    format: Mapping[str, Any] = types.MappingProxyType({"type": None})

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.rows = [dict(row) for row in rows]

    @classmethod
    def from_list(cls, rows: Sequence[Mapping[str, Any]]) -> ListDataset:
        """A dataset of these rows."""
        return cls(rows)

    @property
    def column_names(self) -> list[str]:
        """Of the first row."""
        return list(self.rows[0]) if self.rows else []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]

    def __iter__(self) -> Any:
        return iter(self.rows)

    def map(
        self,
        function: Callable[..., Mapping[str, Any]],
        *,
        fn_kwargs: Mapping[str, Any] | None = None,
        remove_columns: Sequence[str] | str | None = None,
        batched: bool = False,
        **_: Any,
    ) -> ListDataset:
        """Each row with what the function returns for it."""
        if batched:
            raise NotImplementedError("batched map: unpack the package datasets beside trl")
        gone = {remove_columns} if isinstance(remove_columns, str) else {*(remove_columns or ())}
        return ListDataset(
            [
                {name: value for name, value in row.items() if name not in gone}
                | dict(function(dict(row), **(fn_kwargs or {})))
                for row in self.rows
            ]
        )

    def filter(self, function: Callable[..., bool], **_: Any) -> ListDataset:
        """The rows that a function is true of."""
        return ListDataset([row for row in self.rows if function(row)])

    def select_columns(self, names: Sequence[str] | str) -> ListDataset:
        """These columns alone."""
        kept = [names] if isinstance(names, str) else names
        return ListDataset([{name: row[name] for name in kept} for row in self.rows])


class _StandIn(types.ModuleType):
    """A module whose names are all there, as classes that nothing is an instance of."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


def _stand_in(name: str, **members: Any) -> None:
    module = _StandIn(name)
    module.__spec__ = ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    vars(module).update(members)
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)


@functools.cache
def load_trl(folder: str) -> types.ModuleType:
    """TRL from a folder (`pip download --no-deps trl`, unpacked), or as it is installed."""
    is_datasets_available(), is_pandas_available()  # remembered as they are, before the stand-ins
    if folder:
        sys.path.insert(0, folder)
    stands: dict[str, dict[str, Any]] = {
        "datasets": {"Dataset": ListDataset},
        "datasets.fingerprint": {},
        "pandas": {},
        "pyarrow": {},
        "pyarrow.compute": {},
        "pyarrow.types": {},
    }
    missing = {name for name in PACKAGES if importlib.util.find_spec(name) is None}
    for name, members in stands.items():
        if name.partition(".")[0] in missing:
            _stand_in(name, **members)
    trl = importlib.import_module("trl")
    base = importlib.import_module("trl.trainer.base_trainer")
    base._BaseTrainer._send_telemetry = lambda self: None  # a benchmark reports to nobody
    return trl


def dataset(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Rows as TRL takes them."""
    return sys.modules["datasets"].Dataset.from_list(list(rows))  # type: ignore[attr-defined]
