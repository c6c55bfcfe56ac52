"""Family: edits of configuration files that keep the rest of the file."""

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import CITIES, SERVICES, WORDS


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
    lines: list[str] = []
    for key in draft.shuffled(keys):
        lines += [f"# {draft.prose(4)}"] if draft.chance(0.3) else []
        lines.append(f"{key}={_value(draft)}")
        if key in (changed, removed):
            lines += [f"# {key}=example", f"{key}_OLD={_value(draft)}"]
    new, more = f"{draft.number(10000, 99999)}", f"{draft.pick(*CITIES).lower()}-{draft.number(1, 99)}"
    draft.file(path, "".join(f"{line}\n" for line in lines), 0o640)
    oracle = (
        f"sed -i -e 's/^{changed}=.*/{changed}={new}/' -e '/^{removed}=/d' {path}\necho '{added}={more}' >> {path}\n"
    )
    draft.say(
        draft.pick(f"Please edit {path} for me, in place:", f"These changes are to be made in {path}:"),
        f"! \n- set {changed} to {new}",
        f"! \n- remove the line that sets {removed}",
        f"! \n- add {added}={more} as a new last line",
        "\nThe settings are lines KEY=value, and there are no spaces or quotes in them.",
        "! Comments (lines beginning with #),",
        "! the order",
        "! and other settings (also those whose names merely begin the same) stay exactly as they are.",
    )
    draft.solve(oracle, swap(oracle, f"s/^{changed}=.*", f"s/{changed}=.*"))


def _sections(draft: Draft) -> None:
    root = draft.project()
    path = f"{root}/{draft.pick('server', 'app', 'cluster')}.{draft.pick('ini', 'conf')}"
    key = draft.pick("port", "workers", "timeout", "verbosity")
    sections = draft.some(SERVICES, draft.number(4, 6))
    target, lacking = sections[0], sections[1]
    new = str(draft.number(1000, 60000))
    lines: list[str] = [f"; {draft.prose(4)}", ""]
    shown = draft.shuffled([section for section in sections if section != lacking])
    shown.insert(draft.number(0, len(shown) - 1), lacking)
    for section in shown:
        body = [f"{word} = {_value(draft)}" for word in draft.some(WORDS, draft.number(1, 4))]
        if section != lacking:
            body.insert(draft.number(0, len(body)), f"{key} = {draft.number(1, 999)}")
        if section == target or draft.chance(0.5):
            body.insert(0, f"# {key} = {draft.number(1, 999)}")
        lines += [f"[{section}]", *body, ""]
    draft.file(path, "\n".join(lines[:-1]) + "\n")
    draft.say(
        draft.pick(f"Change the setting {key} in {path}.", f"{path} is an INI file that needs an edit."),
        f"! In the section [{target}], set {key} to {new}.",
        f"! The section [{lacking}] has no {key} yet: add it there with the same value,",
        "! as the last line of the section's settings, directly after its present last setting and before the empty "
        "line that follows.",
        "! Write settings as the file does, with one space on each side of =.",
        f"! Commented-out lines, {key} in all other sections, empty lines and every other byte stay as they are.",
    )
    oracle = python("""
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
        """)
    draft.solve(oracle, swap(oracle, f" and section == {target!r}", ""))


def _layers(draft: Draft) -> None:
    root = draft.project()
    names = ["defaults.conf", f"{draft.pick('site', 'region', 'team')}.conf", "local.conf"]
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
        if number:
            text += f"{keys[5 + number]}:\n"
        draft.file(f"{root}/{name}", text)
    target = f"{root}/{draft.pick('effective', 'merged', 'final')}.json"
    in_order = str([f"{root}/{name}" for name in names])
    draft.say(
        draft.pick(f"Work out the effective configuration in {root}.", f"Merge the configuration in {root}."),
        f"! Its files are {names[0]}, {names[1]} and {names[2]}, read in this order; a later setting of a key "
        "replaces an earlier one.",
        "! Each has lines 'key: value', where spaces around the value do not count; empty lines and lines that begin "
        "with # mean nothing.",
        "! A key with an empty value ('key:') removes the setting made so far; a later file may set it again.",
        f"! Write the result to {target}: a JSON object of all keys that are set in the end and their values, "
        "all as strings.",
    )
    draft.form(target, "json")
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
    )
    near = swap(oracle, in_order, repr([f"{root}/{name}" for name in names[::-1]]))
    draft.solve(oracle, near)


FAMILY = Family("config_files", "Edit and merge configuration files", (_environment, _sections, _layers), ("python3",))
