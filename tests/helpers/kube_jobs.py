"""A stand-in for the Job controller of Kubernetes: it starts the pods of a manifest as processes of this machine and applies the
failure policy of the Job. Volumes are directories, the name of the first pod is the loopback address. No cluster is needed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml

#: seconds between two looks
PAUSE = 0.05


class KubeJob:
    """The pods of one Job. ``secrets``: name -> key -> value; ``port``: instead of the manifest's."""

    def __init__(self, manifest, home, port, secrets=None, environ=None):
        documents = {document["kind"]: document for document in yaml.safe_load_all(manifest)}
        self.job, self.settings = documents["Job"]["spec"], documents["ConfigMap"]["data"]
        self.spec = self.job["template"]["spec"]
        (self.container,) = self.spec["containers"]
        self.secrets, self.environ = secrets or {}, environ or {}
        self.name = documents["Job"]["metadata"]["name"]
        self.home, self.port = Path(home), port
        self.pods, self.starts, self.failures, self.failed = {}, [], 0, False
        folder = self.home / "settings"
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.settings.items():
            (folder / name).write_text(text)
        self._replaced = {self._mount("settings"): str(folder), f"{self.name}-0.{self.name}:29500": f"127.0.0.1:{port}"}

    def _mount(self, volume):
        return next(m["mountPath"] for m in self.container["volumeMounts"] if m["name"] == volume)

    def _start(self, index):
        variables = {"JOB_COMPLETION_INDEX": str(index)}
        for entry in self.container["env"]:
            source = entry["valueFrom"]
            if "secretKeyRef" in source:
                key = source["secretKeyRef"]
                variables[entry["name"]] = self.secrets[key["name"]][key["key"]]
            else:
                variables[entry["name"]] = f"{self.name}-{index}"
        arguments = list(self.container["command"])
        for name, value in variables.items():
            arguments = [argument.replace(f"$({name})", value) for argument in arguments]
        for old, new in self._replaced.items():
            arguments = [argument.replace(old, new) for argument in arguments]
        arguments[0] = str(Path(sys.executable).parent / arguments[0])
        log = (self.home / f"pod-{index}-{len(self.starts)}.log").open("wb")
        with log:
            self.pods[index] = subprocess.Popen(
                arguments, env={**self.environ, **variables}, cwd=self.container["workingDir"], stdout=log, stderr=log
            )
        self.starts.append(index)

    def _action(self, status, evicted):
        code = 128 - status if status < 0 else status
        for rule in self.job["podFailurePolicy"]["rules"]:
            if "onPodConditions" in rule:
                fits = evicted
            else:
                codes = rule["onExitCodes"]
                fits = (code in codes["values"]) == (codes["operator"] == "In")
            if fits:
                return rule["action"]
        return "Count"

    def run(self, look=lambda job: None):
        """Until every index has succeeded, or the Job has failed; ``look`` is called again and again meanwhile."""
        done = set()
        for index in range(self.job["parallelism"]):
            self._start(index)
        while len(done) < self.job["completions"] and not self.failed:
            look(self)
            for index, process in list(self.pods.items()):
                status = process.poll()
                if status is None or index in done:
                    continue
                if status == 0:
                    done.add(index)
                    continue
                action = self._action(status, evicted=False)
                self.failures += action == "Count"
                self.failed = action == "FailJob" or self.failures > self.job["backoffLimit"]
                if not self.failed:
                    self._start(index)
            time.sleep(PAUSE)
        self.close()
        return not self.failed

    def signal(self, index, number):
        """To the first process of a pod."""
        os.kill(self.pods[index].pid, number)

    def close(self):
        """End what still runs, with its children."""
        for process in self.pods.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.pods.values():
            process.wait()
