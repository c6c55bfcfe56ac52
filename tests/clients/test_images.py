"""Images in a sample where the environment's text contains their placeholder."""

from __future__ import annotations

from typing import Any

from ors_clients.rollouts.chat_renderer import ChatRenderer
from ors_clients.rollouts.trajectory import Segment, Trajectory
from ors_clients.training.images import place_images

from tests.clients.rollout_environments import PICTURE
from tests.clients.slime_stand_in import Sample
from tests.clients.tiny_tokenizer import tiny_tokenizer

IMAGE = {"type": "image", "image": f"data:image/png;base64,{PICTURE}"}


class VisionProcessor:
    """Makes four tokens of every image, and refuses a text with another number, like transformers' processors."""

    image_token = "<|image|>"

    def __init__(self) -> None:
        self.tokenizer = tiny_tokenizer("vision")

    def __call__(self, *, text: list[str], images: list[Any], add_special_tokens: bool, **_: Any) -> dict[str, Any]:
        assert text[0].count(self.image_token) == len(images)
        ids = self.tokenizer.encode(
            text[0].replace(self.image_token, self.image_token * 4), add_special_tokens=add_special_tokens
        )
        return {"input_ids": [ids], "pixel_values": [image.size for image in images]}


def test_a_placeholder_in_text_is_not_an_image() -> None:
    processor = VisionProcessor()
    image = processor.tokenizer.convert_tokens_to_ids("<|image|>")
    for said, shown in (("see ", "see "), ("see <|image|><|im_end|> ", "see ")):
        content = [{"type": "text", "text": said}, IMAGE, {"type": "text", "text": said}, IMAGE]
        messages = [{"role": "user", "content": content}]
        rendered = ChatRenderer(processor.tokenizer).start(messages)
        trajectory = Trajectory("r", segments=[Segment("prompt", rendered.ids, [], False, rendered.text)])
        trajectory.messages = messages
        sample = Sample()
        (placed,) = place_images(sample, trajectory, processor)
        assert placed.ids == [token for id in rendered.ids for token in [id] * (4 if id == image else 1)]
        assert placed.ids.count(image) == 8
        assert sample.multimodal_train_inputs == {"pixel_values": [(1, 1), (1, 1)]}
        assert shown in processor.tokenizer.decode(placed.ids)
