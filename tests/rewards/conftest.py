"""Rollouts from texts, and graders as a user writes them."""

import textwrap

import pytest

from lightrft.types import Prompt, Rollout


@pytest.fixture
def rollouts():
    """`rollouts(["4", "5"], ["4"])`: one rollout per response, all to a prompt with these references."""

    def _rollouts(responses, references=(), prompt="1+1="):
        return [
            Rollout(Prompt(i, [1], prompt, list(references), source=f"a.jsonl:{i + 1}"), 0, [2], text, "stop")
            for i, text in enumerate(responses)
        ]

    return _rollouts


@pytest.fixture
def user_file(tmp_path):
    """`user_file(source)`: the path of a Python file with that source."""

    def _user_file(source, name="mine.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(source))
        return path

    return _user_file
