"""Table 1 of the paper."""

from tandemrank.experiments.results import PaperRow

# Table 1 of the paper: NDCG@10, means of 25 runs.
PAPER = {
    "baseline": {500: (0.404, 0.437, 0.470), 1000: (0.401, 0.440, 0.469), 1500: (0.400, 0.441, 0.474)},
    "independent": {500: (0.410, 0.454, 0.489), 1000: (0.416, 0.465, 0.496), 1500: (0.416, 0.455, 0.496)},
    "joint": {500: (0.420, 0.470, 0.504), 1000: (0.426, 0.479, 0.504), 1500: (0.424, 0.472, 0.510)},
}
ROWS = tuple(
    PaperRow(method, K2, N, value)
    for method, by_K2 in PAPER.items()
    for K2, values in by_K2.items()
    for N, value in zip((100_000, 320_000, 1_000_000), values, strict=True)
)
