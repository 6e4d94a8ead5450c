"""`cohort serve --check`."""

from __future__ import annotations

from server.models.report import CheckedModel, report_of

GIB = 2**30


def test_what_fits_together() -> None:
    models = [
        CheckedModel("chat", GIB, False, None, 8192),
        CheckedModel("large", 5 * GIB, True, None, 512),
        CheckedModel("embed", GIB // 2, False, None),
        CheckedModel("huge", 4 * GIB, False, None),
        CheckedModel("torn", 0, False, "1 of 2 parts are missing"),
    ]
    report = report_of(models, 7 * GIB)
    assert not report.is_good
    assert report.text.splitlines() == [
        "memory    7.0 GiB for all loaded models, 5.0 GiB of it pinned",
        "chat      1.0 GiB, fits, contexts of 8,192 tokens",
        "large     5.0 GiB, pinned, contexts of 512 tokens",
        "embed     0.5 GiB, fits",
        "huge      4.0 GiB, does not fit beside the pinned models",
        "torn      cannot be served: 1 of 2 parts are missing",
        "together  at most 3 of 5 models are loaded at once",
    ]
    assert report_of(models[:3], 7 * GIB).is_good


def test_pinned_models_that_do_not_fit() -> None:
    models = [CheckedModel(name, GIB, True, None) for name in "ab"]
    report = report_of(models, 1.5 * GIB)
    assert not report.is_good and "the pinned models do not fit together" in report.text
