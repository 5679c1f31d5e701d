"""The race against complete enumeration, sample by sample against `race_oracle`, identities and edges."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.sparse import coo_matrix, csc_matrix, csr_array, csr_matrix

import enumeration
import race_oracle
from tandemrank.errors import ConfigError, PolicyError
from tandemrank.gradients import _bridge, race
from worlds import assert_mean, seeded, world


def value_and_gradients(s, r, w, theta, K2, **options):
    s, r = s.clone().requires_grad_(), r.clone().requires_grad_()
    value = race.utility(s, r, w, theta, K2, **options)
    return value.detach(), *torch.autograd.grad(value.sum(), (s, r))


def check_world(seed: int, repeats: int) -> None:
    s, r, w, theta, K2 = world(seed)
    exact = enumeration.utility(s, r, w, theta, K2)
    # One query many times: its rows are independent samples.
    rows = [torch.tensor([x] * repeats, dtype=torch.float32) for x in (s, r, w)]
    curve = torch.tensor(theta)
    found = value_and_gradients(*rows, curve, K2, generator=seeded(seed))
    for sample, value, what in zip(found, exact, ("value", "candidate gradient", "ranker gradient"), strict=True):
        assert_mean(sample, value, f"world {seed}, {what}")
    rho, error = race.exposure(rows[0][:1], rows[1][:1], curve, K2, samples=500, generator=seeded(seed))
    gap = (rho[0] - torch.tensor(enumeration.exposure(s, r, theta, K2))).abs()
    assert torch.all(gap <= 5 * error[0] + 1e-6), f"world {seed}, exposure: {rho} +- {error}"


@pytest.mark.parametrize("seed", range(24))
def test_cand_grad_ranker_grad_and_2stage_true_utility_by_enumeration(seed: int) -> None:
    check_world(seed, repeats=20_000)


def test_one_world_with_a_small_standard_error() -> None:
    """The same with 300,000 samples: a bias of half a percent would show."""
    check_world(seed=17, repeats=300_000)


@pytest.mark.parametrize(
    ("D", "K2", "K"), [(7, 4, 2), (7, 7, 3), (7, 2, 3), (3, 5, 4), (1, 1, 1), (60, 20, 10), (400, 50, 5)]
)
def test_the_kernel_is_the_oracle_to_rounding_on_the_same_clocks(D: int, K2: int, K: int) -> None:
    generator = seeded(D)
    s, r, w = (torch.randn(100, D, generator=generator) for _ in range(3))
    w = w * (torch.rand(w.shape, generator=generator) < 0.3)
    if D > 3:
        s[:20, :3], r[10:30, 2:5], s[40:60, 3:] = -torch.inf, -torch.inf, -torch.inf
    agree(s, r, w, 1 / torch.arange(1.0, K + 1), K2)


def agree(s, r, w, theta, K2) -> None:
    """Value, both gradients and exposure, with three samples."""
    keys = _bridge.keys_for(len(s), seeded(1))
    found = value_and_gradients(s, r, w, theta, K2, samples=3, generator=seeded(1))
    rho, _ = race.exposure(s, r, theta, K2, samples=3, generator=seeded(1))
    expected = race_oracle.utility(s, r, w, theta, K2, 3, keys)
    for x, y in zip((*found, rho), (*expected, race_oracle.exposure(s, r, theta, K2, 3, keys)), strict=True):
        torch.testing.assert_close(x, y, rtol=2e-5, atol=2e-6)
        assert torch.isfinite(x).all()


@pytest.mark.parametrize("K2", [4, 9])
def test_the_kernel_is_the_oracle_where_times_are_far_apart(K2: int) -> None:
    """Shown documents arrive at e^-150, e^-50 and 1: the chance to be before the last is not that before the first, scaled."""
    s, w = torch.randn(60, 9, generator=seeded(0)), torch.rand(60, 9, generator=seeded(1))
    r = torch.randn(60, 9, generator=seeded(2)) + torch.tensor([150.0, 50.0, *[0.0] * 7])
    s[:, :2] += 4  # candidates, nearly always
    agree(s, r, w, torch.tensor([1.0, 0.6, 0.4, 0.2]), K2)


def test_clocks_are_standard_exponentials() -> None:
    clocks = race_oracle.log_clocks(_bridge.keys_for(200, seeded(0)), 2, 500, 0, torch.zeros(1)).exp().double()
    n = clocks.numel()
    assert abs(clocks.mean() - 1) < 5 / n**0.5
    assert abs((clocks**2).mean() - 2) < 5 * 20**0.5 / n**0.5
    for other in (clocks.roll(1, -1), clocks.roll(1, 1), clocks.roll(1, 0)):
        assert abs((clocks * other).mean() - 1) < 5 * 3**0.5 / n**0.5
    # The smallest clocks decide a race over many documents: the share below 1/1000 is right.
    share = (clocks < 1e-3).double().mean()
    assert abs(share - 1e-3) < 5 * (1e-3 / n) ** 0.5


def test_a_draw_shows_each_document_as_often_as_enumeration_says() -> None:
    s, r, theta, K2 = [0.5, -1.0, 1.5, 0.0, 0.3], [0.0, 1.0, -0.5, 0.8, 0.1], [1.0, 0.5], 3
    n = 40_000
    shown = race.draw(
        torch.tensor([s]), torch.tensor([r]), K2, 2, rows=np.zeros(n, np.int64), keys=_bridge.keys_for(n, seeded(3))
    )
    for d, rho in enumerate(enumeration.exposure(s, r, theta, K2)):
        seen = ((shown == d) * np.array(theta)).sum(1)
        assert abs(seen.mean() - rho) < 5 * seen.std() / n**0.5


def test_identity_K2_equal_to_D_is_the_one_stage_case() -> None:
    """With K2 = D the generator does not matter, and the exposure is that of one race."""
    generator = seeded(0)
    s, r, w = (torch.randn(50, 6, generator=generator) for _ in range(3))
    theta = torch.tensor([1.0, 0.5])
    options = {"samples": 4}
    one = value_and_gradients(s, r, w, theta, 6, generator=seeded(1), **options)
    other = value_and_gradients(torch.zeros_like(s), r, w, theta, 9, generator=seeded(1), **options)
    for x, y in zip(one, other, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)
    assert torch.all(one[1] == 0)


def test_identity_K_equal_to_1_is_the_bandit_case_of_opl_obj() -> None:
    """With one shown document the exposure is the probability of the action: pi(a) = sum_A p(A) q(a | A)."""
    s, r, K2 = [0.2, -0.4, 1.0, 0.6], [0.5, 0.1, -0.3, 0.9], 2
    rho, error = race.exposure(
        torch.tensor([s]), torch.tensor([r]), torch.ones(1), K2, samples=4000, generator=seeded(0)
    )
    policy = [0.0] * 4
    for A, p, _ in enumeration.rankings(s, range(4), K2):
        total = sum(math.exp(r[a]) for a in A)
        for a in A:
            policy[a] += p * math.exp(r[a]) / total
    assert torch.all((rho[0] - torch.tensor(policy)).abs() < 5 * error[0])
    assert abs(rho.sum() - 1) < 5 * error.square().sum().sqrt()


def test_exposure_has_the_standard_error_it_says() -> None:
    """Over many seeds the errors, in units of their own standard error, have variance 1; the scaling makes them small."""
    s, r = (torch.randn(1, 60, generator=seeded(n)).expand(400, 60) for n in (2, 3))
    theta = 1 / torch.arange(1.0, 6)
    rho, error = race.exposure(s, r, theta, 25, samples=50, generator=seeded(4))
    spread = rho.double().std(0)
    assert torch.all((error.double().mean(0) / spread - 1).abs() < 5 * 0.05)
    plain = race.utility(s, r, torch.ones(400, 60), theta, 25, samples=50, generator=seeded(4)).std()
    torch.testing.assert_close(rho.sum(1), theta.sum().expand(400), rtol=1e-5, atol=0)
    assert plain > 0.05


def test_exposure_sums_to_the_curve() -> None:
    s, r = (torch.randn(1, 40, generator=seeded(n)).expand(2000, 40) for n in (5, 6))
    theta = 1 / torch.arange(1.0, 11)
    total = race.utility(s, r, torch.ones(2000, 40), theta, 20, generator=seeded(7))
    assert_mean(total, float(theta.sum()), "sum of the exposures")


def test_a_batch_equals_its_parts_and_sparse_equals_dense() -> None:
    generator = seeded(8)
    s, r = (torch.randn(9, 80, generator=generator) for _ in range(2))
    w = torch.zeros(9, 80)
    w[:, ::9] = 1.0
    theta = 1 / torch.arange(1.0, 6)
    whole = value_and_gradients(s, r, w, theta, 30, generator=seeded(1))
    sparse = value_and_gradients(s, r, csr_matrix(w.numpy()), theta, 30, generator=seeded(1))
    one = seeded(1)
    parts = [value_and_gradients(s[i:j], r[i:j], w[i:j], theta, 30, generator=one) for i, j in ((0, 2), (2, 7), (7, 9))]
    for n, x in enumerate(whole):
        assert torch.equal(x, sparse[n])
        assert torch.equal(x, torch.cat([part[n] for part in parts]))


THREADS = """
import numba, torch
from tandemrank.gradients import _bridge, lazy_race, race
from tandemrank.gradients.products import Products, Source
torch.set_num_threads(1)

