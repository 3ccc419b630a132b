"""What the examples of docs/migration.md need.

The packages they compare with, which neither softq nor its tests ask for.
"""

import importlib.util
import sys
import types

import pytest

collect_ignore = ["conftest.py"]  # it has no examples, and the tests have a module of the same name
PAGE = "migration.md"
PEERS = {
    "sklearn_crfsuite": "sklearn-crfsuite",
    "supar": "supar",
    "torch_struct": "torch-struct",
    "torchcrf": "pytorch-crf",
}
PEER_WARNINGS = (  # each is about code of a peer that newer versions of torch put up with for now
    "ignore:.*does not define `arg_constraints`:UserWarning:torch_struct",
    "ignore:Using a non-tuple sequence for multidimensional indexing:UserWarning:supar",
)


def pytest_collection_modifyitems(items):
    """Skip the page where a peer is missing, and let the peers warn."""
    missing = [
        package for module, package in PEERS.items() if importlib.util.find_spec(module) is None
    ]
    for item in items:
        if item.path.name != PAGE:
            continue
        if missing:
            item.add_marker(
                pytest.mark.skip(
                    reason=(
                        f"compares with {', '.join(missing)}: pip install --no-deps"
                        f" {' '.join(missing)}"
                    )
                )
            )
        for rule in PEER_WARNINGS:
            item.add_marker(pytest.mark.filterwarnings(rule))


@pytest.fixture(autouse=True)
def supar_without_its_parsers(request):
    """SuPar's structures alone.

    Its parsers, which ``import supar`` loads as well, ask for much that the structures do not use.
    """
    spec = importlib.util.find_spec("supar") if request.path.name == PAGE else None
    if spec is None:
        yield
        return
    root = spec.submodule_search_locations[0]
    with pytest.MonkeyPatch.context() as patch:
        for name, path in (("supar", root), ("supar.utils", f"{root}/utils")):
            package = types.ModuleType(name)
            package.__path__ = [path]
            patch.setitem(sys.modules, name, package)
        yield
    for name in [name for name in sys.modules if name.startswith("supar.")]:
        del sys.modules[name]
