"""The plan of RUN: its program, environment, mounts and network."""

from __future__ import annotations

import re
from collections.abc import Callable

from ors_containers.builds.messages import SCRIPT_AT
from ors_containers.builds.scripts import Scratch
from ors_containers.images.dockerfile.configuration import Configuration, expanded
from ors_containers.images.dockerfile.lexer import Source
from ors_containers.images.dockerfile.parser import Instruction
from ors_containers.images.dockerfile.steps import RunStep

__all__ = ["plan_run"]

#: Mounts without which RUN works as well, because nothing is mounted where the builder was given nothing.
_IGNORED_MOUNTS = ("secret", "ssh")


def plan_run(source: Source, each: Instruction, before: Configuration, note: Callable[[str], None]) -> RunStep:
    """Return the step of a RUN instruction, with the network unless it refuses it. Raises ``InvalidDefinition``."""
    arguments, text = _command(each, before.shell)
    mounts: list[Scratch] = []
    for flag, value in each.flags:
        if flag == "mount":
            mount = _mount(source, each, before, value, note)
            if mount is not None:
                mounts.append(mount)
    return RunStep(
        arguments=arguments,
        text=text,
        user=before.user,
        directory=before.directory,
        environment=before.variables,
        mounts=tuple(mounts),
        network=_wants_network(source, each),
    )


def _command(each: Instruction, shell: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """Return the program with its arguments, and the text of a here-document that is a script of its own."""
    if each.arguments is not None:
        return each.arguments, ""
    documents = each.documents
    if len(documents) == 1 and re.fullmatch(r"\d*<<-?[^\s<]+", each.text):
        text = documents[0].text
        if text.startswith("#!"):
            words = text.splitlines()[0].removeprefix("#!").strip().split(maxsplit=1)
            return (*words, f"/proc/self/fd/{SCRIPT_AT}"), text
        return (*shell, text), ""
    return (*shell, each.text + "".join(f"\n{document.text}{document.name}" for document in documents)), ""


def _wants_network(source: Source, each: Instruction) -> bool:
    security, network = each.flag("security"), each.flag("network") or "default"
    if security not in ("", "sandbox"):
        raise source.error(each.line, f"RUN --security={security} is not supported", "A build has no privileges")
    if network not in ("default", "none", "host"):
        raise source.error(each.line, f"RUN --network={network} is not known", "Known: default, none, host")
    return network != "none"


def _mount(
    source: Source, each: Instruction, before: Configuration, text: str, note: Callable[[str], None]
) -> Scratch | None:
    """Return the empty folder that a ``--mount`` becomes; None for a mount that is ignored."""
    options: dict[str, str] = {}
    for part in expanded(source, each.line, text, before.variables).split(","):
        name, _, value = part.partition("=")
        options[name.strip()] = value
    kind = options.get("type", "bind")
    if kind in _IGNORED_MOUNTS:
        if options.get("required", "false").lower() in ("", "1", "true"):
            raise source.error(each.line, f"RUN needs a {kind}, and a build has none", f"Leave out --mount=type={kind}")
        note(f"Line {each.line}: RUN --mount=type={kind} is ignored; a build has no {kind}")
        return None
    if kind not in ("cache", "tmpfs"):
        raise source.error(
            each.line, f"RUN --mount=type={kind} is not supported", "COPY the files before, and remove them in the RUN"
        )
    target = options.get("target") or options.get("dst") or options.get("destination") or ""
    if not target:
        raise source.error(each.line, f"RUN --mount=type={kind} has no target")
    if kind == "cache":
        note(f"Line {each.line}: the cache of RUN --mount=type=cache is empty at each run")
    path = before.path(target).rstrip("/")
    mode, user, group = options.get("mode", "0755"), options.get("uid", "0"), options.get("gid", "0")
    if not path or not re.fullmatch(r"[0-7]{1,4}", mode) or not (user + group).isdigit():
        raise source.error(each.line, f"RUN --mount={text} cannot be read")
    return Scratch(path, int(mode, 8), int(user), int(group))