def found(threads):
    numba.set_num_threads(threads)
    g = torch.Generator().manual_seed(0)
    s, r, w = (torch.randn(17, 200, generator=g).requires_grad_() for _ in range(3))
    for K in (5, 7, 10):
        u = race.utility(s, r, w.detach(), 1 / torch.arange(1.0, K + 1), 50, samples=2, generator=g)
        yield from (x.detach().numpy().tobytes() for x in (u, *torch.autograd.grad(u.sum(), (s, r))))
    X, Y = torch.randn(17, 30, generator=g), torch.randn(9000, 30, generator=g)
    own = lazy_race.streams(_bridge.keys_for(17, g), range(3))
    races = lazy_race.races(Source.of(Products(X, Y)), 100, own[:, :2], own[:, 2:], 200)
    yield from (x.tobytes() for x in (races.first, races.s, races.log_t, races.count))

used = set()
plain = _bridge.ThreadPoolExecutor.submit
_bridge.ThreadPoolExecutor.submit = lambda *a: used.add(True) or plain(*a)
one = list(found(1))
print(torch.get_num_threads(), len(used), one == list(found(2)), len(used))
"""


def test_the_number_of_threads_changes_nothing_and_the_threads_of_torch_stay_as_they_are() -> None:
    """Else a training's products would be summed otherwise before and after a race, and not be the same twice."""
    environment = {**os.environ, "NUMBA_NUM_THREADS": "2"}
    out = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True, env=environment)
    assert out.stdout.split() == ["1", "0", "True", "1"]


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1e4])
@pytest.mark.parametrize(("D", "K2", "K"), [(1, 1, 1), (1, 5, 3), (5, 3, 2), (5, 1, 3), (4, 4, 10)])
def test_edges_are_finite_and_bounded(scale: float, D: int, K2: int, K: int) -> None:
    """Ties, huge and tiny scores, one document, fewer documents than places."""
    generator = seeded(D)
    s, r = (torch.randn(20, D, generator=generator).sign() * scale for _ in range(2))
    theta = 1 / torch.arange(1.0, K + 1)
    value, by_s, by_r = value_and_gradients(s, r, torch.ones(20, D), theta, K2, generator=seeded(0))
    assert all(torch.isfinite(x).all() for x in (value, by_s, by_r))
    rho, _ = race.exposure(s, r, theta, K2, samples=2, generator=seeded(0))
    assert torch.all(rho >= -1e-6)
    assert torch.all(rho <= 1 + 1e-6)


