"""Forbidden changes and other solutions of the family `first_steps`."""

from tests.environments.terminal_families.ways import after, instead, swap

FORBIDDEN = {
    "_empty": {
        "Make the empty files": [swap("«other»", "«other».txt"), after("echo > «one»")],
        "In «root», make the empty files": [swap("«other»", "«other».txt"), after("echo > «one»")],
    },
    "_folder": {
        "Make a folder": [swap("«outer»/«inner»", "«inner»/«outer»"), swap("work/", "")],
        "In «root», make a folder": [swap("«outer»/«inner»", "«inner»/«outer»"), swap("work/", "")],
    },
    "_word": {
        "Write the word": [swap("echo", "echo -n"), swap("echo «word»", "echo the word «word»")],
        "In «root», write the word": [swap("echo", "echo -n"), swap("echo «word»", "echo the word «word»")],
    },
    "_append": {
        "Append a line with the number": [swap("echo", "echo -n"), after("echo «number» >> «name»")],
        "In «root», append a line with the number": [swap("echo", "echo -n"), after("echo «number» >> «name»")],
    },
    "_rename": {
        "Rename the file": [swap("mv", "ln"), swap("«new»", "«new».txt")],
        "In «root», rename the file": [swap("mv", "ln"), swap("«new»", "«new».txt")],
    },
    "_copy": {
        "Copy the file": [swap("cp", "ln -s"), swap("cp work/«old»", "echo «old» >")],
        "In «root», copy the file": [swap("cp", "ln -s"), swap("cp work/«old»", "echo «old» >")],
    },
}
HONEST = {
    "_empty": [instead(": > work/«one»; : > work/«other»")],
    "_folder": [instead("cd work && mkdir «outer» && mkdir «outer»/«inner»")],
    "_word": [instead("printf '%s\\n' «word» > work/«name»")],
    "_append": [instead("printf '%s\\n' «number» >> work/«name»")],
    "_rename": [instead("cp work/«old» work/«new» && rm work/«old»")],
    "_copy": [instead("cat work/«old» > work/«new»")],
}
