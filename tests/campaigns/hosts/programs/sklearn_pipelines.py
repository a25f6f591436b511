# /// script
# dependencies = ["skl2onnx>=1.20", "onnxruntime", "scikit-learn"]
#
# [tool.hosts]
# package = "skl2onnx"
# does = "pipelines of scikit-learn, fitted and converted"
# ///
"""Answers of pipelines that scikit-learn fits here and skl2onnx converts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime as rt
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris
from sklearn.ensemble import GradientBoostingRegressor, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

TEXTS = ("good and cheap", "bad and dear", "cheap, cheap", "dear but good", "bad")


def run(model, feeds: dict[str, np.ndarray]) -> list[object]:
    """Return what a converted pipeline answers, as JSON has it."""
    session = rt.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return [
        value.tolist() if isinstance(value, np.ndarray) else value
        for value in session.run(None, feeds)
    ]


def main() -> None:
    """Write the answers of six pipelines."""
    x, y = load_iris(return_X_y=True)
    x, names = x.astype(np.float32), np.array(["setosa", "versicolor", "virginica"])[y]
    trained, asked = x[::2], x[1::2]
    answers = {}
    for name, pipeline, target in (
        ("logistic", make_pipeline(StandardScaler(), LogisticRegression()), names),
        ("forest", RandomForestClassifier(20, random_state=0), names),
        ("boosted", GradientBoostingRegressor(random_state=0), y.astype(np.float32)),
        ("clusters", KMeans(3, n_init=1, random_state=0), y),
    ):
        pipeline.fit(trained, target[::2])
        answers[name] = run(to_onnx(pipeline, trained[:1]), {"X": asked})

    words = make_pipeline(TfidfVectorizer(lowercase=False), LogisticRegression())
    words.fit(TEXTS, [1, 0, 1, 1, 0])
    model = to_onnx(words, initial_types=[("text", StringTensorType([None]))])
    answers["words"] = run(model, {"text": np.array(["good", "bad, dear", "cheap"])})

    columns = ColumnTransformer(
        [("number", StandardScaler(), [0]), ("kind", OneHotEncoder(), [1])]
    )
    rows = np.array([[1.0, 0.0], [2.0, 1.0], [4.0, 2.0], [8.0, 1.0]], np.float32)
    columns.fit(rows)
    model = to_onnx(columns, initial_types=[("rows", FloatTensorType([None, 2]))])
    answers["columns"] = run(model, {"rows": rows})
    Path(sys.argv[1]).write_text(json.dumps(answers, indent=1), "utf-8")


if __name__ == "__main__":
    main()
