"""The noise of what a user's vector learns from, before and after the gradient's sum is taken out (docs/explanation/race.md).

    python benchmarks/noise.py --data ml-1m.zip --impressions 320000

Trains Joint from production for eight epochs, then draws the gradients of some users many times, one sample each. Prints the
ratio of the variances, summed over the numbers of the users' vectors. About two minutes.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import race_oracle
from tandemrank._base.config import resolve
from tandemrank.experiments.config import ExperimentConfig
from tandemrank.experiments.trainer import simulate_log
from tandemrank.experiments.world import build_world, load_task, start_policy
from tandemrank.gradients import _bridge
from tandemrank.training.config import TrainingConfig
from tandemrank.training.loop import train
from tandemrank.training.schedules import BOTH

USERS, ROUNDS, SAMPLES = 32, 25, 8


def main() -> None:
    """Trains, draws, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="synthetic")
    parser.add_argument("--impressions", type=int, default=100_000)
    parser.add_argument("--candidates", type=int, default=500)
    arguments = parser.parse_args()
    config, K2 = resolve(ExperimentConfig, flags={"data": arguments.data, "objective": "ips"}), arguments.candidates
    world = build_world(load_task(config), config, seed=0)
    w = simulate_log(world, config, arguments.impressions, seed=0).clicks.weights
    start = start_policy(world, config, K2)
    pair = train(start, w, world.theta, TrainingConfig(epochs=8), schedule=[BOTH]).policy
    q = np.flatnonzero(np.diff(w.indptr))
    depth = int(np.clip(200 * len(q) / w.nnz, 20, 100))
    with torch.no_grad():
        s, r = (stage(torch.as_tensor(q[:USERS])) for stage in (pair.generator, pair.ranker))
    vectors = [stage.items.detach().double() for stage in (pair.generator, pair.ranker)]
    weights, flat = torch.from_numpy(w[q[:USERS]].toarray()), torch.ones(depth)
    for name, scores, candidates in (("pair", s, K2), ("one stage alone", r, r.shape[1])):
        generator, drawn = torch.Generator().manual_seed(0), []
        for _ in range(ROUNDS):
            keys = _bridge.keys_for(USERS, generator)
            p, density, _, gain, slope, _ = race_oracle.race(scores, r, weights, flat, candidates, SAMPLES, keys)
            drawn += list(zip(density * gain, p * slope, strict=True))
        balanced = [race_oracle.balance(scores, r, candidates, flat, *pair_of) for pair_of in drawn]
        for stage in range(2) if candidates < r.shape[1] else (1,):
            before, after = (
                torch.stack([x[stage].double() @ vectors[stage] for x in found]).var(0).sum()
                for found in (drawn, balanced)
            )
            print(f"{name}, {('generator', 'ranker')[stage]}: variance {float(before / after):.1f} times smaller")


if __name__ == "__main__":
    main()
