"""Notebooks in the kernel of Jupyter: the one that is shipped, and a run whose stop button is pressed."""

import re
from pathlib import Path

import pytest

jupyter_client = pytest.importorskip("jupyter_client", reason="`make test-clients` has it")
nbclient = pytest.importorskip("nbclient", reason="`make test-clients` has it")
nbformat = pytest.importorskip("nbformat", reason="`make test-clients` has it")

SHIPPED = Path(__file__).parents[4] / "examples" / "notebooks" / "fine_tune.ipynb"


def outputs(cell):
    """Text of the outputs of a cell, HTML of its displays, and names of errors."""
    text = "".join(
        output.get("text", "") or output.get("data", {}).get("text/plain", "")
        for output in cell.outputs
        if output.output_type in ("stream", "execute_result")
    )
    html = [output.data["text/html"] for output in cell.outputs if "text/html" in output.get("data", {})]
    return text, html, [output.ename for output in cell.outputs if output.output_type == "error"]


def test_the_shipped_notebook_runs_to_its_end(tmp_path):
    notebook = nbformat.read(SHIPPED, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}, timeout=None).execute()
    found = {cell.source.splitlines()[0]: outputs(cell) for cell in notebook.cells if cell.cell_type == "code"}
    text, [display], errors = found["trainer.train()"]
    assert text.strip() == "'finished'"
    assert "step 120 of 120" in display
    assert "<polyline" in display
    assert "eval loss" in display
    assert not errors
    assert "Norway Oslo." in found["for country in CAPITALS:"][0]
    assert len(re.findall(r"\d\.\d", found["history = trainer.history"][0])) >= 5
    [exported] = (tmp_path / "capitals").glob("*.gguf")
    assert exported.read_bytes()[:4] == b"GGUF"


CELLS = """
import erniecore, time
from pathlib import Path
from erniecore.api import hookimpl

class Pressed:
    "Asks for the stop button: once in step 4, twice in step 8,."
    seen = set()

    @hookimpl
    def ernie_step_start(self, run, step):
        if step in (4, 8) and step not in self.seen:
            self.seen.add(step)
            print("press", flush=True)
            while not Path(f"pressed-{len(self.seen)}").exists():
                time.sleep(0.01)
            if step == 8:
                print("press", flush=True)
                while True:
                    time.sleep(0.01)

trainer = erniecore.Trainer(
    {"model": {"path": MODEL}, "method": "sft", "data": {"train": ROWS, "max_seq_len": 96},
     "train": {"max_steps": 12, "batch_size": 2}}, listeners=[Pressed()],
)
###
trainer.train()
###
trainer.train()
###
trainer.train()
###
print(trainer.history["step"], len(trainer.history["loss"]), bool(trainer.generate("a b", max_new_tokens=4)), trainer.out)
"""


def test_the_stop_button_saves_and_the_second_press_ends_at_once(talker, tmp_path):
    manager = jupyter_client.KernelManager()
    manager.start_kernel(cwd=str(tmp_path))
    client = manager.client()
    client.start_channels()
    client.wait_for_ready()
    cells = CELLS.replace("MODEL", repr(str(talker / "model"))).replace("ROWS", repr(str(talker / "rows.jsonl")))
    presses = 0

    def execute(source):
        """Status of the reply, name of its error, and what was printed and returned."""
        said = []

        def hear(message):
            nonlocal presses
            content = message["content"]
            said.append(content.get("text", "") or content.get("data", {}).get("text/plain", ""))
            if message["msg_type"] == "stream" and content["name"] == "stdout" and "press" in content["text"]:
                manager.interrupt_kernel()
                presses += 1
                (tmp_path / f"pressed-{presses}").touch()

        reply = client.execute_interactive(source, output_hook=hear, allow_stdin=False)["content"]
        return reply["status"], reply.get("ename", ""), "".join(said)

    try:
        first, *rest = cells.split("###")
        assert execute(first)[0] == "ok"
        (once, _, text), (twice, error, _), (last, _, end), (_, _, facts) = map(execute, rest)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert (once, twice, last) == ("ok", "error", "ok")
    assert error == "InterruptedTwice"
    assert "'preempted'" in text
    assert "train() goes on from there" in text
    assert "'finished'" in end
    assert presses == 3
    assert facts.startswith("[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12] 12 True runs/")
