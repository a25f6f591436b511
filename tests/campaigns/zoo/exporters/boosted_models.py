# /// script
# dependencies = [
#   "onnxmltools==1.16.0", "skl2onnx==1.20.0", "lightgbm==4.7.0", "xgboost==3.2.0", "catboost==1.2.10",
#   "scikit-learn==1.9.1", "pandas==3.1.1", "onnx==1.23.2", "onnxruntime==1.32.0",
# ]
# [tool.zoo]
# models = ["lightgbm_*", "xgboost_*", "catboost_*"]
# ///
"""Make boosted trees of LightGBM and XGBoost, exported by onnxmltools, and of CatBoost,
exported by itself.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from catboost import CatBoostClassifier, CatBoostRegressor
from lightgbm import LGBMClassifier, LGBMRegressor
from onnxmltools import convert_lightgbm, convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType
from saving import ROWS, drawn, save
from xgboost import XGBClassifier, XGBRegressor

X = drawn(80, 5)
CLASSES = (X.sum(axis=1) > 0).astype(np.int64) + (X[:, 0] > 0.5)
INPUTS = {"x": X[:ROWS]}
TYPES = [("x", FloatTensorType([None, 5]))]


def lightgbm() -> None:
    """Save classifiers, of which one declares `int64[1]` for N labels, and a
    regressor.
    """
    small = {
        "n_estimators": 4,
        "num_leaves": 6,
        "min_child_samples": 5,
        "verbose": -1,
        "n_jobs": 1,
    }
    classifier = LGBMClassifier(**small).fit(X, CLASSES)
    save("lightgbm_zipmap", convert_lightgbm(classifier, "zipmap", TYPES), INPUTS)
    save(
        "lightgbm_classes",
        convert_lightgbm(classifier, "classes", TYPES, zipmap=False),
        INPUTS,
    )
    regressor = LGBMRegressor(**small).fit(X, X[:, 1])
    save("lightgbm_regressor", convert_lightgbm(regressor, "regressor", TYPES), INPUTS)


def xgboost() -> None:
    """Save a classifier and a regressor."""
    small = {"n_estimators": 4, "max_depth": 3, "n_jobs": 1}
    save(
        "xgboost_classes",
        convert_xgboost(XGBClassifier(**small).fit(X, CLASSES), "classes", TYPES),
        INPUTS,
    )
    regressor = XGBRegressor(**small).fit(X, X[:, 1])
    save("xgboost_regressor", convert_xgboost(regressor, "regressor", TYPES), INPUTS)


def catboost() -> None:
    """Save a classifier, which ends in a ZipMap, and a regressor."""
    small = {
        "iterations": 4,
        "depth": 3,
        "thread_count": 1,
        "random_seed": 0,
        "allow_writing_files": False,
    }
    for name, model, expected in [
        ("catboost_zipmap", CatBoostClassifier(**small), CLASSES),
        ("catboost_regressor", CatBoostRegressor(**small), X[:, 1]),
    ]:
        model.fit(X, expected, verbose=False)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            model.save_model(str(path), format="onnx")
            save(name, path.read_bytes(), {"features": X[:ROWS]})


lightgbm()
xgboost()
catboost()
