"""What can go wrong with one request. Each fault is data; called with an exchange, it takes the request over."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from tests.faults.exchange import Answer, Exchange, Headers

PAGE = b"<!DOCTYPE html><html><body>Please log in</body></html>"
HTML: Headers = (("Content-Type", "text/html; charset=utf-8"),)


@dataclass(frozen=True)
class Say:
    """Do nothing, and answer."""

    status: int
    body: bytes = b""
    headers: Headers = ()

    def __call__(self, exchange: Exchange) -> None:
        exchange.read_body()
        exchange.answer(self.status, self.body, *self.headers)


@dataclass(frozen=True)
class HangUp:
    """Do nothing, and close the connection without a word."""

    def __call__(self, exchange: Exchange) -> None:
        exchange.hang_up()


@dataclass(frozen=True)
class LoseAnswer:
    """Do what is asked; the answer is lost."""

    def __call__(self, exchange: Exchange) -> None:
        exchange.read_body()
        exchange.perform()
        exchange.hang_up()


@dataclass(frozen=True)
class CutAnswer:
    """Do what is asked; after ``share`` of the answer's bytes, of head and body, the connection is reset."""

    share: float

    def __call__(self, exchange: Exchange) -> None:
        exchange.read_body()
        answer = exchange.perform()
        content = answer.on_the_wire(len(answer.body))
        exchange.send(content[: int(self.share * len(content))])
        exchange.hang_up(abruptly=True)


@dataclass(frozen=True)
class Truncate:
    """Do what is asked, and send only the first part of the answer's body.

    Args:
        keep: that part, in bytes or as a share in [0, 1).
        length: Content-Length is right, or it is wrong and says no more than what is sent, or there is none.
    """

    keep: int | float
    length: Literal["right", "wrong", "none"] = "right"

    def __call__(self, exchange: Exchange) -> None:
        exchange.read_body()
        answer = exchange.perform()
        kept = answer.body[: self.keep if isinstance(self.keep, int) else int(self.keep * len(answer.body))]
        said = {"right": len(answer.body), "wrong": len(kept), "none": None}[self.length]
        exchange.send(Answer(answer.status, kept, answer.headers).on_the_wire(said))
        if said != len(kept):
            exchange.hang_up()


@dataclass(frozen=True)
class Duplicate:
    """Do what is asked twice over; one of the answers comes back."""

    answers_first: bool

    def __call__(self, exchange: Exchange) -> None:
        exchange.read_body()
        first, second = exchange.perform(), exchange.perform()
        exchange.reply(first if self.answers_first else second)


@dataclass(frozen=True)
class Delay:
    """Do what is asked, after a while."""

    seconds: float

    def __call__(self, exchange: Exchange) -> None:
        exchange.read_body()
        time.sleep(self.seconds)
        exchange.reply(exchange.perform())


@dataclass(frozen=True)
class Drip:
    """Do what is asked; the answer comes in so many pieces, with a pause after each."""

    pieces: int
    pause_s: float

    def __call__(self, exchange: Exchange) -> None:
        exchange.read_body()
        answer = exchange.perform()
        content = answer.on_the_wire(len(answer.body))
        step = -(-len(content) // self.pieces)
        for start in range(0, len(content), step):
            exchange.send(content[start : start + step])
            time.sleep(self.pause_s)


@dataclass(frozen=True)
class Stall:
    """Stop in the middle of the answer, until the client gives up."""

    longest_s: float = 60.0

    def __call__(self, exchange: Exchange) -> None:
        exchange.read_body()
        answer = exchange.perform()
        content = answer.on_the_wire(len(answer.body))
        exchange.send(content[: len(content) // 2])
        exchange.connection.settimeout(self.longest_s)
        exchange.rfile.read(1)  # nothing comes; it ends when the client hangs up
        exchange.hang_up()
