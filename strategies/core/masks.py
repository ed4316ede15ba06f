"""Bits, eight a byte: masks of public samples, and which test images a model gets right.

Two models are compared with less noise by the images that only one of them gets right. Clients send
these answers with the counts of an evaluation where ``record-answers`` asks for them.
"""

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.core.replies import InvalidReplyError


def unpacked_mask(bits: NDArray[Any], size: int) -> NDArray[np.bool_]:
    """Decode a mask (P,) of `numpy.packbits`."""
    return np.unpackbits(bits, count=size).astype(np.bool_)


ANSWERS = "answers"
"""Name of the answers in the record ``info`` of a reply, and their column in ``clients.jsonl``."""


def packed_answers(right: NDArray[np.bool_]) -> bytes:
    """Return which answers are right, shape (images,), in eight bits a byte."""
    return np.packbits(right).tobytes()


def unpacked_answers(answers: bytes, images: int) -> NDArray[np.bool_]:
    """Return which answers are right, shape (images,)."""
    return unpacked_mask(np.frombuffer(answers, np.uint8), images)


def as_text(answers: bytes) -> str:
    """Return packed answers as text that JSON can hold."""
    return base64.b64encode(answers).decode("ascii")


def from_text(text: str) -> bytes:
    """Return packed answers from the text of `as_text`. Raises `ValueError` for others."""
    return base64.b64decode(text, validate=True)


def check_answers(answers: bytes, correct: float, images: int) -> None:
    """Refuse answers that contradict the counts of the same reply."""
    if len(answers) != -(-images // 8):
        raise InvalidReplyError(
            f"sends {len(answers)} bytes of answers, which do not fit its {images} test images"
        )
    right = unpacked_answers(answers, images)
    if right.sum() != correct or packed_answers(right) != answers:
        raise InvalidReplyError(f"sends answers of which not {correct:g} are right, as it reports")
