"""Our optimiser beside torch's."""

import torch

from tandemrank._base.adam import Adam


def test_adam_goes_the_way_of_torch() -> None:
    """With decay and without, with another rate in between, and of a parameter without a gradient."""
    torch.manual_seed(1)
    start = [torch.randn(4, 3), torch.randn(5), torch.randn(2)]
    ours, theirs = ([x.clone().requires_grad_() for x in start] for _ in range(2))
    mine = Adam(ours[:1], 0.1, decay=0.05, plain=ours[1:])
    groups = [{"params": theirs[:1], "weight_decay": 0.05}, {"params": theirs[1:], "weight_decay": 0.0}]
    other = torch.optim.AdamW(groups, lr=0.1)
    for step in range(30):
        if step == 10:
            mine.lr = 0.03
            for group in other.param_groups:
                group["lr"] = 0.03
        for optimiser, x in ((mine, ours), (other, theirs)):
            optimiser.zero_grad()
            sum(((one - 1) ** 4).sum() for one in x[:2]).backward()  # the last one has no gradient
            optimiser.step()
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)
