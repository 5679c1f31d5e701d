"""Ablations on one cell (Joint, K2 = 500, N = 100,000): what each reading of the paper and each choice of ours is worth.

    python benchmarks/ablations.py --data ml-1m.zip --out runs/ablations --runs 3

Every row is a small grid of its own (`tandemrank table` with other switches), so it can be interrupted and run again: what
is finished is kept. Writes `ablations.md` and `ablations.json` in the folder.
"""

import argparse
from pathlib import Path

from tandemrank._base.config import resolve
from tandemrank._base.files import write_json, write_text
from tandemrank.experiments import grid
from tandemrank.experiments.config import PRESETS, ExperimentConfig, GridConfig

# The first of each group is the default. REINFORCE gets the epochs that take about as long as the default's training.
GROUPS: dict[str, dict[str, list[str]]] = {
    "gradient": {
        "race, 1 sample": [],
        "REINFORCE, 10 samples, 4 epochs, the paper's schedule": [
            "gradient=reinforce", "samples=10", "epochs=4", "schedule=paper",
        ],
    },
    "optimiser": {
        "steps along the gradient, falling rate": [],
        "constant rate": ["rate=constant"],
        "Adam, falling rate": ["query_step=adam", "learning_rate=0.05", "shared_rate=0.1"],
        "Adam, 0.01 for both, constant (the paper)": [
            "query_step=adam", "rate=constant", "learning_rate=0.01", "shared_rate=1",
        ],
    },
    "weights of the ranks": {
        "flat, automatic depth": [],
        "flat, depth 20": ["rank_weights=20"],
        "the examination curve (the paper)": ["rank_weights=examination"],
    },
    "stopping": {
        "16 epochs per phase, on all clicks": [],
        "8 epochs": ["epochs=8"],
        "32 epochs": ["epochs=32"],
        "by self-normalised DCG on held-out clicks": ["early_stopping=true"],
    },
    "readings of the paper": {
        "ours": [],
        "users start from zero": ["production=zero"],
        "SVD of a tenth of all ratings, all users": ["production=ratings", "logged_users=all"],
        "frequency propensities, clip 10/sqrt(N)": ["propensity=frequency", "clip=paper"],
        "exact propensities, clip 10/sqrt(N)": ["clip=paper"],
    },
    "start and steps": {
        "from the mean of stages trained alone, both from one draw, minibatch 256": [],
        "the mean itself": ["schedule=mean"],
        "from production, one after the other (the paper)": ["schedule=paper"],
        "minibatch 64": ["minibatch=64"],
        "minibatch 1024": ["minibatch=1024"],
    },
}  # fmt: skip


def main() -> None:
    """Runs what is missing and writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="synthetic")
    parser.add_argument("--out", type=Path, default=Path("runs/ablations"))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--impressions", type=int, default=100_000)
    parser.add_argument("--candidates", type=int, default=500)
    parser.add_argument("--group", choices=GROUPS, action="append", help="only this one; may be repeated")
    arguments = parser.parse_args()
    found: dict[str, list[dict[str, object]]] = {}
    for group, settings in GROUPS.items():
        if group not in (arguments.group or GROUPS):
            continue
        for name, switches in settings.items():
            experiment = resolve(
                ExperimentConfig, preset=PRESETS["tandem"], switches=switches, flags={"data": arguments.data}
            )
            config = GridConfig(
                experiment=experiment, methods=("joint",), runs=arguments.runs,
                candidates=(arguments.candidates,), impressions=(arguments.impressions,), references=False,
            )  # fmt: skip
            folder = arguments.out / ("default" if not switches else "-".join(switches).replace("/", "_"))
            row = grid.run(config, folder, resume=True)["rows"][0]
            found.setdefault(group, []).append({"setting": name, "switches": switches, **row})
            print(group, "|", name, "|", f"{row['ndcg_mean']:.4f}", flush=True)
    write_json(arguments.out / "ablations.json", found)
    write_text(arguments.out / "ablations.md", markdown(found))


def markdown(found: dict[str, list[dict[str, object]]]) -> str:
    """One small table a group."""
    text = ""
    for group, rows in found.items():
        text += (
            f"\n**{group[0].upper()}{group[1:]}**\n\n| setting | NDCG@10 | expected NDCG@10 | recall@K2 | seconds |\n"
        )
        text += "| --- | --- | --- | --- | --- |\n"
        for r in rows:
            level = f"{r['ndcg_mean']:.3f} [{r['ndcg_low']:.3f}, {r['ndcg_high']:.3f}]"
            rest = f"{r['ndcg_expected_mean']:.3f} | {r['recall_at_K2_mean']:.3f} | {r['seconds_mean']:.0f}"
            text += f"| {r['setting']} | {level} | {rest} |\n"
    return text


if __name__ == "__main__":
    main()
