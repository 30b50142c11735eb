"""A teacher behind a real HTTP server, which is at times slow, busy, down or wrong."""

import random
import socket
import threading
import time

import pytest
import torch
from transformers import AutoModelForCausalLM

from lightrft.errors import ConfigError, RewardError
from lightrft.models.http_client import HttpOptions
from lightrft.models.loading import ModelOptions, load_causal_lm, load_tokenizer
from lightrft.models.policy import Policy
from lightrft.models.remote_teacher import RemoteTeacher, check_remote_teacher
from lightrft.models.teacher import LocalTeacher
from lightrft.tools.make_tiny import make_tokenizer
from tests.models.experiences import make_experience
from tests.models.teacher_server import TeacherServer, changed, failing, send

SECRET = "sesame-0123456789"
QUICK = HttpOptions(timeout=5.0, patience=5.0, first_wait=0.01, longest_wait=0.05)
HASTY = HttpOptions(timeout=0.2, patience=0.3, first_wait=0.01, longest_wait=0.05)


@pytest.fixture(autouse=True)
def _no_proxy_and_no_token(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("LIGHTRFT_TEACHER_TOKEN", raising=False)


@pytest.fixture(scope="module")
def tokenizer(tiny_model):
    return load_tokenizer(str(tiny_model))


@pytest.fixture
def server(tiny_model, tokenizer):
    made = TeacherServer(AutoModelForCausalLM.from_pretrained(tiny_model), tokenizer)
    yield made
    made.close()


@pytest.fixture
def local(tiny_model):
    return LocalTeacher(Policy(load_causal_lm(ModelOptions(str(tiny_model)))), 2, "cpu")


def remote(server, tokenizer, options=QUICK):
    return RemoteTeacher(server.url, 1.0, tokenizer, options)


def assert_refused(server, tokenizer, reply, message):
    server.every_reply = reply
    with pytest.raises(RewardError, match=message) as refused:
        remote(server, tokenizer).logprobs(make_experience())
    return str(refused.value)


def test_the_server_s_logprobs_are_the_local_teacher_s(server, tokenizer, local):
    experience = make_experience()
    got = remote(server, tokenizer).logprobs(experience)
    assert (got.dtype, got.device.type, got.shape) == (torch.float32, "cpu", (3, 6))
    torch.testing.assert_close(got, local.logprobs(experience), rtol=0, atol=1e-5)
    assert sorted(r["logprob_start_len"] for r in server.requests) == [1, 2, 3]
    assert {len(r["input_ids"]) for r in server.requests} == {5, 6}


@pytest.mark.parametrize("path", ["/", "/generate"])
def test_the_url_may_name_the_route(server, tokenizer, path):
    teacher = RemoteTeacher(server.url + path, 1.0, tokenizer, QUICK)
    assert teacher.logprobs(make_experience()).abs().sum() > 0


def test_excluded_rows_are_not_sent(server, tokenizer, local):
    experience = make_experience(excluded=(0, 2))
    got = remote(server, tokenizer).logprobs(experience)
    torch.testing.assert_close(got, local.logprobs(experience), rtol=0, atol=1e-5)
    assert [r["input_ids"] for r in server.requests] == [[10, 11, 12, 13, 14, 1]]
    assert (remote(server, tokenizer).logprobs(make_experience(excluded=(0, 1, 2))) == 0).all()
    assert len(server.requests) == 1


def test_a_masked_token_inside_a_response_is_zero(server, tokenizer, local):
    experience = make_experience()
    experience.response_mask[1, 3] = 0
    got = remote(server, tokenizer).logprobs(experience)
    assert got[1, 3] == 0
    torch.testing.assert_close(got, local.logprobs(experience), rtol=0, atol=1e-5)


def test_many_requests_are_in_flight_and_answers_keep_their_rows(server, tokenizer, local):
    server.delay = 0.15
    experience = make_experience([([7, 8], [9 + i, 5]) for i in range(16)])
    got = remote(server, tokenizer).logprobs(experience)
    assert server.most_at_once > 4
    torch.testing.assert_close(got, local.logprobs(experience), rtol=0, atol=1e-5)


def test_two_errors_and_then_an_answer(server, tokenizer, local):
    server.replies = [failing(500), failing(503)]
    experience = make_experience(excluded=(0, 2))
    got = remote(server, tokenizer).logprobs(experience)
    torch.testing.assert_close(got, local.logprobs(experience), rtol=0, atol=1e-5)
    assert len(server.requests) == 3


def test_an_answer_that_takes_too_long_or_breaks_off_is_asked_for_again(server, tokenizer, local):
    def hang(handler, answer):
        time.sleep(0.6)

    def break_off(handler, answer):
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b'{"meta_info"')

    server.replies = [hang, break_off]
    experience = make_experience(excluded=(0, 2))
    options = HttpOptions(timeout=0.3, patience=5.0, first_wait=0.01)
    got = remote(server, tokenizer, options).logprobs(experience)
    torch.testing.assert_close(got, local.logprobs(experience), rtol=0, atol=1e-5)
    assert len(server.requests) == 3