def test_huge_scores_decide() -> None:
    s, r = torch.tensor([[1e4, 1e4, -1e4, -1e4]]), torch.tensor([[-1e4, 0.0, 1e4, 1e4]])
    rho, _ = race.exposure(s, r, torch.tensor([1.0, 0.5]), 2, samples=3, generator=seeded(0))
    torch.testing.assert_close(rho, torch.tensor([[0.5, 1.0, 0.0, 0.0]]), rtol=0, atol=1e-5)


def test_documents_that_are_not_available_are_never_drawn_and_get_no_gradient() -> None:
    s = torch.randn(30, 8, generator=seeded(1))
    s[:, 2:5] = -torch.inf
    s[:5] = -torch.inf
    r, w = torch.randn(30, 8, generator=seeded(2)), torch.ones(30, 8)
    for K2 in (2, 6, 8):
        _, by_s, by_r = value_and_gradients(s, r, w, torch.tensor([1.0, 0.5, 0.3]), K2, generator=seeded(0))
        away = s == -torch.inf
        assert torch.all(by_s[away] == 0)
        assert torch.all(by_r[away] == 0)
    shown = race.draw(s, r, 3, 4, rows=np.arange(30), keys=_bridge.keys_for(30, seeded(0)))
    assert np.all(shown[:5] == -1)
    assert not np.isin(shown, [2, 3, 4]).any()


