"""The generated pages are those of today's table."""

import pytest

from lightrft.config.flags import FLAGS, GROUPS
from lightrft.config.flags_doc import flags_page, pages, status_page


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_the_page_is_up_to_date(path):
    hint = "run python -m lightrft.config.flags_doc"
    assert path.is_file(), hint
    assert path.read_text() == pages()[path], hint


def test_every_flag_has_a_row_in_its_group():
    text = flags_page()
    for group in GROUPS:
        section = text.split(f"## {group.name.capitalize()}\n")[1].split("\n## ")[0]
        for flag in group.flags:
            assert (f"| `--{flag.name}` |" in section) is not flag.hidden


def test_every_flag_acts_or_waits():
    acting, waiting = (
        status_page().split("## Flags that act")[1],
        status_page().split("## Flags that wait")[1],
    )
    for flag in FLAGS.values():
        if not flag.hidden:
            assert (f"`--{flag.name}`" in acting) != (f"\n| `--{flag.name}` |" in waiting)