def test_a_server_that_stays_down_ends_the_run(tokenizer, caplog):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    started = time.monotonic()
    with pytest.raises(RewardError, match=rf"^--teacher_model_url {url}/generate: no answer in \d+ tries"):
        RemoteTeacher(url, 1.0, tokenizer, HASTY).logprobs(make_experience())
    assert time.monotonic() - started < 3
    assert len([r for r in caplog.records if "trying for up to" in r.getMessage()]) >= 1


def test_errors_that_stay_end_the_run(server, tokenizer):
    server.every_reply = failing(500)
    with pytest.raises(RewardError, match="status 500"):
        remote(server, tokenizer, HASTY).logprobs(make_experience())
    assert len(server.requests) > 3


def _request_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("http_")]


def test_one_failing_row_ends_the_others(server, tokenizer):
    """Fifty rows that would be retried for long, one of them refused for good."""
    server.replies = [failing(400, b"too long")]
    server.every_reply = failing(503)
    options = HttpOptions(timeout=5, patience=60.0, first_wait=20.0, longest_wait=20.0, concurrency=4)
    started = time.monotonic()
    with pytest.raises(RewardError, match="status 400"):
        remote(server, tokenizer, options).logprobs(make_experience([([7], [8])] * 50))
    assert time.monotonic() - started < 5
    assert len(server.requests) < 50
    while time.monotonic() - started < 5 and _request_threads():
        time.sleep(0.01)
    assert not _request_threads()


def test_a_refusal_is_not_repeated_and_says_what_the_server_said(server, tokenizer):
    experience = make_experience(excluded=(0, 2))
    server.every_reply = failing(400, b'{"error": {"message": "6 tokens exceed the context of 4"}}')
    with pytest.raises(RewardError, match=r"status 400 Bad Request: .*6 tokens exceed the context of 4"):
        remote(server, tokenizer).logprobs(experience)
    assert len(server.requests) == 1


@pytest.mark.parametrize("bad", [None, float("nan"), float("-inf"), "-1.0"])
def test_a_logprob_that_is_no_number_names_its_row(server, tokenizer, bad):
    def spoil(entries):
        return entries if len(entries) < 5 else [*entries[:2], [bad, *entries[2][1:]], *entries[3:]]

    assert_refused(
        server,
        tokenizer,
        changed(spoil),
        rf"response 1 of this rank: the log-prob of token number 3 is {bad}",
    )


@pytest.mark.parametrize("change", [lambda e: e[:-1], lambda e: [*e, e[-1]], lambda e: []])
def test_too_few_or_too_many_logprobs(server, tokenizer, change):
    reply = changed(lambda entries: entries if len(entries) < 5 else change(entries))
    assert_refused(server, tokenizer, reply, r"response 1 of this rank: \d log-probs came back for 5 tokens")


def test_other_ids_than_were_sent(server, tokenizer):
    reply = changed(lambda entries: [[logprob, i + 1, text] for logprob, i, text in entries])
    assert_refused(
        server, tokenizer, reply, r"token \d+ came back as \d+: the teacher has another vocabulary"
    )


def test_the_last_id_comes_back_as_zero_and_no_other(server, tokenizer, local):
    """SGLang reports ids from vocab_size - 1 on as 0."""
    last = len(tokenizer) - 1
    experience = make_experience([([7, last], [last, 5])])
    got = remote(server, tokenizer).logprobs(experience)
    torch.testing.assert_close(got, local.logprobs(experience), rtol=0, atol=1e-5)
    assert_refused(
        server,
        tokenizer,
        changed(lambda entries: [[logprob, 0, text] for logprob, _, text in entries]),
        "came back as 0",
    )


