"""What a batch is trained by: each target's terms, and each image's own."""

import pytest
import torch
from torch.nn import functional

from shared.errors import ConfigurationError
from shared.learning.methods import open_method
from shared.learning.objectives import (
    IGNORED,
    LOSS,
    CrossEntropy,
    Ensemble,
    Evidential,
    Focal,
    Weighted,
    WithDice,
    annealed,
    balanced_weights,
    by_target,
    image_losses,
    loss_of_each_image,
)
from shared.learning.run_checks import check_together
from tests.federation.running import run_configuration, staging_run
from tests.learning.fixtures_file import cases

LOGITS = torch.tensor(
    [
        [[[2.0, -1.0, 0.5], [0.0, 1.5, -2.0]], [[-1.0, 0.5, 0.0], [1.0, -0.5, 3.0]]],
        [[[0.25, 1.0, -0.75], [2.5, -1.5, 0.0]], [[0.5, -2.0, 1.25], [0.0, 0.75, -1.0]]],
    ],
    dtype=torch.float64,
)  # (B, K, H, W)
MASKS = torch.tensor([[[0, 1, 1], [0, 0, 1]], [[1, 0, 1], [0, 0, 0]]])


def test_dice_beside_cross_entropy_is_monais():
    """MONAI 1.6.1: DiceCELoss and DiceLoss with softmax, to_onehot_y; FocalLoss summed over classes, gamma 2."""
    loss, of_images = image_losses(WithDice(CrossEntropy()), LOGITS, MASKS)
    assert loss.item() == pytest.approx(0.817821580598, abs=1e-11)
    assert of_images["loss_dice"].tolist() == pytest.approx([0.284935726158, 0.323241531036], abs=1e-11)
    assert image_losses(Focal(), LOGITS, MASKS)[0].item() == pytest.approx(0.262226169855, abs=1e-6)


@pytest.mark.parametrize("objective", [CrossEntropy(), Focal(), Evidential(temperature=0.05, kl_weight=0.5)])
def test_the_loss_of_an_image_is_that_of_its_targets_and_its_own(objective):
    """So private training, which asks for each image's, makes the same small."""
    plain, dice = image_losses(objective, LOGITS, MASKS)[1], image_losses(WithDice(objective), LOGITS, MASKS)[1]
    assert torch.equal(dice[LOSS], plain[LOSS] + dice["loss_dice"])
    assert torch.equal(loss_of_each_image(WithDice(objective), LOGITS, MASKS), dice[LOSS])
    assert set(dice) == {*plain, "loss_dice"}


def test_what_is_annealed_by_steps_is_so_within_what_is_around_it():
    by_steps = Evidential(temperature=0.05, kl_weight=0.0, anneal_steps=8)
    assert [annealed(by_steps, steps).kl_weight for steps in (0, 2, 8, 9)] == [0, 0.25, 1, 1]
    around = annealed(Ensemble(Weighted(WithDice(by_steps), (1.0, 2.0))), 4)
    assert around == Ensemble(Weighted(WithDice(annealed(by_steps, 4)), (1.0, 2.0)))
    for other in (CrossEntropy(), WithDice(Focal()), Evidential(temperature=0.05, kl_weight=0.5)):
        assert annealed(other, 4) == other


@pytest.mark.parametrize("case", cases("edl_logits_A_K5"))
def test_evidence_alone_is_the_papers_uce_and_answers_by_the_dirichlets_mean(case):
    told, expected = case["input"], case["expected"]
    alone = open_method("fedbn", {"objective": "evidential", "tempered": False, "anneal_rounds": 4}).objective(2, 9)
    logits, targets = torch.tensor([told["logits"]], dtype=torch.float64), torch.tensor([told["y"]])
    terms = alone.terms(logits, targets)
    assert set(terms) == {LOSS, "loss_ice", "loss_kl"}
    assert terms[LOSS].item() == pytest.approx(expected["L_Uce"], rel=1e-11)
    mean = [each / expected["S"] for each in expected["alpha"]]
    assert alone.probabilities(logits)[0].tolist() == pytest.approx(mean, rel=1e-9)


