"""JSON over HTTP to a server that may be slow, busy or just restarting: many requests at once, each retried.

The secret of the server comes from the environment and goes into a header, and nowhere else.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import re
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from lightrft.errors import ConfigError, RewardError

log = logging.getLogger(__name__)

RETRIED = (408, 425, 429)  # and every 5xx: the same request may succeed later
SHOWN_CHARACTERS = 300  # of what a server says


@dataclass(frozen=True)
class HttpOptions:
    """How patient a run is. All times in seconds; `patience` stays well below a collective's time-out."""

    timeout: float = 120.0  # silence that ends a try
    patience: float = 600.0  # from the first try of a request until it is given up
    first_wait: float = 0.5  # before the second try; each further one waits twice as long
    longest_wait: float = 30.0
    concurrency: int = 32  # requests in flight, of each rank


class _Transient(Exception):
    """A try that failed for a reason that may pass."""


class _NoRedirects(HTTPRedirectHandler):
    """A redirect would carry the secret to another host, and turn a POST into a GET."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class JsonClient:
    """Posts JSON to the `url` that `flag` gave; the bearer token is read from `token_variable`, if set.

    Raises:
        ConfigError: the URL is not one of http or https, carries a secret, or the token cannot be sent.
    """

    def __init__(self, url: str, flag: str, token_variable: str, options: HttpOptions | None = None) -> None:
        _check_url(url, flag, token_variable)
        self.url = url
        self.flag = flag
        self.token_variable = token_variable
        self.options = options or HttpOptions()
        self._token = _token(token_variable)
        self._opener = build_opener(_NoRedirects)
        self._jitter = random.Random()  # its own: the global generator is part of a run's state
        self._warned = False

    def post_all(self, payloads: Sequence[Any]) -> list[Any]:
        """The answer to each payload, in order. The first that fails for good ends the others.

        Raises:
            RewardError: the server refuses a request, answers something else than JSON, or stays down.
        """
        if not payloads:
            return []
        self._warned = False
        stop = threading.Event()
        pool = ThreadPoolExecutor(min(self.options.concurrency, len(payloads)), "http")
        try:
            futures = [pool.submit(self._post, payload, stop) for payload in payloads]
            for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                future.result()
            return [future.result() for future in futures]
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)

    def _post(self, payload: Any, stop: threading.Event) -> Any:
        body = json.dumps(payload).encode()
        started = time.monotonic()
        for tries in itertools.count(1):
            try:
                return self._parsed(self._send(body))
            except _Transient as failure:
                self._warn(failure)
                pause = self._pause(tries)
                spent = time.monotonic() - started
                if spent + pause > self.options.patience or stop.wait(pause):
                    raise RewardError(
                        f"{self.flag} {self.url}: no answer in {tries} tries over {spent:.0f} s: {failure}"
                    ) from failure
        raise AssertionError("unreachable")

    def _warn(self, failure: _Transient) -> None:
        """Say once a call why it takes long."""
        if not self._warned:
            self._warned = True
            patience = self.options.patience
            log.warning("%s %s: %s; trying for up to %.0f s", self.flag, self.url, failure, patience)

    def _pause(self, tries: int) -> float:
        """Seconds until the next try, spread so that many requests do not come back as one wave."""
        longest = min(self.options.longest_wait, self.options.first_wait * 2 ** min(tries - 1, 16))
        return longest * self._jitter.uniform(0.5, 1.0)

    def _send(self, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = Request(self.url, body, headers)
        try:
            with self._opener.open(request, timeout=self.options.timeout) as response:
                return response.read()
        except HTTPError as error:
            raise self._status_error(error) from error
        except (OSError, HTTPException) as error:
            raise _Transient(self._shown(str(error) or type(error).__name__)) from error

    def _status_error(self, error: HTTPError) -> Exception:
        status = f"status {error.code} {error.reason}"
        if error.code >= 500 or error.code in RETRIED:
            return _Transient(status)
        if 300 <= error.code < 400:
            where = error.headers.get("Location")
            return RewardError(f"{self.flag} {self.url}: it redirects to {where}: give the final URL")
        hint = f" (its token is read from {self.token_variable})" if error.code in (401, 403) else ""
        return RewardError(f"{self.flag} {self.url}: {status}{hint}: {self._body(error)}")

    def _body(self, error: HTTPError) -> str:
        """How a refusal begins."""
        try:
            with error:
                return self._shown(error.read(SHOWN_CHARACTERS).decode(errors="replace"))
        except (OSError, HTTPException) as broken:
            return f"why could not be read ({type(broken).__name__})"

    def _shown(self, text: str) -> str:
        """One line of what the other side said; without our token, which some servers echo."""
        if self._token:
            text = text.replace(self._token, "<hidden>")
        return " ".join(text.split())[:SHOWN_CHARACTERS]

    def _parsed(self, raw: bytes) -> Any:
        try:
            return json.loads(raw)
        except ValueError as error:
            said = self._shown(raw[:SHOWN_CHARACTERS].decode(errors="replace"))
            raise RewardError(f"{self.flag} {self.url}: the answer is not JSON: {said}") from error


def _check_url(url: str, flag: str, token_variable: str) -> None:
    try:
        parts = urlsplit(url)
        port_is_a_number = parts.port is None or parts.port > 0
    except ValueError:
        port_is_a_number = False
    if "@" in url:
        raise ConfigError(f"{flag}: a user or password in the URL would be printed: export {token_variable}")
    if not port_is_a_number or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{flag} {url}: this is no URL of a server: give one like http://host:30000")


def _token(variable: str) -> str:
    """The token in the environment, "" without one. One that no header can carry is not shown either."""
    token = os.environ.get(variable, "").strip()
    if token and not re.fullmatch(r"[\x21-\x7e]+", token):
        raise ConfigError(f"{variable}: it holds spaces or characters outside ASCII, which no token has")
    return token
