"""A teacher behind HTTP that speaks SGLang's /generate over a small model, and can misbehave."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch


class TeacherServer:
    """Serves `model` on a free port.

    `replies` are used up first, then `every_reply` where there is one; each is called with the handler and
    the honest answer. `requests` keeps the payloads, `headers` their headers, `most_at_once` how many were in
    work together.
    """

    def __init__(self, model, tokenizer):
        self.model = model
        self.tokenizer = tokenizer
        self.replies = []
        self.every_reply = None
        self.delay = 0.0
        self.requests = []
        self.headers = []
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), make_handler(self.serve))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def serve(self, handler):
        payload = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self._lock:
            self.requests.append(payload)
            self.headers.append(dict(handler.headers))
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            reply = self.replies.pop(0) if self.replies else self.every_reply
        time.sleep(self.delay)
        try:
            if handler.path == "/generate":
                (reply or send)(handler, self.answer(payload))
            else:
                send(handler, {"error": f"no route {handler.path}"}, 404)
        except BrokenPipeError:  # the client has given up, as some tests want
            handler.close_connection = True
        finally:
            with self._lock:
                self._at_once -= 1

    @torch.no_grad()
    def answer(self, payload):
        """From the model's own logits at temperature 1, in the form of SGLang 0.5."""
        assert payload["return_logprob"] is True
        assert payload["sampling_params"] == {"max_new_tokens": 0, "temperature": 1.0}
        ids = payload["input_ids"] if "input_ids" in payload else self.tokenizer(payload["text"])["input_ids"]
        start = payload["logprob_start_len"]
        known = [i if i < self.model.config.vocab_size - 1 else 0 for i in ids]
        logprobs = self.model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        entries = [[logprobs[t - 1, ids[t]].item(), known[t], None] for t in range(start + 1, len(ids))]
        entries.insert(0, [None, known[start], None])
        return {"text": "", "meta_info": {"prompt_tokens": len(ids), "input_token_logprobs": entries}}


def make_handler(serve):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            serve(self)

        def log_message(self, *args):
            assert args  # silent: the client's words are what is tested

    return Handler


def send(handler, answer, status=200, headers=()):
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    handler.send_response(status)
    for name, value in headers:
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def failing(status, body=b"busy", headers=()):
    """A reply with an error status."""
    return lambda handler, answer: send(handler, body, status, headers)


def changed(change):
    """A reply whose log-prob entries went through `change`."""

    def reply(handler, answer):
        entries = answer["meta_info"]["input_token_logprobs"]
        answer["meta_info"]["input_token_logprobs"] = change(entries)
        send(handler, answer)

    return reply
