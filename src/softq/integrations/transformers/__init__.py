"""Fine-tune 🤗 Transformers models toward a reward.

`RewardAugmentedTrainer` is a `transformers.Trainer` for ML, RAML and SQDML with models that generate
text; `distill` makes rows of a model's own samples for it; `TokenClassificationTrainer` is one for
taggers of words, and `DependencyTrainer` for parsers.

Needs ``pip install 'softq[transformers]'``.
"""

from softq.errors import DependencyError

try:
    import transformers as _transformers  # noqa: F401
except ImportError as error:
    raise DependencyError(
        "softq.integrations.transformers needs Transformers: pip install 'softq[transformers]'"
    ) from error

from softq.integrations.transformers.arguments import RewardAugmentedArguments
from softq.integrations.transformers.completion_rewards import RewardModel
from softq.integrations.transformers.dependency_parsing import (
    DependencyArguments,
    DependencyModel,
    DependencyTrainer,
    TreePredictor,
)
from softq.integrations.transformers.distillation import distill, distill_to
from softq.integrations.transformers.rewards import OnText
from softq.integrations.transformers.row_encoder import RowEncoder
from softq.integrations.transformers.token_classification import (
    TokenClassificationArguments,
    TokenClassificationModel,
    TokenClassificationTrainer,
    WordTagger,
)
from softq.integrations.transformers.trainer import RewardAugmentedTrainer

__all__ = [
    "DependencyArguments",
    "DependencyModel",
    "DependencyTrainer",
    "OnText",
    "RewardAugmentedArguments",
    "RewardAugmentedTrainer",
    "RewardModel",
    "RowEncoder",
    "TokenClassificationArguments",
    "TokenClassificationModel",
    "TokenClassificationTrainer",
    "TreePredictor",
    "WordTagger",
    "distill",
    "distill_to",
]
