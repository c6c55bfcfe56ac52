"""Family: edits of configuration files that keep the rest of the file."""

from __future__ import annotations

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import CITIES, SERVICES, WORDS

__all__ = ["FAMILY"]

_LINES, _ORDER, _VALUE = "* has the right lines", "lines of * are in order", "* has the right value"
_TEXT = "* has the right text"


def _value(draft: Draft) -> str:
    return draft.pick(
        str(draft.number(1, 9999)), draft.pick(*WORDS), draft.pick("true", "false"), f"/srv/{draft.pick(*WORDS)}"
    )


def _environment(draft: Draft) -> None:
    root = draft.project()
    path = f"{root}/{draft.pick('.env', 'app.env', 'settings.env')}"
    keys = [
        f"{draft.pick('APP', 'DB', 'CACHE', 'MAIL')}_{word.upper()}" for word in draft.some(WORDS, draft.number(9, 14))
    ]
    changed, removed, added = keys[0], keys[1], f"NEW_{draft.pick(*SERVICES).upper()}"
    lines: list[tuple[str, str]] = []
    for key in draft.shuffled(keys):
        if draft.chance(0.3):
            lines.append(("", f"# {draft.prose(4)}"))
        lines.append((key, f"{key}={_value(draft)}"))
        if key == changed:
            lines.append(("", f"# {key}=example"))
            lines.append((f"{key}_OLD", f"{key}_OLD={_value(draft)}"))
    new, more = f"{draft.number(10000, 99999)}", f"{draft.pick(*CITIES).lower()}-{draft.number(1, 99)}"
    draft.file(path, "".join(f"{line}\n" for _, line in lines), 0o640)
    result = [f"{key}={new}" if key == changed else line for key, line in lines if key != removed]
    expected = "".join(f"{line}\n" for line in [*result, f"{added}={more}"])
    other, comment = next(line for key, line in lines if key not in ("", changed, removed)), f"# {changed}=example"
    oracle = (
        f"sed -i -e 's/^{changed}=.*/{changed}={new}/' -e '/^{removed}=/d' {path}\necho '{added}={more}' >> {path}\n"
    )
    draft.say(
        draft.pick(f"Please edit {path} for me, in place:", f"These changes are to be made in {path}:"),
        draft.require(
            f"\n- set {changed} to {new}",
            breach("the old value left", _LINES, swap=(f"-e 's/^{changed}=.*/{changed}={new}/' ", "")),
            breach("the value in quotes", _LINES, after=f"sed -i 's/^{changed}=.*/{changed}=\"{new}\"/' {path}"),
            breach("the setting twice", _LINES, after=f"sed -i '/^{changed}=/p' {path}"),
        ),
        draft.require(
            f"\n- remove the line that sets {removed}",
            breach("the line left", _LINES, swap=(f" -e '/^{removed}=/d'", "")),
            breach("an empty line left in its place", _LINES, swap=(f"/^{removed}=/d", f"s/^{removed}=.*//")),
            breach("the line made a comment", _LINES, swap=(f"/^{removed}=/d", f"s/^{removed}=/# &/")),
        ),
        draft.require(
            f"\n- add {added}={more} as a new last line",
            breach("no new line", _LINES, swap=(f"echo '{added}={more}'", "printf ''")),
            breach(
                "the new line first",
                _ORDER,
                swap=(f"echo '{added}={more}' >> {path}", f"sed -i '1i{added}={more}' {path}"),
            ),
        ),
        "\nThe settings are lines KEY=value, and there are no spaces or quotes in them.",
        draft.require(
            "Comments (lines beginning with #),",
            breach("the setting of a comment changed", _LINES, swap=(f"s/^{changed}=.*", f"s/{changed}=.*")),
            breach("a comment removed", _LINES, after=f"sed -i '/^{comment}$/d' {path}"),
        ),
        draft.require(
            "the order,",
            breach("lines sorted backwards", _ORDER, after=f"LC_ALL=C sort -r -o {path} {path}"),
        ),
        draft.require(
            "other settings (also those whose names merely begin the same)",
            breach("a setting whose name begins the same", _LINES, swap=(f"s/^{changed}=.*", f"s/^{changed}.*=.*")),
            breach("another setting removed", _LINES, after=f"sed -i '/^{other.partition('=')[0]}=/d' {path}"),
            breach("no newline at the end", "* ends with a newline", after=f"truncate -s -1 {path}"),
        ),
        draft.require(
            "and the file's permissions stay exactly as they are.",
            breach("other permissions", "mode of *", after=f"chmod 644 {path}"),
        ),
    )
    draft.final.text(path, expected)
    draft.final.modes({path: 0o640})
    draft.honest(
        "edited by Python",
        instead=python(
            """
            lines = [line for line in open(@path@) if not line.startswith(@removed@)]
            lines = [@changed@ + "\\n" if line.startswith(@key@) else line for line in lines]
            open(@path@, "w").writelines([*lines, @added@ + "\\n"])
            """,
            path=path,
            removed=f"{removed}=",
            key=f"{changed}=",
            changed=f"{changed}={new}",
            added=f"{added}={more}",
        ),
    )
    draft.honest("with a backup beside it", swap=("sed -i -e", "sed -i.bak -e"))
    draft.honest("a new file of the same permissions", after=f"cp -p {path} ~/new && mv ~/new {path}")
    draft.solve(oracle, swap(oracle, f"s/^{changed}=.*", f"s/{changed}=.*"), expected)


