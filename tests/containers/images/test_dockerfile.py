"""Dockerfiles as text: lines, variables, patterns, and the errors that name file and line."""

from __future__ import annotations

import fnmatch
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ors_containers import InvalidDefinition
from ors_containers.images.dockerfile.ignore import IgnoreRules
from ors_containers.images.dockerfile.lexer import read_text
from ors_containers.images.dockerfile.parser import read_dockerfile
from ors_containers.images.dockerfile.variables import expand, split_pairs, split_words
from ors_containers.layers.globs import match_name, parse_name

_VARIABLES = {"A": "one", "B": "two words", "EMPTY": ""}


@pytest.mark.parametrize(
    ("text", "expected"),
    {
        "$A": "one",
        "${A}x": "onex",
        "$Ax": "",
        "${NO:-$A}": "one",
        "${EMPTY:-x}${EMPTY-x}": "x",
        "${A:+yes}${NO:+no}": "yes",
        "${NO:-${ALSO:-deep}}": "deep",
        "'$A'": "$A",
        '"$A $B"': "one two words",
        r"\$A": "$A",
        r'"\$A \n \""': r'$A \n "',
        "a$": "a$",
        "${A:?missing}": "one",
        "a'b'\"c\"": "abc",
    }.items(),
)
def test_variables_expand_as_in_docker(text: str, expected: str) -> None:
    assert expand(text, _VARIABLES) == expected


@pytest.mark.parametrize("text", ["${A", "${", "'a", '"a', "${A/x/y}", "${NO:?it is missing}", "${A#o}"])
def test_an_expansion_that_cannot_be_made_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        expand(text, _VARIABLES)


def test_text_that_is_made_to_take_long_does_not() -> None:
    begun = time.process_time()
    read_text(Path("D"), f"# a=x{' ' * 200_000}y{' ' * 200_000}z\nRUN a{' ' * 200_000}\\{' ' * 200_000}b <<")
    read_text(Path("D"), f"RUN {'(' * 200_000}")
    read_text(Path("D"), f"RUN {'<< <<' * 100_000}")
    names = "/".join(["a"] * 200)
    assert not IgnoreRules(["**/" * 50 + "b", "*a" * 50 + "b/c"]).ignores(f"{names}/{'a' * 200}")
    with pytest.raises(ValueError, match="nested too deeply"):
        expand("${A:-" * 10_000, {})
    with pytest.raises(ValueError, match="more than 4 MiB"):  # as many lines `ENV A=$A$A` would
        expand("$A${A}${A:-}", {"A": "x" * 2_000_000})
    assert time.process_time() - begun < 5


@given(st.text(alphabet="ab*?[]^-\\", max_size=8), st.text(alphabet="ab]^-", max_size=6))
def test_names_match_as_in_the_standard_library(pattern: str, name: str) -> None:
    try:
        tokens = parse_name(pattern)
    except ValueError:
        return
    if not set("[\\") & set(pattern):  # there, the rules of Go are others
        assert match_name(tokens, name) == fnmatch.fnmatchcase(name, pattern)
    match_name(tokens, name)


@given(st.text(alphabet="$A{}:-+?'\"\\ `", max_size=30))
def test_any_text_expands_or_is_an_error(text: str) -> None:
    try:
        expand(text, _VARIABLES)
        split_words(text)
        split_pairs(text)
    except ValueError:
        pass


def test_words_keep_their_quotes() -> None:
    assert split_words(r"""a "b c" d\ e 'f' """) == ["a", '"b c"', r"d\ e", "'f'"]
    assert split_pairs("A=1 B='two words'") == [("A", "1"), ("B", "'two words'")]
    assert split_pairs("A the rest = here") == [("A", "the rest = here")]


def test_lines_continue_and_comments_are_dropped() -> None:
    text = "# comment\n\nFROM x\nRUN a \\\n  # comment\n\n  b \\\\\nRUN c\\ \n d\nrun e"
    found = [(each.line, each.word, each.rest) for each in read_text(Path("D"), text).instructions]
    assert found == [(3, "FROM", "x"), (4, "RUN", "a   b \\\\"), (8, "RUN", "c d"), (10, "RUN", "e")]


def test_the_escape_character_can_be_chosen() -> None:
    source = read_text(Path("D"), "# syntax=docker/dockerfile:1\n# escape=`\nRUN a `\n b \\\nRUN c")
    assert source.escape == "`"
    assert [each.rest for each in source.instructions] == ["a  b \\", "c"]
    with pytest.raises(InvalidDefinition, match="line 1: The escape character"):
        read_text(Path("D"), "# escape=x\nFROM a")