def test_each_gradient_sums_to_zero_over_the_documents() -> None:
    """Adding a number to all scores of a stage changes no list; a sample says so too, not only the mean."""
    s, r, w = (torch.randn(50, 40, generator=seeded(n)) for n in range(3))
    s[:10, :5], r[5:20, 3:9] = -torch.inf, -torch.inf
    for K2 in (7, 40):
        _, by_s, by_r = value_and_gradients(s, r, w, torch.tensor([1.0, 0.5]), K2, generator=seeded(3))
        for gradient in (by_s, by_r):
            assert torch.all(gradient.sum(1).abs() <= 1e-5 * gradient.abs().sum(1) + 1e-7)
        assert by_r.abs().sum(1).min() > 0


@pytest.mark.parametrize("K", [1, 10])
def test_the_noise_that_all_documents_share_is_gone(K: int) -> None:
    """What a common direction of the items' vectors would feel: less than a tenth of the variance without `balance`."""
    D, n = 200, 4_000
    s, r = (torch.randn(D, generator=seeded(x)).repeat(n, 1) for x in range(2))
    w = torch.zeros(n, D)
    w[:, :10] = 1.0
    common = 1 + 0.1 * torch.randn(D, generator=seeded(2))
    theta = torch.ones(K)
    p, density, _, gain, slope, _ = race_oracle.race(s, r, w, theta, 50, 1, _bridge.keys_for(n, seeded(3)))
    gradients = density[0] * gain[0], p[0] * slope[0]
    plain = [x @ common for x in gradients]
    found = [x @ common for x in value_and_gradients(s, r, w, theta, 50, generator=seeded(3))[1:]]
    for balanced, before in zip(found, plain, strict=True):
        assert balanced.var() < 0.1 * before.var()
        assert (balanced.mean() - before.mean()).abs() < 5 * before.std() / n**0.5


@pytest.mark.parametrize(("K2", "K", "samples"), [(4, 2, 1), (7, 3, 3), (1, 1, 2), (3, 5, 1)])
def test_the_value_is_the_same_with_and_without_gradients(K2: int, K: int, samples: int) -> None:
    generator = seeded(1)
    s, r, w = (torch.randn(50, 7, generator=generator) for _ in range(3))
    s[:9, :3], r[5:20, 2:5], s[20:25] = -torch.inf, -torch.inf, -torch.inf
    w, theta = w * (torch.rand(w.shape, generator=generator) < 0.5), 1 / torch.arange(1.0, K + 1)
    wanted = value_and_gradients(s, r, w, theta, K2, samples=samples, generator=seeded(2))[0]
    for weights in (w, csr_matrix(w.numpy())):
        found = race.utility(s, r, weights, theta, K2, samples=samples, generator=seeded(2))
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_no_weight_no_gradient() -> None:
    s, r = torch.randn(5, 20, generator=seeded(1)), torch.randn(5, 20, generator=seeded(2))
    assert all(
        torch.all(x == 0) for x in value_and_gradients(s, r, torch.zeros(5, 20), torch.ones(3), 9, generator=seeded(0))
    )