@pytest.mark.parametrize("of", [CrossEntropy(), Evidential(temperature=0.05, kl_weight=0.5), WithDice(Focal())])
def test_balanced_classes_count_alike(of):
    """scikit-learn's compute_class_weight("balanced"); PyTorch's cross-entropy with such weights."""
    weights = balanced_weights([7, 5, 0])  # nothing is of the third
    assert weights == pytest.approx([12 / (2 * 7), 12 / (2 * 5), 1.0])
    mean, of_images = image_losses(Weighted(of, weights), LOGITS, MASKS)
    plain = of.terms(by_target(LOGITS, MASKS).flatten(0, 2), MASKS.flatten())[LOSS]
    by_class = [plain[MASKS.flatten() == kind].mean() for kind in (0, 1)]
    own = of_images.get("loss_dice", torch.zeros(2)).mean()
    assert mean.item() == pytest.approx((sum(by_class) / 2 + own).item(), abs=1e-6)
    torch.testing.assert_close(loss_of_each_image(Weighted(of, weights), LOGITS, MASKS), of_images[LOSS])
    if of == CrossEntropy():
        torchs = functional.cross_entropy(LOGITS, MASKS, weight=torch.tensor(weights[:2], dtype=torch.float64))
        assert mean.item() == pytest.approx(torchs.item(), abs=1e-6)


def test_balanced_weights_are_not_private():
    privacy = {"target_epsilon": 8, "delta": 0.001, "max_grad_norm": 1.0}
    with pytest.raises(ConfigurationError, match=r"privacy: method_options: class_weights: .*; say none"):
        check_together(run_configuration(privacy=privacy, method_options={"class_weights": "balanced"}))
    with pytest.raises(ConfigurationError, match=r"privacy: task_options: max_grad_norm: .*; leave it out there"):
        check_together(run_configuration(privacy=privacy, task_options={"max_grad_norm": 1.0}))


def test_what_fills_a_batch_up_counts_in_no_overlap():
    filled_up = torch.cat([LOGITS, torch.full((2, 2, 2, 4), 9.0)], dim=3)  # to the right
    masks = torch.cat([MASKS, torch.full((2, 2, 4), IGNORED)], dim=2)
    plain = image_losses(WithDice(CrossEntropy()), LOGITS, MASKS)
    found = image_losses(WithDice(CrossEntropy()), filled_up, masks)
    assert found[0].item() == pytest.approx(plain[0].item(), abs=1e-12)
    torch.testing.assert_close(found[1], plain[1])


def test_each_member_of_an_ensemble_learns_the_overlap():
    members = torch.stack([LOGITS, -LOGITS], dim=1)  # (B, M, K, H, W)
    found = image_losses(Ensemble(WithDice(CrossEntropy())), members, MASKS)[1]
    alone = [image_losses(WithDice(CrossEntropy()), logits, MASKS)[1] for logits in (LOGITS, -LOGITS)]
    for name in (LOSS, "loss_dice"):
        torch.testing.assert_close(found[name], alone[0][name] + alone[1][name])
    passes = open_method("mc_dropout", {"dice": True}).objective(1, 1)
    torch.testing.assert_close(image_losses(passes, members, MASKS)[1]["loss_dice"], found["loss_dice"] / 2)


def test_a_mask_that_is_met_costs_nothing_and_one_that_is_missed_all():
    sure = 50 * torch.stack([1 - MASKS, MASKS], dim=1).double()
    assert image_losses(WithDice(CrossEntropy()), sure, MASKS)[0].item() == pytest.approx(0, abs=1e-12)
    assert image_losses(WithDice(CrossEntropy()), -sure, MASKS)[1]["loss_dice"].tolist() == pytest.approx(
        [1, 1], abs=1e-5
    )


def test_overlap_is_of_masks():
    check_together(run_configuration(method_options={"dice": True, "objective": "focal"}))
    with pytest.raises(
        ConfigurationError, match=r"dice is the overlap of masks, and dr_staging has none; set `dice: f"
    ):
        check_together(staging_run(method="fedbn", method_options={"dice": True}))
