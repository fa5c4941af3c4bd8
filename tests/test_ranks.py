"""The place of a process among those of a launcher."""

import pytest

from tfm.data.errors import BackendError
from tfm.model.ranks import Place


def test_a_process_that_nobody_launched_is_alone() -> None:
    assert Place.here({"RANK": "3"}) == Place(rank=0, size=1, local=0)


def test_a_launched_process_knows_its_place() -> None:
    launched = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    assert Place.here(launched) == Place(rank=3, size=4, local=1)
    del launched["LOCAL_RANK"]
    assert Place.here(launched) == Place(rank=3, size=4, local=0)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"WORLD_SIZE": "2"}, "RANK=: .*torchrun"),
        ({"WORLD_SIZE": "two", "RANK": "0"}, "WORLD_SIZE=two: "),
        ({"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "-1"}, "LOCAL_RANK=-1: "),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK=2: must be below WORLD_SIZE=2"),
        ({"WORLD_SIZE": "0", "RANK": "0"}, "RANK=0: must be below WORLD_SIZE=0"),
    ],
)
def test_what_is_no_place_is_refused_with_the_variable(
    environment: dict[str, str], message: str
) -> None:
    with pytest.raises(BackendError, match=message):
        Place.here(environment)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 12])
def test_the_shares_of_all_ranks_are_all_items_once(size: int) -> None:
    items = list(range(10))
    shares = [Place(rank, size).share(items) for rank in range(size)]
    assert sorted(item for share in shares for item in share) == items
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
