"""Charts of what matters to a method."""

import json
import struct

from erniecore_report import write_report
from erniecore_report.panels import panels
from erniecore_report.write import charts
from erniecore_runs.record import read_run


def write(directory, *events):
    directory.mkdir(exist_ok=True)
    start = {"event": "run_start", "name": "pairs", "total_steps": 4}
    (directory / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in (start, *events)))
    return directory


def steps(count=4, **metrics):
    for i in range(1, count + 1):
        plain = {"loss": 1 / i, "lr": 1e-3, "grad_norm": 1.0, "tokens": 9, "seconds": 0.1, "eta": 3.0, "peak_memory": 9}
        yield {"event": "step", "step": i, **plain, **{name: value * i for name, value in metrics.items()}}


def size_of(png):
    return struct.unpack(">II", png.read_bytes()[16:24])


def test_metrics_of_steps_and_evaluations_are_found_the_telling_ones_first(tmp_path):
    evaluation = {"event": "eval", "loss": 0.3, "perplexity": 1.3, "rewards/accuracies": 0.8, "seconds": 1.0}
    events = [
        *steps(**{"logps/chosen": -3.0, "kl": 0.1, "rewards/margins": 0.2, "rewards/accuracies": 0.1}),
        *({**evaluation, "step": step} for step in (2, 4)),
    ]
    record = read_run(write(tmp_path / "r", *events))
    assert panels(record) == ["rewards/accuracies", "rewards/margins", "perplexity", "kl", "logps/chosen"]


def test_a_metric_without_a_finite_value_has_no_chart(tmp_path):
    record = read_run(write(tmp_path / "r", *({**event, "odd": None, "word": "x"} for event in steps())))
    assert panels(record) == []


def test_each_has_a_chart_with_its_evaluations_behind_the_loss(tmp_path):
    evaluation = {"event": "eval", "step": 4, "loss": 0.3, "rewards/margins": 0.7}
    made = charts(read_run(write(tmp_path / "r", *steps(**{"rewards/margins": 0.2}), evaluation)))
    assert [drawing.chart.title for drawing in made][:3] == ["loss", "rewards/margins", "gradient norm"]
    assert len(made[1].chart.targets) == 4
    assert len(made[1].chart.dots) == 1


def test_a_metric_that_only_evaluations_have_is_drawn(tmp_path):
    evaluations = [{"event": "eval", "step": i, "exact_match": i / 4} for i in (2, 4)]
    made = charts(read_run(write(tmp_path / "r", *steps(), *evaluations)))
    (chart,) = (d.chart for d in made if d.chart.title == "exact_match")
    assert (chart.line, len(chart.dots)) == ("", 2)


def test_one_evaluation_is_a_figure_and_no_curve(tmp_path):
    evaluation = {"event": "eval", "step": 4, "loss": 0.3, "perplexity": 1.35}
    directory = write(tmp_path / "r", *steps(), evaluation)
    assert panels(read_run(directory)) == []
    write_report(directory)
    page = (directory / "report.html").read_text()
    assert 'aria-label="perplexity' not in page
    assert "1.35" in page


def test_page_and_picture_show_them_and_need_nothing_else(tmp_path):
    plain, more = (
        write(tmp_path / "plain", *steps()),
        write(tmp_path / "more", *steps(**{"rewards/<b>": 0.1, "$kl": 2.0})),
    )
    for directory in (plain, more):
        assert write_report(directory).notes == []
    page = (more / "report.html").read_text()
    assert "rewards/&lt;b&gt;" in page
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert size_of(more / "loss.png")[1] > size_of(plain / "loss.png")[1]


def test_the_image_shows_the_curve_and_the_evaluations(tmp_path):
    import numpy as np
    from PIL import Image

    losses = [{"event": "step", "step": i, "loss": 4.0 - i / 10} for i in range(1, 31)]
    evaluations = [{"event": "eval", "step": step, "loss": 4.0} for step in (10, 20)]
    write_report(write(tmp_path / "r", *losses, *evaluations))
    pixels = np.asarray(Image.open(tmp_path / "r" / "loss.png")).astype(int)
    red, blue = pixels[..., 0], pixels[..., 2]
    rows, columns = np.nonzero((blue > 200) & (red < 80))
    assert np.corrcoef(columns, rows)[0, 1] > 0.99  # a falling line: further right is further down
    assert np.ptp(columns) > 0.8 * pixels.shape[1]
    rows, columns = np.nonzero((red > 180) & (blue < 60))
    dots = np.flatnonzero(np.diff(np.flatnonzero(np.bincount(columns) > 6)) > 1)
    assert len(dots) == 2  # two evaluations and the legend
    assert rows.max() < 0.3 * pixels.shape[0]  # they are at the height of the highest loss
