"""Images in a sample: what a vision model's processor makes of them, in the form that slime and Miles train on.

In a rollout an image is one placeholder in the ids, and its data goes beside them; the engine makes as many tokens of
it as the model wants. A trainer needs those tokens and the processed images themselves. Both are made here by the
processor, and only for what the model was given: the ids that it generated stay as they are.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ors_clients.errors import ConfigurationError
from ors_clients.rollouts.messages import images_of
from ors_clients.rollouts.trajectory import Segment, Trajectory
from ors_clients.training.optional_imports import import_trainer_module

__all__ = ["place_images"]

#: What a processor returns for the text; the rest is for the images.
_TEXT_KEYS = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")


def place_images(sample: Any, trajectory: Trajectory, processor: Any) -> Sequence[Segment]:
    """Return the trajectory's segments with the tokens of their images; the images themselves go into ``sample``.

    Raises ``ConfigurationError`` if there are images and no processor.
    """
    images = _given_images(trajectory)
    if not any(images) or trajectory.failure is not None:
        return trajectory.segments
    if processor is None:
        raise ConfigurationError(
            "The model takes images, and there is no processor to make training inputs of them",
            "Train with a checkpoint that brings its processor, in a version of the trainer that hands it out",
        )
    given = [segment for segment in trajectory.segments if segment.kind != "model"]
    # What answered the last turn of an episode that is over was never rendered.
    pairs = [(segment, found) for segment, found in zip(given, images, strict=False) if found]
    sample.multimodal_train_inputs = _train_inputs(processor, pairs)
    placed: dict[int, Segment] = {}
    for segment, found in pairs:
        ids = _ids_with_images(processor, segment, found)
        placed[id(segment)] = replace(segment, ids=ids, logprobs=[0.0] * len(ids))
    return [placed.get(id(segment), segment) for segment in trajectory.segments]


def _given_images(trajectory: Trajectory) -> list[list[str]]:
    """Return the images (data URLs) of the prompt and of what answered each turn of the model, one list each."""
    messages = trajectory.messages
    said = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    # The environment's opening may hold turns of its own; the model's are the last ones.
    turns = said[len(said) - trajectory.turns :] if trajectory.turns else []
    ends = [*turns, len(messages)]
    begins = [0, *(place + 1 for place in turns)]
    return [images_of(messages[begin:end]) for begin, end in zip(begins, ends, strict=True)]


def _ids_with_images(processor: Any, segment: Segment, images: Sequence[str]) -> list[int]:
    """Return the ids of a segment, with as many tokens for each image as the model wants."""
    shown = _shown(processor, segment, images)
    if shown == segment.text:
        return _ids_of(processor, shown, images)
    made = iter([_ids_of(processor, processor.image_token, [image]) for image in images])
    placeholder = processor.tokenizer.convert_tokens_to_ids(processor.image_token)
    return [id for token in segment.ids for id in (next(made) if token == placeholder else [token])]


def _shown(processor: Any, segment: Segment, images: Sequence[str]) -> str:
    """Return the processor's input for a segment: its text, or the places of its images alone.

    The latter where its text has other ids than the segment, because what an environment said spells a control token,
    such as the placeholder of another image (``control_tokens``).
    """
    known = getattr(processor, "image_token", None)
    if known is None or processor.tokenizer.encode(segment.text, add_special_tokens=False) == segment.ids:
        return segment.text
    return known * len(images)


def _ids_of(processor: Any, text: str, images: Sequence[str]) -> list[int]:
    output = processor(text=[text], images=_pictures(images), add_special_tokens=False)
    return [int(token) for token in output["input_ids"][0]]


def _train_inputs(processor: Any, pairs: Sequence[tuple[Segment, list[str]]]) -> dict[str, Any]:
    """All images of a sample as tensors, under the names by which the model takes them."""
    text = "".join(_shown(processor, segment, found) for segment, found in pairs)
    pictures = _pictures([image for _, found in pairs for image in found])
    output = processor(text=[text], images=pictures, add_special_tokens=False, return_tensors="pt")
    return {key: value for key, value in output.items() if key not in _TEXT_KEYS}


def _pictures(images: Sequence[str]) -> list[Any]:
    pillow = import_trainer_module("PIL.Image", "pip install pillow")
    return [pillow.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB") for url in images]