def test_here_documents_belong_to_their_instruction() -> None:
    text = (
        "RUN cat <<EOF && cat <<-'two'\n# text\n$A\nEOF\n\tx\n\ttwo\nRUN echo \"<<no\" <<<no $((1<<2))\nENV A=<<EOF\n"
    )
    first, second, third = read_text(Path("D"), text).instructions
    assert [(each.name, each.text, each.expand) for each in first.documents] == [
        ("EOF", "# text\n$A\n", True),
        ("two", "x\n", False),
    ]
    assert (second.documents, third.documents) == ((), ())
    with pytest.raises(InvalidDefinition, match="line 1: The here-document EOF has no end"):
        read_text(Path("D"), "RUN <<EOF\na\n")


def test_a_here_documents_name_may_follow_a_space() -> None:
    """As in every shell; what is arithmetic or quoted in a shell begins none."""
    text = (
        "RUN python << 'ONE' && cat <<-  TWO\n$A\nONE\n\tx\n\tTWO\nCOPY <<  three << \"four\" /x/\na\nthree\nb\nfour\n"
        "ONBUILD RUN cat 3<< EOF\n$A\nEOF\n"
        'RUN echo $((1 << 2)) $(( (1 <<2) )) "a << b" \'c << d\' <<< e && (( x = 1 << 2 ))\nRUN ["sh", "a << b"]\n'
    )
    run, copy, trigger, arithmetic, words = read_text(Path("D"), text).instructions
    assert [(each.name, each.text, each.expand) for each in run.documents] == [
        ("ONE", "$A\n", False),
        ("TWO", "x\n", True),
    ]
    assert [(each.name, each.text, each.expand) for each in copy.documents] == [
        ("three", "a\n", True),
        ("four", "b\n", False),
    ]
    assert copy.rest == '<<three <<"four" /x/'
    assert [each.name for each in trigger.documents] == ["EOF"]
    assert (arithmetic.documents, words.documents) == ((), ())


@pytest.mark.parametrize(
    ("text", "problem"),
    {
        "RUN x": "line 1: RUN comes before FROM",
        "# nothing": "It has no FROM",
        "FROM a\nFOO b": "line 2: The instruction FOO is not known. Known: FROM",
        "FROM a b c": "line 1: 'FROM a b c' cannot be read",
        "FROM a AS x\nFROM b AS x": "line 2: 'x' is given twice",
        "FROM a\n\nCOPY --parents a b": "line 3: COPY --parents is not supported. Name the target folder",
        "FROM a\nADD --checksum=x a b": "line 2: ADD --checksum is not supported. It is for remote sources",
        "FROM a\nRUN --what a": "line 2: RUN --what is not supported. Supported: --mount",
        "FROM a\nSHELL bash": "line 2: SHELL is not a JSON list",
        "FROM a\nRUN": "line 2: RUN has nothing after it",
        "FROM a\nONBUILD FROM b": "line 2: ONBUILD FROM is not allowed",
        "FROM a\nONBUILD COPY --parents a b": "line 2: COPY --parents is not supported",
        f"FROM a\nSHELL {'[' * 100_000}": "line 2: SHELL is not a JSON list",
    }.items(),
)
def test_a_mistake_is_named_with_its_line(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text(text)
    with pytest.raises(InvalidDefinition) as raised:
        read_dockerfile(path)
    assert str(raised.value).startswith(f"{path}")
    assert problem in str(raised.value)


@pytest.mark.parametrize("content", [b"FROM a\0", b"x" * (5 << 20)])
def test_a_file_that_is_no_dockerfile(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_bytes(content)
    with pytest.raises(InvalidDefinition, match="it is not a Dockerfile"):
        read_dockerfile(path)


@pytest.mark.parametrize(
    ("patterns", "ignored", "kept"),
    [
        (["*.txt"], ["a.txt"], ["a/b.txt", "txt"]),
        (["**/*.txt"], ["a.txt", "a/b.txt", "a/b/c.txt"], ["a/b"]),
        (["a"], ["a", "a/b", "a/b/c"], ["ab", "b/a"]),
        (["/a/", "./b"], ["a/x", "b"], ["c"]),
        (["a/**"], ["a/b", "a/b/c"], ["a", "b"]),
        (["**/node_modules"], ["node_modules/x", "a/b/node_modules/c/d"], ["node_module"]),
        (["*", "!a/b"], ["a", "a/c", "c"], ["a/b", "a/b/d"]),
        (["*.md", "!README*.md", "README-secret.md"], ["x.md", "README-secret.md"], ["README.md"]),
        (["a?c", "[xy]z", "[^b]1"], ["abc", "xz", "a1"], ["ac", "zz", "b1"]),
        (["../x", "a/../b"], ["b"], ["x"]),
        (["**"], ["a", "a/b"], []),
        (["**x", "a/**/b"], ["x", "c/x", "a/b", "a/c/d/b", "a/b/c"], ["xy", "c/b"]),
        ([r"a\*"], ["a*"], ["ab"]),
    ],
)
def test_ignored_files(patterns: list[str], ignored: list[str], kept: list[str]) -> None:
    rules = IgnoreRules(patterns)
    assert [path for path in (*ignored, *kept) if rules.ignores(path)] == ignored