def _sections(draft: Draft) -> None:
    root = draft.project()
    path = f"{root}/{draft.pick('server', 'app', 'cluster')}.{draft.pick('ini', 'conf')}"
    key = draft.pick("port", "workers", "timeout", "verbosity")
    sections = draft.some(SERVICES, draft.number(4, 6))
    target, lacking = sections[0], sections[1]
    new = str(draft.number(1000, 60000))
    lines: list[str] = [f"; {draft.prose(4)}", ""]
    expected = list(lines)
    for section in draft.shuffled(sections):
        body = [f"{word} = {_value(draft)}" for word in draft.some(WORDS, draft.number(1, 4))]
        if section != lacking:
            body.insert(draft.number(0, len(body)), f"{key} = {draft.number(1, 999)}")
        if draft.chance(0.5):
            body.insert(0, f"# {key} = {draft.number(1, 999)}")
        edited = [f"{key} = {new}" if section == target and line.startswith(f"{key} ") else line for line in body]
        if section == lacking:
            edited.append(f"{key} = {new}")
        lines += [f"[{section}]", *body, ""]
        expected += [f"[{section}]", *edited, ""]
    draft.file(path, "\n".join(lines[:-1]) + "\n")
    draft.say(
        draft.pick(f"Change the setting {key} in {path}.", f"{path} is an INI file that needs an edit."),
        draft.require(
            f"In the section [{target}], set {key} to {new}.",
            breach("the old value left", _TEXT, swap=(f" and section == {target!r}", " and False")),
            breach(
                "the setting twice",
                _TEXT,
                swap=(f'line = {key!r} + " = "', f'result.append(line); line = {key!r} + " = "'),
            ),
        ),
        draft.require(
            f"The section [{lacking}] has no {key} yet: add it there with the same value,",
            breach("not added", _TEXT, swap=(f"if section == {lacking!r}", "if False")),
            breach("another value added", _TEXT, swap=(f'{key!r} + " = " + {new!r})', f'{key!r} + " = 0" + {new!r})')),
        ),
        draft.require(
            "as the last line of the section's settings, directly after its present last setting (before the empty "
            "line, if one follows).",
            breach(
                "added first",
                _TEXT,
                swap=("while not result[place - 1]", 'while not result[place - 1].startswith("[")'),
            ),
            breach("added after the empty line", _TEXT, swap=("while not result[place - 1]", "while False")),
        ),
        draft.require(
            "Write settings as the file does, with one space on each side of =.",
            breach("no spaces", _TEXT, after=f"sed -i 's/^{key} = {new}$/{key}={new}/' {path}"),
        ),
        draft.require(
            f"Commented-out lines, {key} in all other sections and every other byte stay as they are.",
            breach("the setting of every section", _TEXT, swap=(f" and section == {target!r}", "")),
            breach("comments removed", _TEXT, after=f"sed -i '/^;/d' {path}"),
            breach("empty lines removed", _TEXT, after=f"sed -i '/^$/d' {path}"),
            breach("no newline at the end", _TEXT, after=f"truncate -s -1 {path}"),
        ),
    )
    right = "\n".join(expected[:-1]) + "\n"
    draft.final.test(
        f"{path.rpartition('/')[2]} has the right text", f"assert content({path!r}).decode('utf-8') == {right!r}"
    )
    draft.honest("with a backup beside it", after=f"cp {path} {path}.bak")
    draft.pieces(path)
    oracle = python(
        """
        result, section = [], None
        def leave():
            if section == @lacking@:
                place = len(result)
                while not result[place - 1]:
                    place -= 1
                result.insert(place, @key@ + " = " + @new@)
        for line in open(@path@).read().split("\\n")[:-1]:
            if line.startswith("["):
                leave()
                section = line.strip("[]")
            elif line.startswith(@key@ + " ") and section == @target@:
                line = @key@ + " = " + @new@
            result.append(line)
        leave()
        open(@path@, "w").write("\\n".join(result) + "\\n")
        """,
        path=path,
        key=key,
        new=new,
        target=target,
        lacking=lacking,
    )
    draft.solve(oracle, swap(oracle, f" and section == {target!r}", ""), "\n".join(expected[:-1]) + "\n")