@pytest.mark.parametrize(
    "answer",
    [b"<html>hello</html>", {}, {"meta_info": {}}, [], {"meta_info": {"input_token_logprobs": None}}],
)
def test_an_answer_of_another_kind(server, tokenizer, answer):
    message = "is not JSON: <html>" if isinstance(answer, bytes) else "no meta_info.input_token_logprobs"
    assert_refused(server, tokenizer, lambda handler, honest: send(handler, answer), message)


def test_the_token_is_sent_and_never_shown(server, tokenizer, monkeypatch, caplog):
    monkeypatch.setenv("LIGHTRFT_TEACHER_TOKEN", SECRET)
    server.replies = [failing(503)]
    remote(server, tokenizer).logprobs(make_experience(excluded=(0, 2)))
    assert server.headers[0]["Authorization"] == f"Bearer {SECRET}"
    echo = f"unknown key {SECRET}".encode()
    message = assert_refused(server, tokenizer, failing(401, echo), "read from LIGHTRFT_TEACHER_TOKEN")
    assert "unknown key <hidden>" in message
    message += assert_refused(server, tokenizer, lambda h, _: send(h, echo), "not JSON")
    assert SECRET not in message + caplog.text
    monkeypatch.setenv("LIGHTRFT_TEACHER_TOKEN", "two words of secret")
    with pytest.raises(ConfigError, match=r"^LIGHTRFT_TEACHER_TOKEN: ") as refused:
        remote(server, tokenizer)
    assert "secret" not in str(refused.value)


def test_without_a_token_there_is_no_such_header(server, tokenizer):
    remote(server, tokenizer).logprobs(make_experience())
    assert all("Authorization" not in headers for headers in server.headers)


def test_a_redirect_is_not_followed(server, tokenizer, monkeypatch):
    monkeypatch.setenv("LIGHTRFT_TEACHER_TOKEN", SECRET)
    elsewhere = f"{server.url}/elsewhere"
    reply = failing(302, b"", [("Location", elsewhere)])
    assert_refused(server, tokenizer, reply, f"redirects to {elsewhere}: give the final URL")
    assert len(server.requests) <= 3


def test_waiting_leaves_the_global_random_state_alone(server, tokenizer):
    server.replies = [failing(500), failing(500)]
    state = random.getstate()
    remote(server, tokenizer).logprobs(make_experience())
    assert random.getstate() == state


def test_another_temperature_is_refused(server, tokenizer):
    check_remote_teacher(1.0)
    with pytest.raises(
        ConfigError, match=r"--temperature 0.7: .*use --temperature 1.0, or .*--teacher_pretrain"
    ):
        RemoteTeacher(server.url, 0.7, tokenizer)


@pytest.mark.parametrize("url", ["teacher:30000", "file:///etc/hosts", "http://", "http://host:port"])
def test_what_is_no_server_is_refused(tokenizer, url):
    with pytest.raises(ConfigError, match="this is no URL of a server"):
        RemoteTeacher(url, 1.0, tokenizer)


def test_a_password_in_the_url_is_refused_unseen(tokenizer):
    with pytest.raises(ConfigError, match="export LIGHTRFT_TEACHER_TOKEN") as refused:
        RemoteTeacher(f"http://me:{SECRET}@host:30000", 1.0, tokenizer)
    assert SECRET not in str(refused.value)


def test_the_server_s_vocabulary_is_compared(server, tokenizer):
    remote(server, tokenizer).check_vocabulary()
    assert all("text" in request for request in server.requests)
    with pytest.raises(ConfigError, match="the teacher has another vocabulary: 'The answer"):
        remote(server, make_tokenizer("bytes")).check_vocabulary()


def test_special_tokens_are_compared_too(server, tokenizer):
    own = make_tokenizer("chars")
    own.add_tokens(["<think>"], special_tokens=True)
    with pytest.raises(ConfigError, match=r"another vocabulary: '<pad>.*<think>'"):
        remote(server, own).check_vocabulary()


def test_a_server_that_puts_bos_in_front_has_the_same_vocabulary(server, tokenizer):
    server.tokenizer = lambda text: {"input_ids": [1, *tokenizer(text)["input_ids"]]}
    remote(server, tokenizer).check_vocabulary()
    assert len(server.requests) == 2
