"""Switches: few, one name each wherever they are used, refused where they would be ignored."""

import pytest

from tandemrank._base.config import resolve, switch_help, switch_paths, switch_values, validated
from tandemrank.errors import ConfigError
from tandemrank.experiments.config import PRESETS, ExperimentConfig, GridConfig
from tandemrank.training.config import LearningConfig, TrainingConfig

MODELS = [TrainingConfig, LearningConfig, ExperimentConfig, GridConfig]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("switch", "name", "value"), [
    ("epochs=5", "epochs", 5), ("rank_weights=flat", "rank_weights", "flat"),
])  # fmt: skip
def test_a_switch_has_one_name_for_every_command(model, switch, name, value, tmp_path) -> None:
    """Whether it is set alone, in a file or as a flag."""
    assert switch_values(resolve(model, switches=[switch]))[name] == value
    text = switch.replace("=flat", "='flat'")
    (tmp_path / "switches.toml").write_text(text)
    assert switch_values(resolve(model, file=tmp_path / "switches.toml"))[name] == value


@pytest.mark.parametrize("model", MODELS)
def test_every_switch_has_its_help_and_its_value(model) -> None:
    names = set(switch_paths(model))
    assert names == set(switch_values(model())) == set(switch_help(model))
    assert all(switch_help(model).values())
    assert not [name for name in names if "." in name]


def test_a_grids_own_lists_hide_the_single_numbers() -> None:
    assert switch_paths(GridConfig)["candidates"] == ("candidates",)
    assert switch_values(GridConfig())["candidates"] == [500]
    with pytest.raises(ConfigError, match="a table has its own list of candidates"):
        validated(GridConfig, {"experiment": {"learning": {"candidates": 30}}})


def test_learn_has_few_switches() -> None:
    assert len(switch_paths(LearningConfig)) <= 22


@pytest.mark.parametrize(
    ("model", "switches", "message"),
    [
        (LearningConfig, ["exclude=shown", "objective=ips"], "exclude leaves clicked pairs out"),
        (LearningConfig, ["exclude=shown", "safe=true"], "exclude and safe cannot be combined"),
        (ExperimentConfig, ["evaluation_share=0.3"], "evaluation_share is for logs of one's own"),
        (TrainingConfig, ["minibatch=0"], "minibatch: input should be greater than or equal to 1; got 0"),
        (TrainingConfig, ["rank_weights=deep"], "rank_weights: input should be 'flat' or 'examination'; got 'deep'"),
        (TrainingConfig, ["method=joint"], "method: there is no such switch"),
        (LearningConfig, ["safe=maybe"], "safe: input should be a valid boolean"),
        (TrainingConfig, ["training.epochs=3"], "it is called epochs, wherever it is used"),
    ],
)  # fmt: skip
def test_a_switch_that_would_be_ignored_or_is_none_is_refused(model, switches, message) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(model, switches=switches)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_configuration_survives_json(preset) -> None:
    config = resolve(ExperimentConfig, preset=PRESETS[preset])
    assert ExperimentConfig.model_validate_json(config.model_dump_json()) == config