def _layers(draft: Draft) -> None:
    root = draft.project()
    names = ["defaults.conf", f"{draft.pick('site', 'region', 'team')}.conf", "local.conf"]
    order: dict[str, str] = {}
    keys = draft.some(WORDS, 14)
    for number, name in enumerate(names):
        # Two settings of the defaults are deleted; one setting, a number, exists only in the overrides.
        free = [key for key in keys[3:] if key not in keys[6:9]]
        chosen = keys[:9] if number == 0 else [keys[number - 1], keys[2], *draft.some(free, 4)]
        text = ""
        for key in draft.shuffled(chosen):
            value = str(draft.number(1, 9999)) if key == keys[8] else _value(draft)
            if number and key == keys[3 + number]:
                value = ""
            text += draft.pick("", "", f"# {key}: see below\n", "\n") + f"{key}:{draft.pick('', ' ', '  ')}{value}\n"
            if value:
                order[key] = value
            else:
                order.pop(key, None)
        if number:
            text += f"{keys[5 + number]}:\n"
            order.pop(keys[5 + number])
        draft.file(f"{root}/{name}", text, keep=True)
    target = f"{root}/{draft.pick('effective', 'merged', 'final')}.json"
    in_order = str([f"{root}/{name}" for name in names])
    draft.say(
        draft.pick(f"Work out the effective configuration of {root}.", f"Merge the configuration files in {root}."),
        draft.require(
            f"They are {names[0]}, {names[1]} and {names[2]}, read in this order; a later setting of a key replaces "
            "an earlier one.",
            breach(
                "an earlier setting counts", _VALUE, swap=(in_order, str([f"{root}/{name}" for name in names[::-1]]))
            ),
            breach("the last file left out", _VALUE, swap=(f", '{root}/{names[2]}']", "]")),
            breach("the first file left out", _VALUE, swap=(f"['{root}/{names[0]}', ", "[")),
        ),
        draft.require(
            "Each has lines 'key: value', where spaces around the value do not count; empty lines and lines that begin "
            "with # mean nothing.",
            breach("spaces around values", _VALUE, swap=("= value.strip()", '= value.rstrip("\\n")')),
            breach("comments as settings", _VALUE, swap=(' and not line.startswith("#")', "")),
        ),
        draft.require(
            "A key with an empty value ('key:') removes the setting made so far; a later file may set it again.",
            breach("empty values kept", _VALUE, swap=("del settings[key]", "pass")),
            breach(
                "an empty value that changes nothing",
                _VALUE,
                swap=(
                    "settings[key] = value.strip()",
                    f"if not value.strip(): continue\n{' ' * 12}settings[key] = value.strip()",
                ),
            ),
        ),
        draft.require(
            f"Write the result to {target}: a JSON object of all keys that are set in the end and their values, "
            "all as strings.",
            breach("an array of settings", _VALUE, swap=("json.dump(settings,", "json.dump(list(settings.items()),")),
            breach("a key missing", _VALUE, swap=("json.dump(settings,", "settings.popitem(); json.dump(settings,")),
            breach(
                "numbers in place of strings",
                _VALUE,
                swap=("value.strip()\n", "int(value) if value.strip().isdigit() else value.strip()\n"),
            ),
        ),
        draft.leave(),
    )
    draft.initial.absent(target)
    draft.final.json(target, order)
    oracle = python(
        """
        import json
        settings = {}
        for name in @names@:
            for line in open(name):
                if line.strip() and not line.startswith("#"):
                    key, _, value = line.partition(":")
                    settings[key] = value.strip()
                    if not value.strip():
                        del settings[key]
        json.dump(settings, open(@target@, "w"), indent=2)
        """,
        names=[f"{root}/{name}" for name in names],
        target=target,
    )
    draft.honest("on one line", swap=(", indent=2", ""))
    draft.honest("keys sorted", swap=("indent=2", "indent=2, sort_keys=True"))
    draft.honest("a newline at the end", after=f"echo >> {target}")
    near = swap(oracle, in_order, repr([f"{root}/{name}" for name in names[::-1]]))
    draft.solve(oracle, near, str(order))


FAMILY = Family("config_files", "Edit and merge configuration files", (_environment, _sections, _layers), ("python3",))
