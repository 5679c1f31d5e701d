"""Gradient-boosted trees (LightGBM, extra `trees`): a re-ranker over features of the query, of the item and of the pair.

    score(q, d) = sum_t f_t(x),     x = [features of q, features of d, numbers of the pair, the generator's score]

Every tree is grown on the gradient of the two-stage objective by the scores of what the re-ranker was asked about, the
candidates of the generator (`Boosting`, an optimiser to the training loop): there is no other loss. All state is plain: the
features as numbers, and LightGBM's own text. It scores candidates only, and knows a query by its features alone.
"""

import hashlib
from collections.abc import Sequence
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from tandemrank.errors import ConfigError, PolicyError
from tandemrank.policies.pairs import PairFeatures
from tandemrank.policies.scorers import Scorer

LEAVES, LEAST = 15, 20  # of a tree, and rows of a leaf


def lightgbm() -> ModuleType:
    """The library, or one line that says how to get it."""
    try:
        import lightgbm as found
    except ImportError as error:
        raise ConfigError("trees need LightGBM, which is not installed: pip install 'tandemrank[trees]'.") from error
    module: ModuleType = found
    return module


class Trees(Scorer):
    """Boosted trees.  Shapes: queries [Q, A], items [D, B], pairs J numbers -> rows of A + B + J + 1 inputs."""

    kind = "trees"
    lengths = ("A", "B", "entries")
    scores_everything, takes_score = False, True
    queries: Tensor
    items: Tensor
    text: Tensor

    def __init__(self, queries: ArrayLike, items: ArrayLike, pairs: PairFeatures, text: str = "") -> None:
        super().__init__()
        sides = [torch.as_tensor(np.asarray(x), dtype=torch.float32) for x in (queries, items)]
        self.register_buffer("queries", sides[0])
        self.register_buffer("items", sides[1])
        self.pairs = pairs
        self.register_buffer("text", _as_tensor(text))
        self._booster: Any = None
        self._asked: list[tuple[NDArray[np.float32], NDArray[np.float64]]] = []

    @property
    def model(self) -> str:
        """The trees as LightGBM's own text; empty before any is grown."""
        return self.text.numpy().tobytes().decode()

    def score(self, q: Tensor, items: Tensor) -> Tensor:
        return self.score_with(q, items, torch.zeros(items.shape))

    def score_with(self, q: Tensor, items: Tensor, s: Tensor) -> Tensor:
        """The same with the generator's scores.  Shapes: q [B]; items, s [B, M] -> [B, M]."""
        x = self._inputs(q, items, s)
        found = torch.from_numpy(self._sum(x).astype(np.float32)).view(items.shape)
        if torch.is_grad_enabled():
            # A minibatch of many items is asked for in several parts: what has a gradient is kept, of each.
            found.requires_grad_().register_hook(  # type: ignore[no-untyped-call]
                lambda g: self._asked.append((x, g.double().numpy().ravel()))
            )
        return found

    def _inputs(self, q: Tensor, items: Tensor, s: Tensor) -> NDArray[np.float32]:
        """Shapes: q [B]; items, s [B, M] -> [B M, inputs]."""
        ours = self.queries[q][:, None].expand(-1, items.shape[1], -1)
        x = torch.cat([ours, self.items[items], self.pairs.at(q, items), s[..., None]], 2)
        return x.reshape(items.numel(), -1).numpy()

    def _sum(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        booster = self._trees()
        if booster is None or not len(x):
            return np.zeros(len(x))
        found: NDArray[np.float64] = booster.predict(x, raw_score=True, num_threads=torch.get_num_threads())
        return found

    def _trees(self) -> Any:
        if self._booster is None and len(self.text):
            self._booster = lightgbm().Booster(model_str=self.model)
        return self._booster

    def grow(self, rate: float) -> None:
        """One more tree, against the gradient by the loop's loss of all scores since the last one; a leaf is

            -rate mean(g / rms(g)),    g of the rows in the leaf, rms(g) of all rows

        so `rate` is a step of the scores, whatever the weights are.
        """
        asked, self._asked = self._asked, []
        if not asked or rate <= 0:
            return
        x, gradient = (np.concatenate(parts) for parts in zip(*asked, strict=True))
        seen = gradient != 0  # what fills up the rows of a query has none
        if not seen.any():
            return
        library, g = lightgbm(), gradient[seen]
        g = g / np.sqrt(np.mean(g**2))
        data = library.Dataset(x[seen], label=np.zeros(len(g)), free_raw_data=False)
        switches = {
            "objective": lambda _scores, _data: (g, np.ones(len(g))), "learning_rate": rate, "num_leaves": LEAVES,
            "min_data_in_leaf": min(LEAST, max(len(g) // 16, 1)), "verbosity": -1, "num_threads": torch.get_num_threads(),
            "seed": 0, "deterministic": True, "force_col_wise": True, "boost_from_average": False,
        }  # fmt: skip
        grown = library.train(switches, data, num_boost_round=1, init_model=self._trees())
        self._booster, self.text = None, _as_tensor(grown.model_to_string())

    def spec(self) -> dict[str, Any]:
        return {
            "Q": len(self.queries),
            "D": len(self.items),
            "A": self.queries.shape[1],
            "B": self.items.shape[1],
            "entries": len(self.pairs.item),
            "pairs": self.pairs.spec(),
            "sha256": _digest(self.text),
        }

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> "Trees":
        Q, D = spec["Q"], spec["D"]
        pairs = PairFeatures.from_spec(spec["pairs"], Q, D, spec["entries"])
        made = cls(torch.zeros(Q, spec["A"]), torch.zeros(D, spec["B"]), pairs)
        made._expected = spec["sha256"]
        return made

    _expected: str | None = None

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """The text is as long as the trees are many."""
        if (text := state.get(f"{prefix}text")) is not None:
            self.text, self._booster = text.clone(), None
        super()._load_from_state_dict(state, prefix, *rest)

    def per_query_parameters(self) -> Sequence[nn.Parameter]:
        return []

    def check(self) -> None:
        """Refuses features that are not finite, pairs that are none, and a text that is not the one that was saved."""
        if self.text.dtype != torch.uint8 or self.text.ndim != 1:
            raise PolicyError("the text of the trees is no text")
        # LightGBM is not asked about a text that is damaged: it may not survive it.
        if self._expected is not None and _digest(self.text) != self._expected:
            raise PolicyError("the text of the trees is not the one that was saved")
        super().check()
        self.pairs.check()
        # Without the library the first score says so; the folder is not to blame.
        is_known = find_spec("lightgbm") is not None
        if len(self.text) and is_known and self._trees().num_feature() != self._width:
            raise PolicyError(f"the trees have {self._trees().num_feature()} inputs; expected {self._width}")

    @property
    def _width(self) -> int:
        return int(self.queries.shape[1] + self.items.shape[1] + self.pairs.width + 1)


def _as_tensor(text: str) -> Tensor:
    return torch.from_numpy(np.frombuffer(text.encode(), np.uint8).copy())


def _digest(text: Tensor) -> str:
    return hashlib.sha256(text.numpy().tobytes()).hexdigest()


class Boosting(torch.optim.Optimizer):
    """An optimiser that grows a tree: a step takes the gradient of the scores that the loop asked for last."""

    def __init__(self, trees: Trees, lr: float) -> None:
        super().__init__([torch.zeros(1)], {"lr": lr})
        self.trees = trees

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """One tree, at the rate as it is."""
        self.trees.grow(self.param_groups[0]["lr"])


def boosting_of(model: nn.Module, lr: float) -> list[torch.optim.Optimizer]:
    """An optimiser for the trees that a scorer is, or holds."""
    return [Boosting(part, lr) for part in model.modules() if isinstance(part, Trees)]
