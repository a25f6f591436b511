# /// script
# dependencies = ["skl2onnx==1.20.0", "scikit-learn==1.9.1", "onnx==1.23.2", "pandas==3.1.1", "onnxruntime==1.32.0"]
# [tool.zoo]
# models = ["sklearn_*"]
# ///
"""Make pipelines of scikit-learn, exported by skl2onnx, with ZipMap, text columns and
old operator sets.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from saving import ROWS, drawn, save
from skl2onnx import to_onnx
from skl2onnx.common.data_types import (
    DictionaryType,
    FloatTensorType,
    Int64TensorType,
    StringTensorType,
)
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import IsolationForest, RandomForestClassifier
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.svm import SVC

X = drawn(60, 4)
CLASSES = (X.sum(axis=1) > 0).astype(np.int64) + (X[:, 0] > 0.5)
CITIES = np.array(["Aachen", "Bergen", "Cádiz"])
WORDS = [
    "the",
    "small",
    "grey",
    "cat",
    "saw",
    "one",
    "old",
    "dog",
    "under",
    "a",
    "tree",
]


def sentences(count: int) -> np.ndarray:
    """Return made-up sentences of eight words."""
    draw = np.random.default_rng(3)
    return np.array([" ".join(draw.choice(WORDS, 8)) for _ in range(count)])


def numbers(
    name: str, model: object, target_opset: object = None, **options: object
) -> None:
    """Fit a model to numbers alone, export it, save it."""
    model.fit(X, CLASSES)
    exported = to_onnx(
        model,
        initial_types=[("x", FloatTensorType([None, 4]))],
        target_opset=target_opset,
        options={id(model): options} if options else None,
    )
    save(name, exported, {"x": X[:ROWS]})


def text_columns() -> None:
    """Save a classifier of columns of text, whole numbers and floats, whose labels are
    text.
    """
    frame = pd.DataFrame(
        {"city": CITIES[np.arange(60) % 3], "age": np.arange(60) % 7, "weight": X[:, 0]}
    )
    columns = ColumnTransformer(
        [
            ("one_hot", OneHotEncoder(handle_unknown="ignore"), ["city"]),
            ("scaled", StandardScaler(), ["age", "weight"]),
        ]
    )
    labels = np.array(["no", "yes", "perhaps"])[CLASSES]
    model = make_pipeline(
        columns, RandomForestClassifier(5, max_depth=4, random_state=0)
    ).fit(frame, labels)
    types = [
        ("city", StringTensorType([None, 1])),
        ("age", Int64TensorType([None, 1])),
        ("weight", FloatTensorType([None, 1])),
    ]
    inputs = {name: frame[[name]].to_numpy()[:ROWS] for name in ("age", "weight")}
    cities = np.array([*CITIES, "Delft", "", "Aachen"])[:, None]
    save(
        "sklearn_text_columns",
        to_onnx(model, initial_types=types),
        {"city": cities, **inputs},
    )


def texts() -> None:
    """Save classifiers of whole sentences: by weighted and by counted words."""
    known = sentences(60)
    for name, vectorizer in [
        ("sklearn_tfidf", TfidfVectorizer(ngram_range=(1, 2), max_features=40)),
        ("sklearn_count", CountVectorizer()),
    ]:
        model = make_pipeline(vectorizer, LogisticRegression()).fit(known, CLASSES)
        options = {id(vectorizer): {"locale": "C"}}  # every machine has it
        exported = to_onnx(
            model, initial_types=[("text", StringTensorType([None]))], options=options
        )
        save(name, exported, {"text": sentences(ROWS)})


def categories() -> None:
    """Save an encoder of text, with numbers beside it that are partly missing."""
    cities = CITIES[np.arange(60) % 3][:, None]
    numbers_with_gaps = X.copy()
    numbers_with_gaps[::5, 1] = np.nan
    model = ColumnTransformer(
        [("ordinal", OrdinalEncoder(), [0]), ("imputed", SimpleImputer(), [1, 2, 3, 4])]
    ).fit(
        pd.concat(
            [pd.DataFrame(cities), pd.DataFrame(numbers_with_gaps)],
            axis=1,
            ignore_index=True,
        )
    )
    types = [("city", StringTensorType([None, 1])), ("x", FloatTensorType([None, 4]))]
    exported = to_onnx(model, initial_types=types)
    save(
        "sklearn_categories",
        exported,
        {"city": cities[:ROWS], "x": numbers_with_gaps[:ROWS]},
    )


def dictionary() -> None:
    """Save a classifier whose input is a map."""
    known = [
        {"age": 3.0, "size": 2.0},
        {"weight": 3.0},
        {"age": 0.5, "weight": 1.0},
        {"size": 1.0},
    ]
    model = make_pipeline(DictVectorizer(sparse=False), LogisticRegression()).fit(
        known, [0, 1, 0, 1]
    )
    given = DictionaryType(StringTensorType([1]), FloatTensorType([1]))
    exported = to_onnx(model, initial_types=[("measured", given)])
    save(
        "sklearn_dictionary",
        exported,
        {"measured": {"weight": 1.5, "length": 4.0, "age": 2.0}},
    )


def process() -> None:
    """Save a Gaussian process, whose output is a column."""
    model = GaussianProcessRegressor(alpha=1.0).fit(
        X.astype(np.float64)[:20], X[:20, 0]
    )
    exported = to_onnx(
        model, initial_types=[("x", FloatTensorType([None, 4]))], target_opset=12
    )
    save("sklearn_gaussian_process_opset12", exported, {"x": X[:ROWS]})


numbers("sklearn_zipmap", make_pipeline(StandardScaler(), LogisticRegression()))
numbers(
    "sklearn_svm_opset10",
    SVC(probability=False),
    {"": 10, "ai.onnx.ml": 1},
    zipmap=False,
)
numbers(
    "sklearn_mlp_opset9",
    MLPClassifier((8,), max_iter=30, random_state=0),
    {"": 9, "ai.onnx.ml": 1},
)
numbers(
    "sklearn_bayes_opset11", GaussianNB(), {"": 11, "ai.onnx.ml": 1}, zipmap="columns"
)
numbers("sklearn_neighbours", KNeighborsClassifier(3))
numbers(
    "sklearn_neighbours_opset11",
    KNeighborsClassifier(3),
    {"": 11, "ai.onnx.ml": 1},
    zipmap=False,
)
numbers(
    "sklearn_means_opset9",
    KMeans(3, random_state=0, n_init=1),
    {"": 9, "ai.onnx.ml": 1},
)
numbers(
    "sklearn_isolation_forest",
    IsolationForest(n_estimators=4, random_state=0),
    {"": 15, "ai.onnx.ml": 3},
)
text_columns()
texts()
categories()
dictionary()
process()
