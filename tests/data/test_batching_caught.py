"""The cut into optimizer steps where it does not come out even."""

from lightrft.data.batching import step_slices


def test_the_last_step_takes_what_is_left():
    assert [list(rows) for rows in step_slices(5, 2)] == [[0, 1], [2, 3], [4]]
    assert [list(rows) for rows in step_slices(3, 8)] == [[0, 1, 2]]
