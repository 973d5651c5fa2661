"""A run as a Job of Kubernetes: one pod per node, found by its index, on a volume that all of them mount. The settings travel,
resolved, in a ConfigMap; the Job starts pods again by the exit code of ``ernie run``.

Exit codes and pods: https://kubernetes.io/docs/tasks/job/pod-failure-policy/; indexes and host names of pods:
https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import yaml

from erniecore.api import ConfigError, EnvironmentFault, Exit, UsageError
from erniecore.api.command import did_you_mean
from erniecore_launch.job import GRACE, Job

#: where the ConfigMap is in a pod, and the port of the first pod's agent
_SETTINGS, _PORT = "/etc/erniecore", 29500
#: exit codes after which a pod may start again, at most ``--requeue`` times: environment, and SIGKILL and SIGTERM from outside
_LOST = (int(Exit.ENVIRONMENT), 128 + 9, 128 + 15)
_MANY = ("claim", "limit", "node")
#: texts that every reader of YAML takes as such: two letters at least, and no word of YAML 1.1, which PyYAML quotes
_PLAIN = re.compile(r"[A-Za-z/$][A-Za-z0-9 ._/:()=-]+")
_ONE = ("image", "namespace", "priority", "secret", "service-account", "shm")


@dataclass
class _Options:
    """``--option`` by name: those that may be given once, and those that may be repeated."""

    one: dict[str, str] = field(default_factory=dict)
    many: dict[str, dict[str, str]] = field(default_factory=lambda: {name: {} for name in _MANY})


class _Readable(yaml.SafeDumper):
    """Several lines as several lines, and nothing by reference."""

    def ignore_aliases(self, data: Any) -> bool:
        """Labels stand three times in a manifest, and are written three times."""
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """As a block where a text has lines, in quotes where another reader of YAML might see a number or a truth value: to the
        one of Kubernetes, ``1e3`` and ``y`` are such, which PyYAML writes plainly."""
        style = "|" if "\n" in data else None if _PLAIN.fullmatch(data) else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Readable.add_representer(str, _Readable.represent_str)


def text(job: Job, options: Sequence[str], requeue: int) -> str:
    """The manifest: a ConfigMap, a Service where there are several nodes, and the Job.

    Args:
        options: ``image=REPOSITORY`` and ``claim=NAME:PATH``, which are needed, and those of the how-to page.
        requeue: how often each pod may start again after a lost node or process.

    Raises ``UsageError`` for an option that is none or lacks, ``ConfigError`` for a path that no pod has.
    """
    chosen = _read(options)
    name = _label(job.name)
    _refuse_own_paths(job, chosen.many["claim"])
    meta = {"name": name, "labels": {"app.kubernetes.io/name": "erniecore", "app.kubernetes.io/instance": name}}
    if "namespace" in chosen.one:
        meta["namespace"] = chosen.one["namespace"]
    settings = {"run.yaml": job.settings}
    documents: list[dict[str, Any]] = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": settings}]
    if job.nodes > 1:
        # the pods look for the first one before it is ready
        service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": meta["labels"]}
        documents.append({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": service})
    spec = _job(job, name, chosen, requeue) | {
        "template": {"metadata": {"labels": meta["labels"]}, "spec": _pod(job, name, chosen)}
    }
    documents.append({"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec})
    return yaml.dump_all(documents, Dumper=_Readable, sort_keys=False, width=200)


def _read(options: Sequence[str]) -> _Options:
    chosen = _Options()
    for option in options:
        name, _, value = option.lstrip("-").partition("=")
        key, separator, rest = value.rpartition(":") if name == "claim" else value.partition("=")
        if key in chosen.many.get(name, {}) or name in chosen.one:
            raise UsageError("this option is given twice", where="--option", found=option,
                             expected="one value for each, and one path for each volume")  # fmt: skip
        if name in _ONE and value:
            chosen.one[name] = value
        elif name in _MANY and key and separator and rest:
            chosen.many[name][key] = rest
        else:
            shape = {"claim": "claim=NAME:PATH"}.get(name, f"{name}=NAME=VALUE" if name in _MANY else "NAME=VALUE")
            near = "" if name in (*_ONE, *_MANY) else did_you_mean(name, (*_ONE, *_MANY))
            raise UsageError(
                "not an option of --to kubernetes", where="--option", found=option,
                expected=shape if name in (*_ONE, *_MANY) else ", ".join(sorted((*_ONE, *_MANY))), fix=near,
            )  # fmt: skip
    if "image" not in chosen.one or not chosen.many["claim"]:
        raise UsageError(
            "an image with erniecore and a volume that all pods share are needed", where="--option",
            fix="--option image=REPOSITORY:TAG --option claim=NAME:/work",
        )  # fmt: skip
    return chosen


def _label(name: str) -> str:
    """A name that Kubernetes takes for pods and hosts: RFC 1123, with room for an index."""
    label = re.sub(r"[^a-z0-9]+", "-", name.lower())[:48].strip("-")
    return label if label[:1].isalpha() else f"run-{label}".rstrip("-")


def _refuse_own_paths(job: Job, claims: Mapping[str, str]) -> None:
    """Raises ``ConfigError`` for the first absolute path of the settings that is on no volume."""
    mounts = [PurePosixPath(path) for path in claims.values()]
    for key, path in job.paths.items():
        if not any(PurePosixPath(path).is_relative_to(mount) for mount in mounts):
            raise ConfigError.at(
                key, f"{path}, but the pods see {', '.join(map(str, mounts))} only",
                fix=f"copy it to the volume and name it relative to {mounts[0]}, where the pods start",
            )  # fmt: skip


def _job(job: Job, name: str, chosen: _Options, requeue: int) -> dict[str, Any]:
    """What the Job does with pods that end; its first rule that fits counts."""
    rules = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [int(Exit.PREEMPTED)]}},
        {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [*_LOST, int(Exit.PREEMPTED)]}},
    ]
    return {
        "completionMode": "Indexed",
        "completions": job.nodes,
        "parallelism": job.nodes,
        "backoffLimit": requeue * job.nodes,
        "podFailurePolicy": {"rules": rules},
    }


def _pod(job: Job, name: str, chosen: _Options) -> dict[str, Any]:
    claims = chosen.many["claim"]
    volumes: list[dict[str, Any]] = [{"name": "settings", "configMap": {"name": name}}]
    # names of claims may be longer than those of volumes, and have dots
    volumes += [
        {"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim}}
        for number, claim in enumerate(claims)
    ]
    mounts: list[dict[str, Any]] = [{"name": "settings", "mountPath": _SETTINGS, "readOnly": True}]
    mounts += [{"name": f"claim-{number}", "mountPath": path} for number, path in enumerate(claims.values())]
    if "shm" in chosen.one:
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": chosen.one["shm"]}})
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    container: dict[str, Any] = {
        "name": "run",
        "image": chosen.one["image"],
        "command": _command(job, name),
        "workingDir": next(iter(claims.values())),
        "env": _environment(job, name, chosen),
        "volumeMounts": mounts,
    }
    if chosen.many["limit"]:
        container["resources"] = {"limits": chosen.many["limit"]}
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE,
        "automountServiceAccountToken": False,
        # their variables would begin with the name of a Service, and ERNIE_… are settings
        "enableServiceLinks": False,
        "containers": [container],
        "volumes": volumes,
    }
    if job.nodes > 1:
        pod["subdomain"] = name
    for option, key in (("priority", "priorityClassName"), ("service-account", "serviceAccountName")):
        if option in chosen.one:
            pod[key] = chosen.one[option]
    if chosen.many["node"]:
        pod["nodeSelector"] = chosen.many["node"]
    return pod


def _command(job: Job, name: str) -> list[str]:
    command = ["ernie", "run", f"{_SETTINGS}/run.yaml", *job.limit, "--nproc", str(job.ranks_per_node)]
    if job.nodes > 1:
        command += [
            "--nodes",
            str(job.nodes),
            "--node-rank",
            "$(JOB_COMPLETION_INDEX)",
            "--master",
            f"{name}-0.{name}:{_PORT}",
        ]
    return command


def _environment(job: Job, name: str, chosen: _Options) -> list[dict[str, Any]]:
    """The pod's name for messages, and what the agents of several nodes prove to each other that they know."""
    found: list[dict[str, Any]] = [
        {"name": "ERNIECORE_NODE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    ]
    if job.nodes > 1:
        key = {"name": chosen.one.get("secret", name), "key": "secret"}
        found.append({"name": "ERNIECORE_SECRET", "valueFrom": {"secretKeyRef": key}})
    return found


def where(job: Job, name: str) -> str:
    """Where to look for the run."""
    out = job.paths.get("run.out") or os.path.relpath(job.out, job.directory)
    return f"its console: kubectl logs --follow job/{name}; the run is {out} on the volume"


def submit(job: Job, manifest: str) -> str:
    """Create what the manifest says; the name of the Job. Raises ``EnvironmentFault`` with what kubectl says."""
    try:
        done = subprocess.run(
            ["kubectl", "create", "--filename", "-", "--output", "name"],
            input=manifest,
            check=True,
            capture_output=True,
            text=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        said = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
        fix = "run this where kubectl is, or write the manifest with --dry-run; delete what an earlier Job of this name left"
        raise EnvironmentFault(
            "Kubernetes does not take the job", where="kubectl", found=said[-300:], fix=fix
        ) from error
    return next(line.partition("/")[2] for line in done.stdout.splitlines() if line.startswith("job"))
