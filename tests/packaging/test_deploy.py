"""What is in deploy/ fits the server: ports, probes, times, and the metrics that the dashboard asks for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ortmulti.serve.limits import Limits
from tests.serve.server import SIMPLE, infer, serving
from tests.support.processes import ROOT

FOLDER = ROOT / "deploy"
DOCKERFILE = (FOLDER / "Dockerfile").read_text("utf-8")
# Those of a series are what Prometheus adds, and `le` is of histograms' buckets.
ADDED = {"job", "instance", "le"}


@pytest.fixture(scope="module")
def manifests() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    loaded = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text("utf-8"))
    return {manifest["kind"]: manifest for manifest in loaded}


@pytest.fixture(scope="module")
def pod(manifests: dict[str, Any]) -> Any:
    return manifests["Deployment"]["spec"]["template"]


def test_the_manifests_fit_the_schema_of_kubernetes(manifests: dict[str, Any]) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")
    for manifest in manifests.values():
        validator.validate(manifest, validator.latest_version(), strict=True)


def test_ports_commands_and_times_agree(manifests: dict[str, Any], pod: Any) -> None:
    [server] = pod["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    assert re.findall(r"(?m)^EXPOSE (.*)", DOCKERFILE) == [" ".join(map(str, ports.values()))]
    [command] = re.findall(r"(?m)^CMD (.*)", DOCKERFILE)
    assert json.loads(command) == server["args"]
    for name, port in ports.items():
        assert server["args"][server["args"].index(f"--{name}") + 1] == f"0.0.0.0:{port}"
    service = manifests["Service"]["spec"]
    assert {port["name"]: (port["port"], port["targetPort"]) for port in service["ports"]} == {
        name: (port, name) for name, port in ports.items()
    }
    assert service["selector"].items() <= pod["metadata"]["labels"].items()
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(ports["http"])
    stopping = server["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["spec"]["terminationGracePeriodSeconds"] > stopping + Limits().end
    [user] = re.findall(r"(?m)^USER (\d+):", DOCKERFILE)
    assert pod["spec"]["securityContext"]["runAsUser"] == int(user)
    [cache] = re.findall(r"ORTMULTI_CACHE=(\S+)", DOCKERFILE)
    mounted = {mount["mountPath"] for mount in server["volumeMounts"]}
    assert {str(Path(cache).parent), server["args"][1]} <= mounted


def series(page: str) -> dict[str, set[str]]:
    """The names of a page of metrics with the labels that each has here; those without a sample have none."""
    found: dict[str, set[str]] = {name: set() for name in re.findall(r"(?m)^# TYPE (\w+) ", page)}
    for name, labels in re.findall(r"(?m)^(\w+)\{([^}]*)\}", page):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


def test_probes_and_queries_of_the_dashboard_are_those_of_a_server(pod: Any, tmp_path: Path) -> None:
    (tmp_path / "simple.onnx").write_bytes(SIMPLE)
    exports = pytest.importorskip("tests.serve.text_exports")
    exports.embedding(tmp_path / "mini")
    [server] = pod["spec"]["containers"]
    probes = [server[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")]
    [healthcheck] = re.findall(r"http://127\.0\.0\.1:8000(/\S+?)'", DOCKERFILE)
    scraped = pod["metadata"]["annotations"]["prometheus.io/path"]
    with serving(tmp_path) as running:
        assert infer(running)[0] == 200
        assert running.ask("/embed", b'{"inputs": "a cat"}')[0] == 200
        assert [running.ask(path)[0] for path in (*probes, healthcheck)] == [200] * 4
        status, body = running.ask(scraped)
    assert status == 200
    known = series(body.decode())
    # A machine without GPUs has no samples of theirs: the page has their labels.
    page = (ROOT / "docs/reference/metrics.md").read_text("utf-8")
    for name, labels in re.findall(r"(?m)^\| `(\w+)` \| [^|]* \| ([^|]*) \|", page):
        known[name] = known.get(name) or set(labels.replace(",", "").split())
    dashboard = json.loads((FOLDER / "grafana.json").read_text("utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [variable["query"] for variable in dashboard["templating"]["list"]]
    asked = [found for query in queries for found in re.findall(r"(ortmulti_\w+)(?:\{([^}]*)\})?", query)]
    assert len(asked) > 20
    assert {name for name, _ in asked} <= known.keys()
    for query in queries:
        names = re.findall(r"ortmulti_\w+", query)
        selected = re.findall(r"(\w+)=~?\"", query)
        grouped = [label for labels in re.findall(r"by \(([^)]*)\)", query) for label in labels.split(", ")]
        for name in names:
            assert {*selected, *grouped} <= known[name] | ADDED, query
    legends = {(target["expr"], label) for panel in dashboard["panels"] for target in panel["targets"]
               for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])}  # fmt: skip
    assert [legend for legend in legends if legend[1] not in legend[0]] == []