def test_bad_input_is_refused_by_name() -> None:
    s, w, theta = torch.zeros(2, 3), torch.ones(2, 3), torch.ones(2)
    options = {"generator": seeded(0)}
    bad = s.clone()
    bad[1, 2] = torch.nan
    with pytest.raises(PolicyError, match=r"1 ranker scores are NaN or \+inf \(first: row 1, document 2\)"):
        race.utility(s, bad, w, theta, 2, **options)
    with pytest.raises(PolicyError, match="candidate scores"):
        race.utility(torch.full((2, 3), torch.inf), s, w, theta, 2, **options)
    with pytest.raises(PolicyError, match="one shape"):
        race.utility(s, torch.zeros(2, 4), w, theta, 2, **options)
    with pytest.raises(ConfigError, match="K2 and samples"):
        race.utility(s, s, w, theta, 0, **options)
    with pytest.raises(ConfigError, match="shape of the scores"):
        race.utility(s, s, torch.ones(2, 4), theta, 2, **options)
    with pytest.raises(ConfigError, match="weights must be finite"):
        race.utility(s, s, w / 0, theta, 2, **options)
    with pytest.raises(ConfigError, match="theta"):
        race.utility(s, s, w, torch.tensor([torch.nan]), 2, **options)


def test_import_compiles_nothing_and_is_quick() -> None:
    code = (
        "import torch, time; t = time.perf_counter(); import tandemrank, sys; "
        "print(time.perf_counter() - t, 'numba' in sys.modules, 'ray' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert out[1:] == ["False", "False", "False"]


def test_weights_of_every_sparse_form_mean_the_same() -> None:
    """Entries that come twice add up, a matrix by columns is not taken for one by rows, a stored zero is nothing."""
    s, r = torch.randn(3, 8, generator=seeded(1)), torch.randn(3, 8, generator=seeded(2))
    twice = csr_matrix(([1.0, 2.0, -1.0, 0.0, 0.5], [2, 2, 7, 1, 0], [0, 3, 3, 5]), shape=(3, 8))
    dense = torch.from_numpy(twice.toarray()).float()
    assert dense[0, 2] == 3
    options = {"theta": torch.tensor([1.0, 0.5]), "K2": 4, "samples": 3}
    expected = value_and_gradients(s, r, dense, generator=seeded(0), **options)
    square = {"s": s[:, :3], "r": r[:, :3], "theta": torch.ones(2), "K2": 2}
    for form in (lambda w: w, csc_matrix, coo_matrix, csr_array):
        found = value_and_gradients(s, r, form(twice), generator=seeded(0), **options)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        # Square, so that nothing but the form tells rows from columns.
        own = value_and_gradients(w=form(csr_matrix(dense[:, :3].numpy())), generator=seeded(0), **square)
        for a, b in zip(own, value_and_gradients(w=dense[:, :3], generator=seeded(0), **square), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_what_is_no_matrix_of_weights_is_refused() -> None:
    s = torch.zeros(2, 3)
    with pytest.raises(ConfigError, match="weights must be a tensor or a sparse matrix"):
        race.utility(s, s, np.ones((2, 3)), torch.ones(1), 2, generator=seeded(0))
    pattern = csc_matrix(np.ones((2, 3)))
    with pytest.raises(ConfigError, match="documents must be a CSR matrix"):
        race.exposure(s, s, torch.ones(1), 2, samples=1, generator=seeded(0), documents=pattern)


def test_a_list_of_one_out_of_everything_has_its_exposure_exactly() -> None:
    s_c, s_r = torch.zeros(2, 4), torch.tensor([[0.3, -1.0, 2.0, 0.5], [1.0, 1.0, 0.0, 3.0]])
    s_c[1, 3] = -torch.inf  # not available, whatever the re-ranker thinks of it
    found = {}
    for samples in (1, 3):
        g = torch.Generator().manual_seed(samples)
        found[samples] = race.exposure(s_c, s_r, torch.tensor([0.8]), 4, samples=samples, generator=g)
    for rho, error in found.values():
        expected = [enumeration.exposure([0.0] * n, s_r[row, :n].tolist(), [0.8], n) for row, n in ((0, 4), (1, 3))]
        assert rho[0].tolist() == pytest.approx(expected[0], abs=1e-6)
        assert rho[1].tolist() == pytest.approx([*expected[1], 0.0], abs=1e-6)
        assert not error.any()
