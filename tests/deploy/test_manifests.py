"""The files of ``deploy/``: validated by the schemas of their programs, with commands that the command line accepts."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import compose_spec
import pytest
import typer
import yaml
from ors_cli.application import application
from ors_cli.flags import variable_of

from ors_server.settings import Settings
from tests.support.paths import DOCS, ROOT

DEPLOY = ROOT / "deploy"
validate: Any = import_module("kubernetes_validate").validate  # a module without types
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
UNITS = [path for path in FILES if path.suffix == ".service"]
COMPOSE = sorted((DEPLOY / "compose").glob("*.yaml"))

KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
KUBERAY = sorted((DEPLOY / "kuberay").glob("*.yaml"))
JOBS = [path for path in FILES if path.suffix == ".sbatch"]

#: Variables that are not settings; the last are the job's own.
OTHERS = {"ORS_IMAGES", "ORS_CLUSTER_KEY", "ORS_CLUSTER_KEY_FILE", "ORS_SERVER_KEY", "ORS_API_KEY", "ORS_TARGETS"}
OTHERS.add("ORS_GATEWAY_PORT")


def named(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=lambda path: str(path.relative_to(DEPLOY)))


def commands(path: Path) -> Iterator[list[str]]:
    """Yield the arguments of every ``ors-server`` command in a file."""
    text = path.read_text("utf-8")
    if path.suffix == ".service":
        yield from (shlex.split(line)[1:] for line in re.findall(r"^ExecStart=(.+)$", text, re.MULTILINE))
    elif path in COMPOSE:
        services: dict[str, dict[str, Any]] = yaml.safe_load(text)["services"]
        yield from (service["command"] for service in services.values())
    elif path in KUBERNETES:
        yield from (container["args"] for pod in pods(path) for container in pod["containers"])
    elif path in KUBERAY:
        entrypoints = [document["spec"].get("entrypoint") for document in documents(path)]
        yield from (shlex.split(entrypoint)[1:] for entrypoint in entrypoints if entrypoint)
    else:
        # A variable of the shell is a number, an address or a target.
        lines = re.findall(r"^srun .*? ors-server (.+) &$", text, re.MULTILINE)
        yield from (shlex.split(re.sub(r'"?\$(\{[^}]+\}|\w+)"?', "1", line)) for line in lines)


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text("utf-8")))


def pods(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the specification of each pod in a file."""
    for document in documents(path):
        spec = document["spec"]
        groups = [spec, spec.get("headGroupSpec", {}), *spec.get("workerGroupSpecs", ())]
        yield from (group["template"]["spec"] for group in groups if "template" in group)


@named(FILES)
def test_every_file_is_in_the_documentation(path: Path) -> None:
    assert f"](../{path.relative_to(ROOT)})" in (DOCS / "deploy.md").read_text("utf-8")


@named(FILES)
def test_commands_are_accepted(path: Path) -> None:
    if path.parent.name in ("grafana", "prometheus"):
        return  # they run no command of ours
    found = list(commands(path))
    assert found or path.name == "raycluster.yaml"  # Ray's own commands only
    group: Any = typer.main.get_command(application)
    for name, *arguments in found:
        _, command, _ = group.resolve_command(typer.Context(group), [name])
        command.make_context(name, arguments)


@named(FILES)
def test_variables_exist(path: Path) -> None:
    known = {variable_of(name) for name in Settings.model_fields} | OTHERS
    assert set(re.findall(r"\bORS_[A-Z_]+\b", path.read_text("utf-8"))) <= known


@named(UNITS)
def test_units(path: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    # An executable that exists, which systemd-analyze checks, too.
    unit = tmp_path / path.name
    unit.write_text(path.read_text("utf-8").replace("/opt/ors-server/bin/ors-server", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@named(COMPOSE)
def test_compose_files(path: Path) -> None:
    compose = compose_spec.PyCompose.from_yaml(path.read_text("utf-8"))
    assert compose.service_names()


@named(KUBERNETES)
def test_kubernetes_manifests(path: Path) -> None:
    for document in documents(path):
        validate(document, "1.33", strict=True)


@named(KUBERAY)
def test_pods_of_kuberay(path: Path) -> None:
    """The pods of Ray, by Kubernetes' schema; the schema of KubeRay itself is not in a package."""
    for pod in pods(path):
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, "spec": pod}
        validate(document, "1.33", strict=True)


@named([*KUBERNETES, *KUBERAY])
def test_services_and_selectors_fit(path: Path) -> None:
    """Names that one object uses of another exist, in the same file or in the gateways' file."""
    known = [*documents(path), *documents(DEPLOY / "kubernetes" / "gateways.yaml")]
    services = {document["metadata"]["name"] for document in known if document["kind"] == "Service"}
    for document in documents(path):
        spec = document["spec"]
        text = yaml.safe_dump(document)
        assert set(re.findall(r"--join[= ]http://([\w-]+):8080", text)) <= services
        if document["kind"] in ("Deployment", "StatefulSet"):
            labels = spec["template"]["metadata"]["labels"]
            assert spec["selector"]["matchLabels"] == labels
            assert spec.get("serviceName", "ors-nodes") in services | {"ors-nodes"}
            grace = spec["template"]["spec"]["terminationGracePeriodSeconds"]
            variables = {each["name"]: each.get("value") for each in spec["template"]["spec"]["containers"][0]["env"]}
            assert grace > float(variables.get("ORS_SHUTDOWN_TIMEOUT", "30")) + 10
        if document["kind"] == "RayJob":
            (cluster,) = documents(DEPLOY / "kuberay" / "raycluster.yaml")
            assert spec["clusterSelector"] == {"ray.io/cluster": cluster["metadata"]["name"]}


@named(JOBS)
def test_jobs_are_scripts(path: Path) -> None:
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
