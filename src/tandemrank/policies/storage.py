"""Saved policies: a folder of `config.json`, `weights.safetensors`, `vocabulary.parquet` and a card for people, `README.md`.

A folder is taken as it is or refused: every value is checked before it is used, and whatever is wrong with it is one
`PolicyError`. The card is not read.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tandemrank._base.files import Kind, has_keys, replacing
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import PolicyError
from tandemrank.policies import ahead, hybrid, memory  # noqa: F401 (a kind is known once its module is imported)
from tandemrank.policies.own import UnknownModelError, register, with_tensors
from tandemrank.policies.scorers import Scorer

FORMAT = 1
FILES = ("config.json", "weights.safetensors", "vocabulary.parquet")
SAVED_POLICY = Kind(
    "saved policy",
    r"config\.json|weights\.safetensors|vocabulary\.parquet|README\.md",
    lambda folder: has_keys(folder / "config.json", "format", "stages"),
)

Stage = Literal["generator", "ranker"]


def save(
    path: str | Path,
    stages: Mapping[Stage, Scorer],
    vocabulary: Vocabulary,
    *,
    K2: int,
    K: int,
    trained_on: str | None,
    about: Sequence[str] = (),
) -> Path:
    """Writes the folder `path` in one piece."""
    tensors = {f"{stage}.{name}": t for stage, m in stages.items() for name, t in m.state_dict().items()}
    config = {
        "format": FORMAT,
        "K2": int(K2),
        "K": int(K),
        "stages": {stage: {"kind": m.kind, "sizes": m.spec()} for stage, m in stages.items()},
        **({} if trained_on is None else {"trained_on": trained_on}),
        **({"about": list(about)} if about else {}),
    }
    for m in stages.values():
        m.check()  # what could not be loaded again is not written
    with replacing(path, SAVED_POLICY) as folder:
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_file({name: t.contiguous().clone() for name, t in tensors.items()}, folder / "weights.safetensors")
        _vocabulary_frame(vocabulary).write_parquet(folder / "vocabulary.parquet")
        (folder / "README.md").write_text(_card(stages, vocabulary, K2, K, about), encoding="utf-8")
    return Path(path)


CARD = """---
library_name: tandemrank
tags: [two-stage-ranking, counterfactual-learning-to-rank]
---
# A two-stage ranking policy

{about}| | |
| --- | --- |
| generator | {generator}, picks {K2:,} of {D:,} items |
| re-ranker | {ranker}, shows {K} |
| queries | {Q:,} by id; others are answered by features, or as the average one |
| context | {context} |

**Use.** `tandemrank recommend FOLDER`, `tandemrank serve FOLDER`, or `tandemrank.load("FOLDER").recommend([...])`.

**What it assumes.** A click says that an item was looked at and liked. How much a rank is looked at was given or estimated.
What is promised holds for queries and users like those of the log, in its time. Items that the log never showed are a guess.
"""


def _card(stages: Mapping[Stage, Scorer], vocabulary: Vocabulary, K2: int, K: int, about: Sequence[str]) -> str:
    """What a saved policy is, for people: Markdown, as hubs of models show it."""
    sizes = {name: sum(t.numel() for t in stage.state_dict().values()) for name, stage in stages.items()}
    return CARD.format(
        about="".join(f"{words}\n\n" for words in about),
        **{name: f"{stage.kind} ({sizes[name]:,} numbers)" for name, stage in stages.items()},
        K2=K2,
        K=K,
        Q=len(vocabulary.query_ids),
        D=len(vocabulary.item_ids),
        context=", ".join(stages["ranker"].context_columns) or "none",
    )


def _vocabulary_frame(vocabulary: Vocabulary) -> pl.DataFrame:
    """One table for both sides; the number of rows is the longer side's, the other is padded with nulls."""
    n = max(len(vocabulary.query_ids), len(vocabulary.item_ids))
    return pl.DataFrame(
        {
            "query_id": vocabulary.query_ids.extend_constant(None, n - len(vocabulary.query_ids)),
            "item_id": vocabulary.item_ids.extend_constant(None, n - len(vocabulary.item_ids)),
        }
    )


# --- loading ----------------------------------------------------------------------------------------------------------


