"""The configuration that a Dockerfile's instructions build up: variables, user, folder, shell and metadata.

Invariant: a configuration is a value; an instruction returns a new one.
"""

from __future__ import annotations

import platform
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ors_containers.image import DEFAULT_PATH
from ors_containers.images.dockerfile.lexer import Source
from ors_containers.images.dockerfile.parser import Instruction, json_words
from ors_containers.images.dockerfile.variables import expand, split_pairs

__all__ = ["PLATFORM", "Configuration", "apply_metadata", "automatic_arguments", "expanded"]

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
#: This machine's platform, by Docker's name.
PLATFORM = f"linux/{_ARCHITECTURES.get(platform.machine(), platform.machine())}"


@dataclass(frozen=True, slots=True)
class Configuration:
    """The state of a stage between two instructions, without its files."""

    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    arguments: Mapping[str, str] = field(default_factory=dict[str, str])
    #: Under Docker's names.
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    #: Whether CMD was set in this stage.
    own_command: bool = False

    @property
    def variables(self) -> dict[str, str]:
        """The variables of expansions and of RUN: ENV overrides ARG, and there always is a PATH."""
        return {"PATH": DEFAULT_PATH, **self.arguments, **self.environment}

    @property
    def user(self) -> str:
        """USER; empty where it is not set."""
        return str(self.config.get("User") or "")

    @property
    def directory(self) -> str:
        """WORKDIR, by default the root."""
        return str(self.config.get("WorkingDir") or "/")

    @property
    def shell(self) -> tuple[str, ...]:
        """SHELL."""
        return tuple(self.config.get("Shell") or ("/bin/sh", "-c"))

    def path(self, path: str) -> str:
        """Return a path of the image as an absolute one; a slash at its end is kept."""
        slash = "/" if path.endswith(("/", "/.")) or path in (".", "..") else ""
        return (
            posixpath.normpath(posixpath.join("/", self.directory, path)).replace("//", "/").rstrip("/") + slash or "/"
        )

    def with_config(self, **config: Any) -> Configuration:
        """Return it with changed metadata."""
        return replace(self, config={**self.config, **config})


def automatic_arguments() -> dict[str, str]:
    """Return the ARGs that exist without a value from the caller."""
    system, _, architecture = PLATFORM.partition("/")
    found: dict[str, str] = {}
    for side in ("TARGET", "BUILD"):
        found |= {f"{side}PLATFORM": PLATFORM, f"{side}OS": system, f"{side}ARCH": architecture, f"{side}VARIANT": ""}
    return found


def expanded(source: Source, line: int, text: str, variables: Mapping[str, str]) -> str:
    """Return a word with its variables expanded. Raises ``InvalidDefinition``."""
    try:
        return expand(text, variables, source.escape)
    except ValueError as error:
        raise source.error(line, str(error)) from error


def apply_metadata(source: Source, each: Instruction, before: Configuration) -> Configuration:
    """Return the configuration after an instruction that writes no file. Raises ``InvalidDefinition``."""

    def word(text: str) -> str:
        return expanded(source, each.line, text, before.variables)

    match each.word:
        case "ENV":
            return replace(before, environment={**before.environment, **_pairs(source, each, before)})
        case "LABEL":
            return replace(before, labels={**before.labels, **_pairs(source, each, before)})
        case "USER":
            user = word(each.text)
            if not user.strip() or any(letter.isspace() for letter in user):
                raise source.error(each.line, f"USER {user!r} is not a user", "Write USER NAME or USER ID:GROUP")
            return before.with_config(User=user)
        case "SHELL":
            return before.with_config(Shell=list(each.arguments or ()))
        case "CMD":
            return replace(before.with_config(Cmd=_command(each, before)), own_command=True)
        case "ENTRYPOINT":
            # A CMD of the base is for the base's ENTRYPOINT.
            command = before.config.get("Cmd") if before.own_command else None
            return before.with_config(Entrypoint=_command(each, before), Cmd=command)
        case "EXPOSE":
            words = [word(port) for port in each.text.split()]
            ports: dict[str, dict[str, str]] = {port if "/" in port else f"{port}/tcp": {} for port in words}
            return before.with_config(ExposedPorts={**(before.config.get("ExposedPorts") or {}), **ports})
        case "VOLUME":
            paths = each.arguments if each.arguments is not None else each.text.split()
            return before.with_config(
                Volumes={**(before.config.get("Volumes") or {}), **{word(path): {} for path in paths}}
            )
        case "STOPSIGNAL":
            return before.with_config(StopSignal=word(each.text))
        case "HEALTHCHECK":
            return before.with_config(Healthcheck=_health_check(source, each))
        case "ONBUILD":
            return before.with_config(OnBuild=[*(before.config.get("OnBuild") or ()), _trigger(each)])
        case _:
            return before  # MAINTAINER


def _pairs(source: Source, each: Instruction, before: Configuration) -> dict[str, str]:
    try:
        pairs = split_pairs(each.text, source.escape)
        return {
            expand(name, before.variables, source.escape): expand(value, before.variables, source.escape)
            for name, value in pairs
        }
    except ValueError as error:
        raise source.error(each.line, str(error)) from error


def _command(each: Instruction, before: Configuration) -> list[str]:
    if each.arguments is not None:
        return list(each.arguments)
    return [*before.shell, each.text] if each.text else []


def _health_check(source: Source, each: Instruction) -> dict[str, Any]:
    word, _, rest = each.text.partition(" ")
    if word.upper() == "NONE":
        return {"Test": ["NONE"]}
    if word.upper() != "CMD" or not rest.strip():
        raise source.error(each.line, f"HEALTHCHECK {word} is not known", "Write HEALTHCHECK CMD … or HEALTHCHECK NONE")
    arguments = json_words(rest.strip())
    test = ["CMD", *arguments] if arguments else ["CMD-SHELL", rest.strip()]
    return {"Test": test, **{name.title().replace("-", ""): value for name, value in each.flags}}


def _trigger(each: Instruction) -> str:
    documents = "".join(f"\n{document.text}{document.name}" for document in each.documents)
    return f"{each.text}{documents}"
