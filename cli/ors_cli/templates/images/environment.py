"""A reading test: the agent gets the picture of a number and answers which number it is.

Images are blocks like texts: in a prompt (`get_prompt`) and in the result of a tool (`zoom`). The pictures are drawn
here, so that no file is needed; where yours are files, give `image` their bytes.
"""

import base64
import struct
import zlib
from random import Random

from pydantic import BaseModel, Field

from ors_server import Environment, ImageBlock, JSONObject, TextBlock, ToolOutput, tool

# The digits from 0 to 9, each five rows of three pixels.
DIGITS = [
    ["111", "101", "101", "101", "111"],
    ["010", "110", "010", "010", "111"],
    ["111", "001", "111", "100", "111"],
    ["111", "001", "111", "001", "111"],
    ["101", "101", "111", "001", "001"],
    ["111", "100", "111", "001", "111"],
    ["111", "100", "111", "101", "111"],
    ["111", "001", "001", "001", "001"],
    ["111", "101", "111", "101", "111"],
    ["111", "101", "111", "001", "111"],
]

NUMBERS = Random(0).sample(range(1000, 10_000), 60)
# No number of one split is in the other.
TASKS: dict[str, list[JSONObject]] = {
    split: [{"id": f"{split}-{place}", "number": number} for place, number in enumerate(numbers)]
    for split, numbers in {"train": NUMBERS[:40], "test": NUMBERS[40:]}.items()
}


class Picture(BaseModel):
    """A task, checked."""

    id: str
    number: int = Field(ge=1000, le=9999)


class ZoomInput(BaseModel):
    """Input of the tool `zoom`."""

    place: int = Field(ge=1, le=4, description="Which digit, from the left: 1 to 4.")


class AnswerInput(BaseModel):
    """Input of the tool `answer`."""

    number: int = Field(ge=0, le=9999, description="The number in the picture.")


class TemplateEnvironment(Environment):
    """One instance is one episode."""

    # Clients and data sets get the tasks without it: the picture is all that the agent sees of the number.
    private_task_fields = ("number",)

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006 - never changed
        super().__init__(task_spec, secrets)
        self.task = Picture.model_validate(task_spec)

    @classmethod
    def name(cls) -> str:
        """Return the name by which clients find this environment."""
        return "template-environment"

    @classmethod
    def list_splits(cls) -> list[str]:
        """List the splits."""
        return list(TASKS)

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        """List the tasks of a split."""
        return TASKS[split]

    def get_prompt(self) -> list[TextBlock | ImageBlock]:
        """Return the question and the picture. The same task always has the same picture: its noise has a seed."""
        text = "Which number is in this picture? Look at single digits with `zoom` if you need to, then call `answer`."
        return [TextBlock(text=text), image(drawn(str(self.task.number), scale=6, noise=Random(self.task.id)))]

    @tool(concurrent=True)
    def zoom(self, params: ZoomInput) -> ToolOutput:
        """Look at one digit, enlarged and without noise."""
        digit = str(self.task.number)[params.place - 1]
        return ToolOutput(blocks=[TextBlock(text=f"Digit {params.place}:"), image(drawn(digit, scale=12))])

    @tool(exclusive=True)
    def answer(self, params: AnswerInput) -> ToolOutput:
        """Answer which number is in the picture. There is one try."""
        right = params.number == self.task.number
        text = "Right." if right else "Wrong."
        return ToolOutput(blocks=[TextBlock(text=text)], reward=1.0 if right else 0.0, finished=True)


def image(content: bytes, kind: str = "image/png") -> ImageBlock:
    """Return a block with the bytes of an image file. Clients and models get them as base64."""
    return ImageBlock(data=base64.b64encode(content).decode(), mimeType=kind)


def drawn(number: str, scale: int, noise: Random | None = None) -> bytes:
    """Draw digits in dark grey on light grey, each of their pixels `scale` pixels wide. Return a PNG file."""
    rows: list[bytes] = []
    for y in range(7 * scale):
        row = bytearray()
        for x in range((4 * len(number) + 1) * scale):
            line = y // scale - 1
            place, across = divmod(x // scale - 1, 4)
            ink = across < 3 and 0 <= line < 5 and DIGITS[int(number[place])][line][across] == "1"
            row.append((70 if ink else 185) + (noise.randint(-70, 70) if noise else 0))
        rows.append(bytes(row))
    return png(rows)


def png(rows: list[bytes]) -> bytes:
    """Return a PNG file of rows of pixels, a byte of grey each."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
