"""``labels: own``: each site has the classes that its images have, and keeps a head for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

import dropfed
from shared.audit.verify import verify
from shared.errors import ConfigurationError, DataError
from shared.exchange.names import SITE_MODEL, VERDICT, MessageRef
from shared.exchange.reading import parse_yaml
from shared.exchange.records.verdicts import Verdict
from shared.folder.local import LocalFolder
from shared.learning.data.labelled_photographs import own_labels
from shared.learning.kept_model import open_model
from shared.learning.methods import open_method
from shared.learning.predictions import evaluate_labelled
from shared.learning.sharing import build_network, sharing
from shared.learning.tasks import task_named
from tests.federation.in_process import FederationInProcess
from tests.federation.running import own_logins, run_configuration
from tests.learning.exports import write_kept

TASK = task_named("image_classification")
OPTIONS = {"encoder": "small", "weights": "random", "image_size": 32, "labels": "own", "optimizer": "adam"}
CLASSES = {"north": ("dark", "grey", "light"), "south": ("dim", "strong")}


def draw(root: Path, classes: tuple[str, ...]) -> None:
    """Images of one level for each class."""
    for number in range(12 * len(classes)):
        kind = number % len(classes)
        path = root / classes[kind] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        levels = np.random.default_rng(number).normal(60 + 60 * kind, 15, (32, 32)).clip(0, 255)
        Image.fromarray(levels.astype(np.uint8)).save(path)


@pytest.mark.parametrize("method", ["fedavg", "fedrep", "fedbn", "deep_ensembles"])
def test_the_head_stays_whatever_the_method_and_the_rest_has_one_shape_everywhere(method: str) -> None:
    opened, options = open_method(method, {}), TASK.options(OPTIONS)
    of_two, of_three = (
        sharing(TASK, opened, build_network(TASK, opened, options, classes, run_seed=1)) for classes in (2, 3)
    )
    assert of_two == of_three
    assert of_two.personal and all("head." in name for name in of_two.personal)
    assert not any("head." in name for name in of_two.tensors)


def test_sites_with_other_classes_learn_an_encoder_together(tmp_path: Path) -> None:
    for site, classes in CLASSES.items():
        draw(tmp_path / site, classes)
    run = {
        "task": "image_classification",
        "method": "fedavg",
        "rounds": 2,
        "batch_size": 4,
        "learning_rate": {"initial": 0.01, "factor": 1.0},
        "task_options": OPTIONS,
        "augmentation": {},
    }
    result = dropfed.simulate(run, {site: str(tmp_path / site) for site in CLASSES}, home=tmp_path / "home")
    for site, classes in CLASSES.items():
        model = result.model(site)
        assert model.classes == classes
        (prediction,) = model.predict(tmp_path / site / classes[0] / "0.png")
        assert prediction.probabilities.shape == (len(classes),)
    assert all(0 <= evaluation.scores["accuracy"].value <= 1 for evaluation in result.tests.values())
    means = result.view.rounds[0].means["test"]
    assert (means["accuracy_of_0"].sites, means["accuracy_of_0"].alike) == (2, None)
    assert means["accuracy"].alike is not None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"train": "head"}, "labels: own keeps each head at its site, and with train: head nothing would travel"),
        ({"labels": "mine"}, "task_options: labels: "),
        ({"labels": ["one"]}, "task_options: labels: "),
    ],
)
def test_what_cannot_be_is_said(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        TASK.options(OPTIONS | options)


def test_a_site_with_one_class_or_with_an_image_without_one_is_told(tmp_path: Path) -> None:
    draw(tmp_path / "one", ("all",))
    with pytest.raises(DataError, match="one: has images of 1 label; from 2 to 100 can be told apart"):
        own_labels(tmp_path / "one")
    draw(tmp_path / "images", ("x",))
    (tmp_path / "images" / "x").rename(tmp_path / "one" / "images")
    names = [path.stem for path in (tmp_path / "one" / "images").iterdir()]
    rows = "".join(f"{name},{'' if name == '0' else 'seen'}\n" for name in names)
    (tmp_path / "one" / "labels.csv").write_text("id,label\n" + rows)
    with pytest.raises(DataError, match=r"labels\.csv: an image has no label; add it"):
        own_labels(tmp_path / "one")


def test_a_labelled_folder_is_read_by_the_models_classes_and_not_by_their_places(tmp_path: Path) -> None:
    classes = ("glaucoma", "normal")
    settings = {"task": TASK.name, "method": "fedavg", "task_options": OPTIONS}
    write_kept(tmp_path / "model", [*classes], **settings)
    model = open_model(tmp_path / "model")
    draw(tmp_path / "both", classes)
    draw(tmp_path / "one", ("normal",))
    draw(tmp_path / "others", ("cataract", "glaucoma"))
    page = tmp_path / "page.html"
    assert evaluate_labelled(model, tmp_path / "both").images == 24
    assert evaluate_labelled(model, tmp_path / "one", page).images == 12
    assert page.read_text().count("Graded as normal by people") == 12
    with pytest.raises(ConfigurationError, match="others: has images of cataract; the model knows glaucoma, normal; "):
        evaluate_labelled(model, tmp_path / "others")


def test_fedrep_in_a_federation_of_daemons_sends_no_head(tmp_path: Path) -> None:
    for site, classes in (CLASSES | {"heldout": ("a", "b")}).items():
        draw(tmp_path / "data" / site, classes)
    run = run_configuration(
        task=TASK.name, method="fedrep", task_options=OPTIONS, augmentation={}, tolerance={"below_last": 0.9}
    )
    with FederationInProcess(tmp_path, run, data=tmp_path / "data") as federation:
        federation.set_up(own_logins(run.sites, f"http://127.0.0.1:{federation.server.port}"))
        federation.run_to_the_end()
    for site, classes in CLASSES.items():
        folder = federation.folder(site)
        verdict = parse_yaml((folder / MessageRef("verdict", run.run, 1).path / VERDICT).read_bytes(), Verdict, VERDICT)
        assert verdict.status == "accepted"
        sent = load_file(folder / MessageRef("update", run.run, 1).path / SITE_MODEL)
        assert sent and not [name for name in sent if "head" in name]
        assert dropfed.load(federation.site(site) / "final" / run.run).classes == classes
        assert not verify(LocalFolder(folder)).findings
