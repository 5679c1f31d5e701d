"""Random numbers: streams keep their numbers, and every splitmix64 is the same one."""

import numpy as np
import pytest
import torch

import race_oracle
from tandemrank._base import random
from tandemrank._base.random import GOLDEN, Stream
from tandemrank.gradients._kernels import draws

WORDS = np.random.default_rng(0).integers(0, 2**64, 1000, dtype=np.uint64)


def plain_mix(x: int) -> int:
    """Splitmix64's finaliser in plain Python (Steele, Lea, Flood 2014)."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def test_streams_keep_their_numbers() -> None:
    """What is drawn for a seed depends on them: another number is another log, another split, other folds."""
    assert [(s.name, s.value) for s in Stream] == [
        ("USERS", 0), ("LISTS", 1), ("CLICKS", 2), ("HELD_OUT", 3), ("FIT_HELD_OUT", 4), ("FOLDS", 5),
        ("NOISE", 6), ("PAIRS", 7),
    ]  # fmt: skip


def test_the_published_numbers_of_splitmix64() -> None:
    """The first outputs for the seed 1234567."""
    states = [(1234567 + (n + 1) * int(GOLDEN)) % 2**64 for n in range(3)]
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [plain_mix(x) for x in states] == expected
    assert random.mix(np.array(states, np.uint64)).tolist() == expected


def test_all_implementations_of_splitmix64_are_one() -> None:
    expected = [plain_mix(int(x)) for x in WORDS]
    assert random.mix(WORDS).tolist() == expected
    assert [int(draws.mix64(x)) for x in WORDS] == expected
    for number in (0, 1, 5):
        streams = [plain_mix((int(x) + (number + 1) * int(GOLDEN)) % 2**64) for x in WORDS]
        assert [int(draws.stream(x, np.uint64(number))) for x in WORDS] == streams
        words = torch.from_numpy(WORDS.view(np.int64))
        assert race_oracle._stream(words, torch.tensor(number)).numpy().view(np.uint64).tolist() == streams


@pytest.mark.parametrize("stream", Stream)
def test_keys_are_a_function_of_seed_stream_and_number(stream) -> None:
    def key(seed: int, number: int) -> int:
        base = plain_mix((plain_mix(seed % 2**64) + (stream + 1) * int(GOLDEN)) % 2**64)
        return plain_mix((base + number * int(GOLDEN)) % 2**64)

    for seed in (0, 7, -1, 2**63):
        assert random.random_keys(seed, stream, [0, 1, 10**6]).tolist() == [key(seed, n) for n in (0, 1, 10**6)]
