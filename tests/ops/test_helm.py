"""The Helm chart: linted and rendered by Helm, and compared with Kubernetes' schemas and with the server's own rules.

Marked external, for it needs Helm and the schemas: `make test-external ONLY=ops` fetches both and runs this file.
No cluster is involved.
"""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from server.settings import load as settings
from server.settings.table import TABLE
from tests.ops import dockerfile
from tests.ops.expressions import ROOT

pytestmark = pytest.mark.external

CHART = ROOT / "configs/helm/cohort"
HELM = ROOT / ".reports/helm/helm"
VALIDATE = ROOT / ".reports/kubernetes-venv/bin/kubernetes-validate"
VERSIONS = ("1.25", "1.31", "1.35")
CUSTOM = {"ServiceMonitor", "ScaledObject", "RayService"}
"""Kinds that operators define; Kubernetes' schemas do not have them."""

EVERYTHING = {
    "model": "org/name",
    "settings": {
        "max_num_seqs": 32, "max_body_bytes": 16777216, "gpu_memory_utilization": 0.85, "deterministic": True,
        "served_model_name": "one,two", "kv_cache_memory_bytes": "4GiB",
    },
    "auth": {"existingSecret": "keys", "admin": True},
    "metrics": {"compat": "vllm", "existingSecret": "scrape", "serviceMonitor": {"enabled": True, "labels": {"release": "p"}}},
    "hub": {"existingSecret": "hub"},
    "storage": {"existingClaim": "models"},
    "extraVolumes": [{"name": "more", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
    "networkPolicy": {
        "from": [{"podSelector": {"matchLabels": {"app": "gateway"}}}],
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        "allowHub": False,
    },
    "service": {"annotations": {"a": "b"}},
    "serviceAccount": {"annotations": {"a": "b"}},
    "podLabels": {"team": "x"},
    "podAnnotations": {"a": "b"},
    "nodeSelector": {"gpu": "yes"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
    ],
    "priorityClassName": "high",
    "runtimeClassName": "nvidia",
    "imagePullSecrets": [{"name": "registry"}],
}  # fmt: skip
HPA = {"autoscaling": {"hpa": {"enabled": True}}}
RAY = {"ray": {"enabled": True, "gpusPerReplica": 2}, "replicas": 3}
KEDA = {"autoscaling": {"keda": {"enabled": True}}}


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(HELM), *arguments], capture_output=True, text=True, timeout=60)


