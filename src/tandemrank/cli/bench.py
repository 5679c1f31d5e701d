"""Measurements: tandemrank bench."""

import sys
from typing import Annotated

import typer

from tandemrank.cli.app import bench_app
from tandemrank.cli.options import Json, Seed
from tandemrank.cli.progress import working
from tandemrank.cli.terminal import print_summary


@bench_app.command("gradient")
def bench_gradient(
    as_json: Json = False,
) -> None:
    """Noise and time of the gradients: race against REINFORCE and PL-Rank-3, one thread, the paper's sizes."""
    from tandemrank.bench import gradient

    with working("measuring the gradients"):
        found = gradient.gradient()
    print_summary(found, as_json)


@bench_app.command("epoch")
def bench_epoch(as_json: Json = False) -> None:
    """Time of a joint training epoch at the paper's sizes, over that of its matrix products and optimiser steps alone."""
    from tandemrank.bench import epoch

    with working("measuring an epoch"):
        found = epoch.epoch()
    print_summary(found, as_json)


@bench_app.command("scale")
def bench_scale(
    items: Annotated[int, typer.Option(help="Items of the largest catalogue, D.", min=1)] = 1_000_000,
    candidates: Annotated[int, typer.Option(help="Candidates of the generator, K2.", min=1)] = 1000,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Time of a training step and of a recommendation against the number of items: sparse and dense race, exact retrieval."""
    from tandemrank.bench import scale

    with working("measuring growth with the items"):
        found = scale.measure(items, candidates, seed=seed)
    print_summary(found, as_json)


@bench_app.command("logs")
def bench_logs(
    impressions: Annotated[int, typer.Option(help="Length of the log, N.", min=1)] = 10_000_000,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Time and memory of reading and checking a log, over those of the bare polars group-by of the same files."""
    from tandemrank.bench import logs

    with working("impressions written, then read", impressions) as progress:
        found = logs.reading(impressions, seed=seed, progress=progress)
    print_summary(found, as_json)


@bench_app.command("bounds")
def bench_bounds(
    simulations: Annotated[int, typer.Option(help="Simulated logs of each distribution.", min=1)] = 1000,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """How often each lower bound holds, and how close it comes, on six distributions whose truth is known."""
    from tandemrank.bench import bounds

    with working("simulating logs"):
        found = bounds.measure(simulations=simulations, seed=seed)
    print_summary(found, as_json)


@bench_app.command("serve")
def bench_serve(
    quick: Annotated[
        bool, typer.Option("--quick", help="A tenth of everything, and no catalogue of a million.")
    ] = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """A live pair over HTTP against the same framework answering a constant; hot swaps, kill -9, replay. Loopback only."""
    from tandemrank.bench import serving

    size = serving.Size()
    if quick:
        size = serving.Size(
            latency=400, throughput=1600, swaps=2, swap_requests=1000, kills=2, replayed=10_000, million=0
        )
    with working("serving, swapping, killing, replaying"):
        found = serving.measure(size, seed=seed, say=lambda part: print(f"tandemrank: {part}", file=sys.stderr))  # noqa: T201
    print_summary(found.summary(), as_json)


@bench_app.command("canaries")
def bench_canaries(
    canaries: Annotated[int, typer.Option(help="Simulated canaries of equal pairs.", min=1)] = 1000,
    impressions: Annotated[int, typer.Option(help="Impressions of a canary, each looked at.", min=1)] = 2000,
    share: Annotated[float, typer.Option(help="Share of the new pair.", min=0.01, max=0.99)] = 0.5,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """How often equal pairs are rolled back, looking after every impression; how soon pairs with half the clicks are."""
    from tandemrank.bench import canaries as simulated

    with working("simulating canaries"):
        found = simulated.measure(canaries=canaries, impressions=impressions, share=share, seed=seed)
    print_summary(found.summary(), as_json)
