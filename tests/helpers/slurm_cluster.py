"""A Slurm cluster on this machine: munge, the controller and one ``slurmd`` for each node, all within one directory and ended
with it. For tests of launchers; Debian's `slurm-wlm` has all of its programs.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "squeue", "sinfo")
_CONF = """
ClusterName=test
SlurmctldHost={host}
SlurmUser=root
SlurmdUser=root
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={home}/munge.sock,cred_expire=5
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool-%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=20
SlurmdTimeout=10
SchedulerParameters=sched_interval=1,batch_sched_delay=1,requeue_delay=1
{nodes}
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""


def missing():
    """Programs of Slurm that are not here."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


class Cluster:
    """``environ``: of whoever talks to the cluster. ``daemons``: name -> process."""

    def __init__(self, home):
        self.home, self.daemons = home, {}
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))}
        self.environ |= {"SLURM_CONF": str(home / "slurm.conf"), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}

    def ask(self, *words):
        return subprocess.run(words, env=self.environ, check=True, capture_output=True, text=True).stdout

    def start(self, name, *words):
        log = (self.home / f"{name}.log").open("ab")
        with log:
            self.daemons[name] = subprocess.Popen(
                words, env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def state(self, job):
        return self.ask("scontrol", "show", "job", str(job), "-o").split("JobState=")[1].split()[0]

    def wait_for(self, what, happened):
        """Until ``happened()``; the controller and the nodes have to be alive meanwhile."""
        while not (found := happened()):
            dead = [name for name, daemon in self.daemons.items() if daemon.poll() is not None]
            assert not dead, f"{what}: {dead} ended; see {self.home}"
            time.sleep(0.1)
        return found

    def start_node(self, name):
        self.start(name, "slurmd", "-D", "-N", name)

    def kill_node(self, name, processes):
        """SIGKILL to the daemon of a node, to what it has started, and to those of ``processes`` that run on it."""
        daemon = self.daemons.pop(name)
        for pid in processes:
            if f"SLURMD_NODENAME={name}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                shell = _parent(pid)
                for each in (_parent(shell), shell, pid):  # first the one that would tell the controller
                    os.kill(each, signal.SIGKILL)
        daemon.kill()
        daemon.wait()


def _parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@contextmanager
def cluster(home, nodes=2):
    """A cluster whose nodes are idle."""
    with ExitStack() as stack:
        own = Cluster(home)
        stack.callback(_end, own)
        ports = []
        for _ in range(nodes + 1):
            with socket.create_server(("127.0.0.1", 0)) as free:
                ports.append(free.getsockname()[1])
        host = socket.gethostname()
        lines = [
            f"NodeName=n{i} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=4000"
            for i, port in enumerate(ports[1:])
        ]
        (home / "state").mkdir()
        (home / "slurm.conf").write_text(_CONF.format(host=host, port=ports[0], home=home, nodes="\n".join(lines)))
        key = home / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        files = {"socket": "munge.sock", "pid-file": "munged.pid", "log-file": "munged.log", "seed-file": "munge.seed"}
        options = [f"--{name}={home / file}" for name, file in {**files, "key-file": "munge.key"}.items()]
        own.start("munged", "munged", "-F", "-f", *options)
        own.wait_for("munge", (home / "munge.sock").exists)
        own.start("slurmctld", "slurmctld", "-D")
        for index in range(nodes):
            own.start_node(f"n{index}")
        own.wait_for("nodes", lambda: _idle(own) == nodes)
        yield own


def _idle(own):
    done = subprocess.run(
        ["sinfo", "-h", "-N", "-p", "low", "-t", "idle", "-o", "%N"], env=own.environ, capture_output=True, text=True
    )
    return len(done.stdout.split())


def _end(own):
    subprocess.run(["scancel", "--user=root", "--signal=KILL"], env=own.environ, capture_output=True)
    for daemon in reversed(list(own.daemons.values())):
        daemon.terminate()
    for daemon in own.daemons.values():
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