def rendered(folder: Path, *values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The objects by kind."""
    names = []
    for number, one in enumerate(values):
        (folder / f"values-{number}.yaml").write_text(yaml.safe_dump(one))
        names += ["--values", str(folder / f"values-{number}.yaml")]
    run = helm("template", "test", str(CHART), "--namespace", "llm", *names)
    assert run.returncode == 0, run.stderr
    (folder / "rendered.yaml").write_text(run.stdout)
    return {found["kind"]: found for found in yaml.safe_load_all(run.stdout) if found}


def container(objects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    [one] = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = one
    return found


@pytest.mark.parametrize(
    "values", [{}, EVERYTHING, HPA, EVERYTHING | KEDA], ids=["plain", "all", "hpa", "keda"]
)
def test_lint_and_schemas(tmp_path: Path, values: dict[str, Any]) -> None:
    objects = rendered(tmp_path, values)
    lint = helm("lint", "--strict", str(CHART), "--values", str(tmp_path / "values-0.yaml"))
    assert lint.returncode == 0, lint.stdout + lint.stderr
    native = [one for kind, one in objects.items() if kind not in CUSTOM]
    assert len(native) >= 5
    file = tmp_path / "native.yaml"
    file.write_text(yaml.safe_dump_all(native))
    for version in VERSIONS:
        check = subprocess.run(
            [str(VALIDATE), "--strict", "--kubernetes-version", version, str(file)],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert check.returncode == 0, check.stdout + check.stderr


def test_the_schema_check_would_notice(tmp_path: Path) -> None:
    objects = rendered(tmp_path)
    container(objects)["livenesProbe"] = {}
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(objects["Deployment"]))
    check = subprocess.run(
        [str(VALIDATE), "--strict", "--kubernetes-version", "1.31", str(tmp_path / "wrong.yaml")],
        capture_output=True, timeout=60,
    )  # fmt: skip
    assert check.returncode != 0


def test_probes_never_kill_a_server_that_loads_or_recovers(tmp_path: Path) -> None:
    one = container(rendered(tmp_path))
    assert one["startupProbe"]["httpGet"]["path"] == one["livenessProbe"]["httpGet"]["path"] == "/live"
    assert one["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert one["livenessProbe"]["periodSeconds"] * one["livenessProbe"]["failureThreshold"] == 60
    assert one["startupProbe"]["periodSeconds"] * one["startupProbe"]["failureThreshold"] == 60


@pytest.mark.parametrize("drain, pause", [(120, 10), (0, 0), (600, 30)])
def test_the_grace_period_covers_preStop_and_drain(tmp_path: Path, drain: int, pause: int) -> None:
    objects = rendered(tmp_path, {"drainTimeoutSeconds": drain, "preStopSeconds": pause})
    one, pod = container(objects), objects["Deployment"]["spec"]["template"]["spec"]
    assert one["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", str(pause)]
    assert started_with(objects).drain_timeout == drain
    # Three seconds for last bytes and two for the executor's end: server/startup/lifecycle.py.
    assert pod["terminationGracePeriodSeconds"] >= pause + drain + 3 + 2 + 1


def started_with(objects: dict[str, dict[str, Any]]) -> settings.Settings:
    """The settings of the server in its pod, as the server reads them; a reference to a secret is its name."""
    environ = {
        one["name"]: one.get("value", one.get("valueFrom", {}).get("secretKeyRef", {}).get("name"))
        for one in container(objects)["env"]
    }
    return settings.load({}, dockerfile.env() | environ)[0]


def test_settings_reach_the_server(tmp_path: Path) -> None:
    found = started_with(rendered(tmp_path, EVERYTHING))
    assert (found.model, found.host, found.port) == ("org/name", "0.0.0.0", 8000)
    assert (found.max_num_seqs, found.max_body_bytes, found.gpu_memory_utilization) == (32, 16777216, 0.85)
    assert found.deterministic is True and found.served_model_name == ("one", "two")
    assert found.kv_cache_memory_bytes == 4 << 30
    assert (found.metrics_key, found.metrics_compat) == ("scrape", "vllm")
    plain = started_with(rendered(tmp_path))
    assert plain.model is None and not plain.needs_key and plain.admin_key_file is None


def test_keys_are_files_in_a_folder_that_follows_the_secret(tmp_path: Path) -> None:
    objects = rendered(tmp_path, EVERYTHING)
    found, one = started_with(objects), container(objects)
    [mount] = [mount for mount in one["volumeMounts"] if mount["name"] == "keys"]
    assert "subPath" not in mount and mount["readOnly"] is True
    for file in (found.api_key_file, found.admin_key_file):
        assert file is not None and Path(file).parent == Path(mount["mountPath"])
    [volume] = [
        v for v in objects["Deployment"]["spec"]["template"]["spec"]["volumes"] if v["name"] == "keys"
    ]
    assert volume["secret"]["secretName"] == "keys"
    assert yaml.safe_dump(objects).count("sk-") == 0


def test_the_pod_is_confined_as_the_image_asks(tmp_path: Path) -> None:
    objects = rendered(tmp_path)
    pod, one = objects["Deployment"]["spec"]["template"]["spec"], container(objects)
    assert (
        f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
        == dockerfile.of_image("USER")
    )
    assert one["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert {mount["mountPath"] for mount in one["volumeMounts"]} == {dockerfile.of_image("WORKDIR"), "/tmp"}
    assert pod["automountServiceAccountToken"] is False and pod["enableServiceLinks"] is False
    assert one["resources"]["requests"] == one["resources"]["limits"]


def test_selectors_meet_the_pods(tmp_path: Path) -> None:
    objects = rendered(tmp_path, EVERYTHING | KEDA)
    labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    for selector in (
        objects["Service"]["spec"]["selector"],
        *(objects[kind]["spec"]["selector"]["matchLabels"] for kind in ("Deployment", "PodDisruptionBudget")),
        objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector and selector.items() <= labels
    monitor = objects["ServiceMonitor"]["spec"]
    service = objects["Service"]["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= service.items()
    assert service[monitor["jobLabel"]] == "cohort", "the job of alerts and dashboard"
    assert [port["name"] for port in objects["Service"]["spec"]["ports"]] == [monitor["endpoints"][0]["port"]]
    assert monitor["endpoints"][0]["authorization"]["credentials"]["name"] == "scrape"
    assert (
        objects["ScaledObject"]["spec"]["scaleTargetRef"]["name"] == objects["Deployment"]["metadata"]["name"]
    )
    [trigger] = objects["ScaledObject"]["spec"]["triggers"]
    assert trigger["metadata"]["query"] == 'sum(cohort_requests_waiting{job="cohort", namespace="llm"})'


def test_network_policy(tmp_path: Path) -> None:
    plain = rendered(tmp_path)["NetworkPolicy"]["spec"]
    assert plain["ingress"] == [{"ports": [{"port": "http"}], "from": [{"podSelector": {}}]}]
    assert {port["port"] for rule in plain["egress"] for port in rule["ports"]} == {53, 443}
    closed = rendered(tmp_path, EVERYTHING)["NetworkPolicy"]["spec"]
    assert len(closed["ingress"][0]["from"]) == 2 and closed["egress"] == []


def test_autoscaling_owns_the_number_of_replicas(tmp_path: Path) -> None:
    assert rendered(tmp_path)["Deployment"]["spec"]["replicas"] == 1
    for values, kind in ((HPA, "HorizontalPodAutoscaler"), (KEDA, "ScaledObject")):
        objects = rendered(tmp_path, values)
        assert kind in objects and "replicas" not in objects["Deployment"]["spec"]
    both = helm(
        "template", "t", str(CHART), "--set", "autoscaling.hpa.enabled=true,autoscaling.keda.enabled=true"
    )
    assert both.returncode != 0 and "choose one" in both.stderr


@pytest.mark.parametrize(
    "value",
    ["modle=x", "settings.port=9000", "settings.Max=1", "metrics.compat=sglang", "probes.livenessSeconds=5"],
)
def test_wrong_values_are_refused(value: str) -> None:
    run = helm("template", "t", str(CHART), "--set", value)
    assert run.returncode != 0 and "values don't meet the specifications" in run.stderr, run.stderr


def test_the_chart_knows_which_settings_it_sets_itself() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    own = set(schema["properties"]["settings"]["propertyNames"]["not"]["enum"])
    assert own <= set(TABLE)


@pytest.mark.parametrize(
    "values", [RAY, EVERYTHING | RAY | {"metrics": {"existingSecret": "scrape"}}], ids=["plain", "all"]
)
def test_ray_takes_the_deployment_s_place(tmp_path: Path, values: dict[str, Any]) -> None:
    """A RayService whose pods fit Kubernetes' schema, whose application is one that the server takes, and that is not open."""
    objects = rendered(tmp_path, values)
    assert not {"Deployment", "Service", "PodDisruptionBudget"} & objects.keys()
    lint = helm("lint", "--strict", str(CHART), "--values", str(tmp_path / "values-0.yaml"))
    assert lint.returncode == 0, lint.stdout + lint.stderr
    spec = objects["RayService"]["spec"]
    cluster = spec["rayClusterConfig"]
    assert cluster["authOptions"] == {"mode": "token"} and cluster["rayVersion"] == ray_version()
    pods = [
        cluster["headGroupSpec"]["template"],
        *(group["template"] for group in cluster["workerGroupSpecs"]),
    ]
    policy = objects["NetworkPolicy"]["spec"]
    for number, pod in enumerate(pods):
        file = tmp_path / f"pod-{number}.yaml"
        whole = {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": {**pod["metadata"], "name": "one"}}
        file.write_text(yaml.safe_dump(whole))
        for version in VERSIONS:
            check = subprocess.run(
                [str(VALIDATE), "--strict", "--kubernetes-version", version, str(file)],
                capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            assert check.returncode == 0, check.stdout + check.stderr
        assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        [one] = pod["spec"]["containers"]
        assert {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"} in one["env"]
        assert one["securityContext"]["readOnlyRootFilesystem"] is True
    config = yaml.safe_load(spec["serveConfigV2"])
    [application] = config["applications"]
    assert application["import_path"] == "cohort_server.ray_app:build"
    args = application["args"]
    assert (args.pop("replicas"), args.pop("ingresses"), args.pop("cpus_per_replica")) == (3, 1, 1)
    assert args.pop("gpus_per_replica") == 2
    found, _ = settings.load(args, {})
    assert found.tensor_parallel_size == 2 and found.drain_timeout == 120
    if "auth" in values:
        assert found.api_key_file == "/etc/cohort/keys/api-keys" and found.max_num_seqs == 32
        assert found.served_model_name == ("one", "two") and found.kv_cache_memory_bytes == 4 << 30
        assert "scrape" not in spec["serveConfigV2"]


@pytest.mark.parametrize("other", ["autoscaling.hpa.enabled", "metrics.serviceMonitor.enabled"])
def test_what_ray_does_itself(other: str) -> None:
    both = helm("template", "t", str(CHART), "--set", f"ray.enabled=true,{other}=true")
    assert both.returncode != 0 and "ray.enabled" in both.stderr


def ray_version() -> str:
    """The version that the extra pins."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    [wanted] = project["optional-dependencies"]["ray"]
    return str(wanted.partition("==")[2])
