"""Build the bundled file of `sdm_sklearn.datasets.load_emotions`.

    python benchmarks/build_emotions.py --data DIR --out DIR

DIR holds `goemotions.parquet` (column text), `goemotions_open_smollm2.npz` (last
hidden states H, labels y, rows of the table, and H_cf of content-free inputs),
`smollm2_E_q8.npz` (output embeddings in blocks of 8 bits) and `smollm2_vocab.json`
(token texts).

Kept of the output embeddings are the rows with a whitened similarity above .2 to a
label word, and the moments of all rows: the default kernel stays what it is.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from sdm_sklearn import (
    OutputEmbeddings,
    SemanticSoftmaxCalibrator,
    find_label_tokens,
)

EMOTIONS = ["anger", "disgust", "fear", "joy", "sadness", "surprise", "neutral"]


def text_block(texts):
    return np.frombuffer("\n".join(texts).encode(), dtype=np.uint8)


def build(folder):
    import pandas

    with np.load(folder / "smollm2_E_q8.npz") as archive:
        blocks, scales = archive["q"], archive["scale"]
    blocks = blocks.reshape(len(blocks), scales.shape[1], -1)
    matrix = (blocks * scales[:, :, None].astype(np.float32)).reshape(len(blocks), -1)
    output = OutputEmbeddings(matrix)
    tokens = json.loads((folder / "smollm2_vocab.json").read_text())["decoded"]
    with np.load(folder / "goemotions_open_smollm2.npz") as archive:
        states = {key: archive[key] for key in archive.files}

    labels = find_label_tokens(EMOTIONS, tokens)
    calibrator = SemanticSoftmaxCalibrator(labels, output).fit(states["H"])
    kept = calibrator.required_token_ids_
    mean, covariance = output.moments()
    deviation = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(deviation, deviation)
    names = np.unique(EMOTIONS)
    texts = pandas.read_parquet(folder / "goemotions.parquet")["text"]
    return {
        "data": states["H"].astype(np.float16),
        "target": np.searchsorted(names, np.array(EMOTIONS)[states["y"]]).astype("u1"),
        "target_names": names,
        "texts": text_block(t.replace("\n", " ") for t in texts.iloc[states["row"]]),
        "natural": states["natural"],
        "content_free_data": states["H_cf"].astype(np.float16),
        "token_texts": text_block(tokens[i] for i in kept),
        "token_blocks": blocks[kept],
        "token_scales": scales[kept],
        "embedding_mean": mean.astype(np.float32),
        "embedding_deviation": deviation.astype(np.float32),
        "embedding_correlation": correlation[np.triu_indices(len(mean), 1)].astype(
            "f2"
        ),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    path = arguments.out / "emotions.npz"
    np.savez_compressed(path, **build(arguments.data))
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
