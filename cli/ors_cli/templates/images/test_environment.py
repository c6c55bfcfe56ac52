"""Tests of the environment: the grading, the pictures, and whole episodes. Run `pytest` here."""

import base64
import struct
import zlib
from statistics import mean

from environment import DIGITS, TASKS, AnswerInput, TemplateEnvironment, ZoomInput
from ors_clients import local_sync

from ors_server import ImageBlock

TASK = TASKS["train"][0]


def test_the_right_number_is_rewarded_and_no_other() -> None:
    environment = TemplateEnvironment(TASK)
    number = environment.task.number
    for given, reward in {number: 1.0, number - 1: 0.0, 0: 0.0}.items():
        output = environment.answer(AnswerInput(number=given))
        assert (output.reward, output.finished) == (reward, True)


def test_the_prompt_shows_the_number() -> None:
    """And shows the same picture again: the episodes of a group have to have the same prompt."""
    _, picture = TemplateEnvironment(TASK).get_prompt()
    assert isinstance(picture, ImageBlock)
    assert picture.mimeType == "image/png"
    assert read(picture, scale=6) == TemplateEnvironment(TASK).task.number
    assert TemplateEnvironment(TASK).get_prompt()[1] == picture


def test_the_result_of_a_tool_has_an_image() -> None:
    output = TemplateEnvironment(TASK).zoom(ZoomInput(place=4))
    assert isinstance(output.blocks[1], ImageBlock)
    assert read(output.blocks[1], scale=12) == TemplateEnvironment(TASK).task.number % 10


def test_no_number_of_the_test_is_in_the_training() -> None:
    train, test = ({str(task["number"]) for task in TASKS[split]} for split in ("train", "test"))
    assert train.isdisjoint(test)


def test_episodes() -> None:
    """Every task of the test split is played under the server's rules, by an agent that reads the picture."""
    for index in range(len(TASKS["test"])):
        with local_sync(TemplateEnvironment, split="test", index=index) as session:
            _, picture = session.prompt()
            assert isinstance(picture, ImageBlock)
            assert len(session.call("zoom", {"place": 1}).images) == 1
            result = session.call("answer", {"number": read(picture, scale=6)})
            assert (result.reward, result.finished) == (1.0, True)


def read(picture: ImageBlock, scale: int) -> int:
    """Read the digits of a picture: a pixel of a digit is dark where most of its square is."""
    content = base64.b64decode(picture.data)
    width, _, length = struct.unpack(">II9xI", content[16:37])
    pixels = zlib.decompress(content[41 : 41 + length])
    rows = [pixels[start + 1 : start + 1 + width] for start in range(0, len(pixels), width + 1)]

    def dark(column: int, line: int) -> str:
        square = (row[column * scale : (column + 1) * scale] for row in rows[line * scale : (line + 1) * scale])
        return "1" if mean(byte for part in square for byte in part) < 128 else "0"

    text = ""
    for first in range(1, width // scale, 4):
        digit = ["".join(dark(first + across, line) for across in range(3)) for line in range(1, 6)]
        text += str(DIGITS.index(digit))
    return int(text)
