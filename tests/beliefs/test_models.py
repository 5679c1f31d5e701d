"""Models of f: every kind is fitted, saved, loaded, and scores known and new queries and items."""

import json
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from beliefs.lessons import TABLES, D, Q, counts_of, lesson_of, pair_table
from tandemrank.beliefs import model_fit
from tandemrank.beliefs.features import Features
from tandemrank.beliefs.grades import Grades
from tandemrank.beliefs.models import FeatureModel, Linear, Network, ProductModel, Towers, model_from
from tandemrank.errors import ConfigError, PolicyError

KINDS = ("linear", "towers", "network", "trees")
GRADES = Grades.graded(0.3, 0.5)


class Mine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, u, z, pair):
        return self.weight * u[:, -1] * z[:, -1]


def fitted(kind: str, features: Features | None = None) -> FeatureModel:
    lesson = lesson_of(counts_of(), features or Features(**TABLES, pair=pair_table()), GRADES)
    among = model_fit.learners(Mine() if kind == "own" else kind)
    return model_fit.train(
        model_fit.ModelChoice((kind,), (80 if kind == "trees" else 10,), (True, True)), lesson, among, 0
    )


@pytest.mark.parametrize("kind", [*KINDS, "own"])
def test_every_kind_is_saved_and_loaded_without_pickle_and_scores_the_same(kind, tmp_path) -> None:
    if kind == "trees":
        pytest.importorskip("lightgbm")
    f = fitted(kind)
    save_file(f.state_dict(), tmp_path / "f.safetensors")
    again = FeatureModel.from_spec(json.loads(json.dumps(f.spec())))
    again.load_state_dict(load_file(tmp_path / "f.safetensors"))
    q = np.array([0, 7, Q - 1])
    assert np.ptp(f.matrix(q)) > 0.02
    assert np.array_equal(again.matrix(q), f.matrix(q))
    pairs = np.repeat(q, D), np.tile(np.arange(D), len(q))
    assert np.allclose(f.at(*pairs).reshape(3, D), f.matrix(q), atol=1e-5)
    new = f.new(query={"age": 33.0, "city": "b"}, known=np.arange(D))
    assert np.array_equal(again.new(query={"age": 33.0, "city": "b"}, known=np.arange(D)), new)
    assert np.isfinite(new).all()
    assert np.isfinite(f.new(item={"price": 3.0}, known=np.arange(Q))).all()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_finds_what_features_say_of_pairs_and_of_the_query_that_was_never_shown(kind) -> None:
    if kind == "trees":
        pytest.importorskip("lightgbm")
    f = fitted(kind, Features(**TABLES))
    taste = np.outer(np.arange(Q) / Q - 0.5, np.arange(D) / D - 0.5)
    known = f.matrix(np.arange(Q - 1))[:, 1 : D - 1]
    assert np.corrcoef(known.ravel(), taste[:-1, 1 : D - 1].ravel())[0, 1] > 0.75
    assert np.corrcoef(f.matrix(np.array([Q - 1]))[0, 1 : D - 1], taste[-1, 1 : D - 1])[0, 1] > 0.7


def test_a_known_query_that_was_never_shown_is_what_a_new_one_with_its_features_is() -> None:
    f = fitted("towers", Features(**TABLES))
    row = TABLES["query"].row(Q - 1, named=True)
    assert np.allclose(f.new(query=row, known=np.arange(D)), f.matrix(np.array([Q - 1]))[0], atol=1e-5)
    item = TABLES["item"].row(D - 1, named=True)
    assert np.allclose(f.new(item=item, known=np.arange(Q)), f.matrix(np.arange(Q))[:, D - 1], atol=1e-5)


@pytest.mark.parametrize("kind", ["linear", "network"])
def test_f_is_0_of_new_queries_and_items_where_it_is_not_used_of_them(kind) -> None:
    found = fitted(kind, Features(**TABLES))
    f = FeatureModel(found.model, found.query, found.item, found.pairs, (False, True))
    assert not f.matrix(np.array([Q - 1])).any()
    assert f.matrix(np.array([0]))[0, D - 1] != 0
    assert not f.new(query={"age": 30.0}, known=np.arange(D)).any()
    f = FeatureModel(found.model, found.query, found.item, found.pairs, (True, False))
    assert f.matrix(np.array([Q - 1]))[0, 0] != 0
    assert not f.matrix(np.arange(Q))[:, D - 1].any()
    assert not f.new(item={"price": 2.0}, known=np.arange(Q)).any()


@pytest.mark.parametrize("kind", [Linear, Towers])
def test_a_product_is_its_vectors_and_the_sum_over_the_pairs_columns(kind) -> None:
    torch.manual_seed(0)
    model: ProductModel = kind((4, 3, 2))
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    u, z, pair = torch.randn(5, 4), torch.randn(5, 3), torch.randn(5, 2)
    a, b = model.query(u), model.item(z)
    expected = (a * b).sum(1) + b @ model.level.weight[0] + pair @ model.pair.weight[0]
    assert torch.allclose(model(u, z, pair), expected, atol=1e-4)


def test_the_network_is_its_formula() -> None:
    torch.manual_seed(0)
    model = Network((4, 3, 2))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    u, z, pair = torch.randn(5, 4), torch.randn(5, 3), torch.randn(5, 2)
    x = torch.cat([u, z, pair, model.query(u) * model.item(z)], 1)
    low, high = model.cross
    crossed = x + x * (x @ low.weight.T @ high.weight.T + high.bias)
    expected = (
        torch.relu(crossed @ model.out[0].weight.T + model.out[0].bias) @ model.out[2].weight[0] + model.out[2].bias
    )
    assert torch.allclose(model(u, z, pair), expected, atol=1e-4)


def test_only_products_have_vectors() -> None:
    a, b = fitted("linear").vectors
    assert (len(a), len(b)) == (Q, D)
    with pytest.raises(ConfigError, match=r"expected a model that is a product \(linear, towers\); got network"):
        _ = fitted("network").vectors


def test_a_number_of_a_pair_changes_that_pair_alone() -> None:
    f, without = fitted("linear"), fitted("linear")
    without.pairs.values.zero_()
    change = np.abs(f.matrix(np.arange(Q)) - without.matrix(np.arange(Q)))
    assert (change[0, ::2] > 0).all()
    assert not change[0, 1::2].any()
    assert not change[1:].any()


def test_refusals() -> None:
    f = fitted("linear")
    with pytest.raises(ConfigError, match="a new query or of a new item; got both or none"):
        f.new(known=np.arange(D))
    with pytest.raises(PolicyError, match=r"of the unknown class 'Nobodys'.*models=\[Nobodys\]"):
        model_from({"kind": "own", "sizes": [1, 1, 0], "class": "Nobodys", "keywords": {}})
    with pytest.raises(
        PolicyError, match="expected a model of features among linear, towers, network, trees, own; got 'no'"
    ):
        model_from({"kind": "no", "sizes": [1, 1, 0]})
    with pytest.raises(
        ConfigError, match=r"expected none, linear, towers, network, trees, or the class .* got 'forest'"
    ):
        model_fit.learners("forest")


def test_trees_are_not_among_the_choices_where_lightgbm_is_not_installed(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    monkeypatch.setattr(model_fit, "find_spec", lambda name: None)
    assert set(model_fit.learners(None)) == {"linear", "towers", "network"}
    assert model_fit.learners("none") == {}
    with pytest.raises(ConfigError, match=r"trees need LightGBM. Install it: pip install 'tandemrank\[trees\]'"):
        model_fit.learners("trees")