class _StageConfig(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    kind: str
    sizes: dict[str, Any]


class _Stages(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    generator: _StageConfig
    ranker: _StageConfig


class _Config(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    format: int
    K2: int = Field(ge=1)
    K: int = Field(ge=1)
    stages: _Stages
    trained_on: str | None = Field(default=None, max_length=64)
    about: list[str] = Field(default=[], max_length=100)


class _OtherFormatError(PolicyError):
    """Nothing is wrong with the folder but its version."""


def load(path: str | Path, models: Iterable[type[nn.Module]] = ()) -> dict[str, Any]:
    """The arguments of the `TwoStagePolicy` in the folder `path`; one that is damaged or of another version is refused.

    `models`: classes of one's own."""
    register(models)
    folder = Path(path)
    for name in FILES:
        if not os.path.isfile(folder / name):  # unlike Path's it has no names that it refuses
            raise PolicyError(f"{folder} is not a whole saved policy: {name} is missing. Save the policy again.")
    try:
        return _read(folder)
    except _OtherFormatError:
        raise
    except UnknownModelError as error:
        raise PolicyError(f"{folder}: {error}") from error
    except (
        LookupError,
        TypeError,
        ValueError,
        ArithmeticError,
        AttributeError,
        RuntimeError,  # also of torch, and of nesting too deep
        MemoryError,
        OSError,
        SafetensorError,
        pl.exceptions.PolarsError,
        pl.exceptions.PanicException,
    ) as error:
        raise damaged(folder, error) from error


def damaged(folder: str | Path, error: BaseException) -> PolicyError:
    """The one error of everything that can be wrong with a saved policy."""
    reason = _first_problem(error) if isinstance(error, ValidationError) else str(error) or type(error).__name__
    return PolicyError(f"{folder} is a damaged saved policy ({reason.rstrip('.')}). Save the policy again.")


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    where = ".".join(map(str, problem["loc"]))
    return f"config.json, {where or 'as a whole'}: {problem['msg'].lower()}; got {str(problem['input'])[:60]}"


def _read(folder: Path) -> dict[str, Any]:
    data = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    version = data["format"]
    if version != FORMAT or isinstance(version, bool):
        raise _OtherFormatError(
            f"{folder} has format {str(version)[:60]}, this version reads format {FORMAT}. "
            f"Save the policy again with this version."
        )
    config = _Config.model_validate(data)
    ids = pl.read_parquet(folder / "vocabulary.parquet", glob=False)
    vocabulary = Vocabulary(_ids(ids, "query_id"), _ids(ids, "item_id"))
    tensors = load_file(folder / "weights.safetensors")
    if strange := [name for name in tensors if name.partition(".")[0] not in _Stages.model_fields]:
        raise PolicyError(f"weights.safetensors: {strange[0]} belongs to no stage")
    return {
        "generator": _scorer("generator", config.stages.generator, tensors, vocabulary),
        "ranker": _scorer("ranker", config.stages.ranker, tensors, vocabulary),
        "K2": config.K2,
        "K": config.K,
        "vocabulary": vocabulary,
        "trained_on": config.trained_on,
        "about": tuple(config.about),
    }


def _ids(frame: pl.DataFrame, column: str) -> pl.Series:
    """The ids of one side without their padding."""
    return frame[column][: len(frame) - frame[column].null_count()]


def _scorer(stage: Stage, config: _StageConfig, tensors: Mapping[str, Tensor], vocabulary: Vocabulary) -> Scorer:
    """A stage's scorer, its sizes held to the ids and to the weights that are there before anything is made of them."""
    prefix = f"{stage}."
    own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
    sides = {"Q": len(vocabulary.query_ids), "D": len(vocabulary.item_ids)}
    _check_sizes(stage, config, sides, max((size for t in own.values() for size in t.shape), default=0))
    scorer = _class(stage, config.kind).from_spec(with_tensors(config.sizes, own))
    scorer.bind(vocabulary)
    for name, t in scorer.state_dict().items():
        if name in own and own[name].dtype != t.dtype:
            raise PolicyError(f"{prefix}{name} is of {own[name].dtype}; expected {t.dtype}")
    scorer.load_state_dict(own)
    scorer.check()
    return scorer


def _class(stage: Stage, kind: str) -> type[Scorer]:
    found = Scorer.of_kind(kind)
    if found is None:
        raise UnknownModelError(f"the {stage} is of the unknown kind {kind[:60]!r}", kind)
    return found


def _check_sizes(stage: Stage, config: _StageConfig, sides: dict[str, int], largest: int) -> None:
    """Refuses an unknown kind, and sizes that the ids and the weights do not have; of a scorer inside another too."""
    kind = _class(stage, config.kind)
    spec = config.sizes
    for name, n in sides.items():
        if type(spec.get(name)) is not int or spec[name] != n:
            raise PolicyError(f"the {stage} has {name} = {str(spec.get(name))[:60]}, but there are {n} ids")
    for name in kind.lengths:
        if type(spec.get(name)) is not int or not 0 <= spec[name] <= largest:
            came = str(spec.get(name))[:60]
            raise PolicyError(
                f"the {stage} has {name} = {came}, but no weights with more than {largest} rows or columns"
            )
    if "base" in spec:
        _check_sizes(stage, _StageConfig.model_validate(spec.get("base")), sides, largest)
