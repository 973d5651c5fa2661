"""One run whose machines die and join at random, and the same run by hand: stopped at the steps at which the first one changed
its layout, and continued with the next one. Machines are ``ernie run`` processes of this one; a machine dies with its ranks and
with what it had in memory.

    python plugins/launchers/elastic_nodes/tests/elastic_storm.py --events 30 --steps 1200 --out /tmp/storm
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from erniecore_elastic_nodes.memory import forget, root_of

from erniecore.api.launcher import free_port

#: eight sequences per step, on four machines two each
LAYOUT = ["parallel.name=hybrid", "train.batch_size=1", "train.accumulation=2"]
FIXED = ["log.report=false", "log.every=1", "checkpoint.export=false", "checkpoint.every=1000", "data.max_seq_len=64"]
OURS = {"NO_COLOR": "1", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def make_home(home: Path) -> list[str]:
    """A tiny model and data; the settings of a run of them."""
    from erniecore_model_init.new_model import init_model
    from erniecore_text.training import train

    rng = random.Random(3)
    (home / "tok").mkdir(parents=True, exist_ok=True)
    train([f"{a} plus {b} {a + b}" for a in range(31) for b in range(31)], 300).save(home / "tok")
    size = (
        "hidden_size=32,intermediate_size=64,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=4,head_dim=8"
    )
    init_model("ernie45", size, home / "tok", home / "base", seed_value=2)
    with (home / "train.jsonl").open("w") as file:
        for _ in range(150):
            a, b = rng.randint(0, 30), rng.randint(0, 30)
            turns = [{"role": "user", "content": f"{a} plus {b}"}, {"role": "assistant", "content": f"{a + b}"}]
            file.write(json.dumps({"messages": turns}) + "\n")
    return [f"model.path={home / 'base'}", "method.name=sft", f"data.train={home / 'train.jsonl'}", *FIXED]


class Storm:
    """A run on up to ``nodes`` machines, of which ``least`` always stay."""

    def __init__(self, words, out, steps, *, nodes=4, least=2, seed=1):
        self.out, self.nodes, self.least = out, nodes, least
        self.rng, self.count, self.words = random.Random(seed), 0, words
        self.run = [*words, *LAYOUT, f"run.out={out}", f"train.max_steps={steps}", "callbacks=[peer-copies]"]
        launcher = {
            "name": "elastic-nodes",
            "nodes": nodes,
            "min_nodes": least,
            "nproc": 1,
            "settle": 0.5,
            "restarts": 5,
        }
        self.run += [f"launcher.{key}={value}" for key, value in launcher.items()]
        self.run.append(f"launcher.master=127.0.0.1:{free_port()}")
        self.first = self._start([])
        self.others = [self._start(["launcher.join=true"]) for _ in range(nodes - 1)]

    def _start(self, more):
        self.count += 1
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("ERNIE", "PADDLE_"))}
        with self.out.with_name(f"{self.out.name}-{self.count}.log").open("w") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "erniecore", "run", *self.run, *more],
                stdout=log,
                stderr=log,
                env={**environ, **OURS, "ERNIECORE_NODE": f"machine-{self.count}"},
            )

    def events(self):
        path = self.out / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def starts(self):
        return sum(e["event"] == "elastic" for e in self.events())

    def started_after(self, before):
        return self.starts() > before

    def settled(self):
        """The last start has made a step with all machines that are there."""
        events = self.events()
        starts = [i for i, e in enumerate(events) if e["event"] == "elastic"]
        if not starts or len(events[starts[-1]]["machines"]) != 1 + len(self.others):
            return False
        return any(e["event"] == "step" for e in events[starts[-1] :])

    def until(self, condition):
        while not condition():
            if self.first.poll() is not None:
                return False
            time.sleep(0.1)
        return True

    def one(self):
        """One death or one join; its kind."""
        kinds = (
            ["machine"] * (len(self.others) >= self.least) + ["join"] * (len(self.others) < self.nodes - 1) + ["rank"]
        )
        kind = self.rng.choice(kinds)
        time.sleep(self.rng.random())
        if kind == "join":
            self.others.append(self._start(["launcher.join=true"]))
            return kind
        victim = self.rng.choice([*self.others, self.first] if kind == "rank" else self.others)
        number = int(victim.args[-1].rpartition("=")[2] == "true")
        if kind == "machine":
            self.kill_machine(victim)
        else:
            for pid in self.ranks_of(victim)[:1]:
                os.kill(pid, signal.SIGKILL)
        return kind if number else f"{kind} of the first"

    def ranks_of(self, machine):
        found = subprocess.run(["pgrep", "-P", str(machine.pid)], capture_output=True, text=True, check=False)
        return [int(pid) for pid in found.stdout.split()]

    def kill_machine(self, machine):
        """With its ranks; what it has in memory goes with it."""
        for pid in [machine.pid, *self.ranks_of(machine)]:
            os.kill(pid, signal.SIGKILL)
        self.others.remove(machine)
        machine.wait()

    def finish(self):
        codes = [process.wait() for process in (self.first, *self.others)]
        return codes

    def close(self):
        for process in (self.first, *self.others):
            if process.poll() is None:
                process.kill()
            process.wait()
        for number in range(1, self.count + 1):  # the memory of machines that were killed
            forget(root_of(self.out, f"machine-{number}"))


def curve(events):
    """Step -> (loss, tokens, learning rate), as it was made last."""
    return {e["step"]: (e["loss"], e["tokens"], e["lr"]) for e in events if e["event"] == "step"}


def phases(events):
    """(settings of the layout, last step that counts) of every start that made one."""
    found, words, made = [], [], []
    for event in events:
        if event["event"] == "elastic":
            found.append((words, made))
            words, made = event["settings"], []
        elif event["event"] == "step":
            made.append(event["step"])
    found.append((words, made))
    kept, later = [], 10**9
    for words, made in reversed(found):
        counted = [step for step in made if step < later]
        if counted:
            kept.append((words, max(counted)))
        later = min([later, *made])
    return kept[::-1]


def lost_steps(events):
    """Steps that were made more than once."""
    made = [e["step"] for e in events if e["event"] == "step"]
    return len(made) - len(set(made))


def by_hand(words, out, events, steps):
    """The same layouts at the same steps; its curve."""
    for layout, last in phases(events):
        until = [f"run.until={last}"] if last < steps else []
        run = [*words, *LAYOUT, *layout, f"run.out={out}", f"train.max_steps={steps}", *until]
        environ = {**os.environ, **OURS}
        done = subprocess.run(
            [sys.executable, "-m", "erniecore", "run", *run], env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode in (0, 75), done.stderr
    return curve(read_events(out))


def weather(words, home, count, steps, seed=1, note=lambda text: None):
    """A run with ``count`` deaths and joins, or as many as it has time for; (events, kinds, exit codes)."""
    storm, kinds = Storm(words, home / "storm", steps, seed=seed), []
    try:
        while len(kinds) < count and storm.until(storm.settled):
            before = storm.starts()
            kinds.append(storm.one())
            note(f"{len(kinds)}: {kinds[-1]} at step {max(curve(storm.events()), default=0)}")
            if kinds[-1].startswith("rank"):  # the same machines: wait for another start
                storm.until(partial(storm.started_after, before))
        codes = storm.finish()
    finally:
        storm.close()
    return storm.events(), kinds, codes


def recoveries(events):
    """Seconds from the last step before each change to the first one after it."""
    found, last, changed = [], None, False
    for event in events:
        if event["event"] == "elastic":
            changed = last is not None
        elif event["event"] == "step":
            found += [event["time"] - last] if changed else []
            last, changed = event["time"], False
    return found


def goodput(step, recovery, repeated, every=500):
    """Fraction of the time that goes into steps that count, on a simulated clock: a loss after so many steps of ``step`` seconds
    costs ``recovery`` seconds and ``repeated`` steps."""
    return every * step / (every * step + recovery + repeated * step)


def read_events(out):
    return [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines() if line.startswith("{")]


def summary(home, steps):
    """What a storm in ``home`` came to."""
    events, kinds = read_events(home / "storm"), json.loads((home / "kinds.json").read_text())
    made, hand, alone = (curve(read_events(home / name)) for name in ("storm", "hand", "alone"))
    again, times = sorted(recoveries(events)), sorted(e["seconds"] for e in events if e["event"] == "step")
    machines = [len(e["machines"]) for e in events if e["event"] == "elastic"]
    return {
        "events": len(kinds),
        "machines_killed": sum(kind.startswith("machine") for kind in kinds),
        "ranks_killed": sum(kind.startswith("rank") for kind in kinds),
        "machines_joined": kinds.count("join"),
        "machines": [min(machines), max(machines)],
        "steps": len(made),
        "steps_wanted": steps,
        "steps_repeated": lost_steps(events),
        "equal_to_the_run_by_hand": made == hand,
        "tokens_and_rates_as_on_one_process": all(made[step][1:] == alone[step][1:] for step in alone),
        "largest_loss_difference": max(abs(made[step][0] / alone[step][0] - 1) for step in alone),
        "recovery_seconds": {"median": round(again[len(again) // 2], 1), "max": round(again[-1], 1)},
        "step_seconds": round(times[len(times) // 2], 3),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=30)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("storm"))
    parser.add_argument("--summary", type=Path, help="file for what it came to, as JSON")
    given = parser.parse_args()
    shutil.rmtree(given.out, ignore_errors=True)
    words = make_home(given.out)
    started = time.time()
    events, kinds, codes = weather(
        words, given.out, given.events, given.steps, given.seed, lambda t: print(t, flush=True)
    )
    (given.out / "kinds.json").write_text(json.dumps(kinds))
    print(f"{len(kinds)} deaths and joins in {time.time() - started:.0f} s, exit codes {codes}", flush=True)
    by_hand(words, given.out / "hand", events, given.steps)
    one_process = [{"event": "elastic", "settings": ["train.accumulation=8"]}, {"event": "step", "step": given.steps}]
    by_hand(words, given.out / "alone", one_process, given.steps)
    found = summary(given.out, given.steps)
    print(json.dumps(found, indent=2))
    if given.summary:
        given.summary.write_text(json.dumps(found, indent=2) + "\n")
    exact = found["equal_to_the_run_by_hand"] and found["tokens_and_rates_as_on_one_process"]
    return 0 if exact and found["steps"] == given.steps and not any(codes) else 1


if __name__ == "__main__":
    sys.exit(main())
