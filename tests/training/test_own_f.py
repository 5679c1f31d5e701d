"""A module of one's own as the f of the beliefs: learned, saved, loaded by class and by plugin; what goes wrong is said."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import featured
import tandemrank as tr
from beliefs.lessons import TABLES, counts_of, lesson_of
from tandemrank.beliefs import model_fit
from tandemrank.beliefs.features import Features
from tandemrank.beliefs.grades import Grades
from tandemrank.beliefs.models import Own
from tandemrank.errors import ConfigError, JobError, LogError, PolicyError
from tandemrank.policies.own import MODULES, arguments_of, import_plugin
from tandemrank.training.learning import Listener

NEAR = """
import torch
from torch import nn

class Near(nn.Module):
    def __init__(self, column, width=4):
        super().__init__()
        self.column, self.width = column, width
        self.net = nn.Sequential(nn.Linear(1, width), nn.ReLU(), nn.LazyLinear(1))

    def forward(self, u, z, p):
        return self.net((u[:, self.column] - z[:, self.column]).abs()[:, None])[:, 0]
"""
NEW_QUERY, NEW_ITEM = (featured.table(side, slice(-1, None)) for side in ("query", "item"))


@pytest.fixture(scope="module")
def plugin(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("plugin") / "near_model.py"
    path.write_text(NEAR)
    return path


@pytest.fixture(scope="module")
def learned(plugin) -> tr.Learned:
    start = tr.Start(query_features=featured.table("query"), item_features=featured.table("item"))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = import_plugin(str(plugin)).Near(-2)
    config = tr.LearningConfig(candidates=12)
    found = tr.learn(featured.log(2500), config, model=module, start=start, method="beliefs")
    assert nn.parameter.is_lazy(module.net[2].weight)  # a copy was trained
    return found


def test_it_is_learned_and_answers_for_what_the_log_has_not_seen(learned) -> None:
    assert learned.beliefs.chosen.f.words == "own"
    assert learned.config.model == "Near"
    assert type(learned.policy.ranker.f.model.module).__name__ == "Near"
    [shown] = learned.policy.recommend([featured.NEW], query_features=NEW_QUERY)["items"].to_list()
    assert featured.RELEVANCE[-1, shown].mean() > 0.7


def test_it_is_saved_with_its_arguments_and_loaded_in_this_process_and_in_another(learned, plugin, tmp_path) -> None:
    policy, folder = learned.policy, tmp_path / "policy"
    policy.save(folder)
    expected = policy.recommend([featured.NEW, 3], query_features=NEW_QUERY, item_features=NEW_ITEM)
    known = MODULES.pop("Near")
    with pytest.raises(PolicyError, match=r"of the unknown class 'Near'.*models=\[Near\].*--plugin"):
        tr.load(folder)
    again = tr.load(folder, models=[known])
    module = again.ranker.f.model.module
    assert (module.column, module.width) == (-2, 4)
    assert again.recommend([featured.NEW, 3], query_features=NEW_QUERY, item_features=NEW_ITEM).equals(expected)
    assert tr.Server(again, seed=3).rank(3).items == tr.Server(policy, seed=3).rank(3).items
    NEW_QUERY.write_parquet(tmp_path / "new.parquet")
    run = [sys.executable, "-m", "tandemrank", "recommend", folder, "--queries", f"3,{featured.NEW}", "--json"]
    run += ["--query-features", tmp_path / "new.parquet", "--plugin", plugin]
    found = subprocess.run(list(map(str, run)), capture_output=True, text=True, check=True)
    ours = policy.recommend([3, featured.NEW], query_features=NEW_QUERY)
    assert json.loads(found.stdout) == ours.to_dicts()


class Fixed(nn.Module):
    """Trained elsewhere: no parameters, and an argument that it does not keep."""

    def __init__(self, scale):
        super().__init__()
        self.times = scale

    def forward(self, u, z, p):
        return -self.times * (u[:, -2] - z[:, -2]).abs()


def test_a_module_without_parameters_stays_as_it_is() -> None:
    lesson = lesson_of(counts_of(), Features(**TABLES), Grades.graded(0.3, 0.5))
    fit = model_fit.learners(Fixed(1.5))["own"][1](lesson, lesson, 5, 0)
    u, z, _ = lesson.inputs()
    expected = -1.5 * (u[:, -2] - z[:, -2]).abs().double().numpy()
    assert (fit.epochs, fit.f.tolist()) == (1, pytest.approx(expected.tolist(), rel=1e-4, abs=1e-4))


def test_one_that_cannot_be_saved_says_so_before_the_log_is_read() -> None:
    heard: list[str] = []
    with pytest.raises(LogError):
        tr.learn("nothing.parquet", model=Fixed(1.5), listener=Listener(note=heard.append))
    [words] = heard
    assert words.endswith("can be learned, but not saved: no attribute scale: write self.scale = scale.")
    with pytest.raises(PolicyError, match=r"Fixed cannot be saved: .* got no attribute scale"):
        Own((2, 2, 0), Fixed(1.5)).check()


class Changed(nn.Module):
    def __init__(self, width=2):
        super().__init__()
        self.net = nn.Linear(1, width)
        self.width = width + 1

    def forward(self, u, z, p):
        return self.net(u[:, :1]).sum(1)


class Many(nn.Module):
    def __init__(self, *layers):
        super().__init__()

    def forward(self, u, z, p):
        return u[:, 0]


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (Changed(), "got others, which give another module"),
        (Many(), r"got \*layers, which nobody can know later"),
    ],
)
def test_arguments_that_are_not_what_it_was_made_with_are_found_before_it_is_saved(module, told) -> None:
    with pytest.raises(PolicyError, match=told):
        Own((1, 1, 0), module).check()


def test_arrays_are_no_arguments_of_f() -> None:
    module = Fixed(torch.ones(2))
    module.scale = module.times
    assert arguments_of(module).problem == "arrays or tensors"


@pytest.mark.parametrize(
    ("answer", "error", "told"),
    [
        (lambda u, z, p: u, ConfigError, r"Wrong: expected a tensor with one number for each of 2 pairs; got \(2, 1\)"),
        (lambda u, z, p: 3.0, ConfigError, "got float"),
        (lambda u, z, p: u[:, 0] / 0, ConfigError, "expected finite numbers"),
        (lambda u, z, p: u[:, 9], JobError, r"the model of features \(Wrong\) failed: IndexError"),
    ],
)
def test_answers_that_are_no_numbers_of_pairs(answer, error, told) -> None:
    class Wrong(nn.Module):
        def forward(self, u, z, p):
            return answer(u, z, p)

    with pytest.raises(error, match=told):
        Own((1, 1, 0), Wrong())


def test_the_model_by_name_is_the_only_one_and_what_is_not_used_is_said() -> None:
    found = tr.learn(featured.log(400), tr.LearningConfig(candidates=12), model="linear", method="beliefs")
    assert found.config.model == "linear"
    assert found.beliefs.chosen.f.words == "none"
    words = "The model of features linear is not used: held-out pairs are not surely likelier with it."
    assert found.notes == [words]
    assert found.summary()["notes"] == [words]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"model": "forest"}, "model: expected none, linear, towers, network, trees, or the class of a module"),
        ({"model": 3}, "model: expected a name or a torch module; got 3"),
        ({"model": "none", "config": tr.LearningConfig(model="linear")}, "expected model once"),
    ],
)
def test_a_model_that_is_none_is_refused_before_the_log_is_read(given, told) -> None:
    with pytest.raises(ConfigError, match=told):
        tr.learn("nothing.parquet", **given)
