"""What numba compiles at its first use: plain loops over one query at a time. The module of the same name outside has the law.

- `compiled`: how a kernel is compiled, and kept on disk
- `float32`: random bits, clocks, exp and log on whole vectors
- `draws`: both races of one sample, and the lists they show, many or one at a time
- `race`: values, gradients and exposures by the race
- `plackett_luce`: sampling for simulation; `reinforce`: the paper's gradient
- `products`: scores of very many documents, and bounds of them from one byte per number
- `lazy_race`: candidates out of very many documents; `sparse_race`: gradients on few of them
"""
