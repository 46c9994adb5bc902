"""Build the bundled files of `sdm_sklearn.datasets` from raw texts.

For each set a table of texts (parquet or CSV) is embedded with a model of yours and
written to one compressed npz file without pickled objects::

    python benchmarks/build_datasets.py intents TABLE --model MODEL --out DIR
    python benchmarks/build_datasets.py true_false TABLE --model MODEL --out DIR

MODEL is a name or folder that transformers can load: an encoder such as
all-MiniLM-L6-v2 for the intents, a causal language model such as SmolLM2-135M-Instruct
for the statements. If the embeddings exist already, pass `--embeddings FILE.npz`
instead: its array X has one row per table row, or per row named by its array `row`.

Columns read. intents: text, label_name, domain, split ("oos_test" marks the
out-of-scope queries kept). true_false: text, label, split ("test" marks the test
statements).
"""

import argparse
from pathlib import Path

import numpy as np

DOMAIN = "banking"
N_FIT_STATEMENTS = 500
STATEMENT_PROMPT = (
    "Here is a statement that may contain errors. <statement> {text} </statement> "
    "Is the statement true? Answer Yes if the statement is true. Answer No if the "
    "statement is false. Start your response with Yes or No."
)


def read_table(path):
    import pandas

    return (
        pandas.read_parquet(path)
        if path.suffix == ".parquet"
        else pandas.read_csv(path)
    )


def sentence_embeddings(texts, model_name, batch_size=64):
    """Mean-pooled, L2-normalised hidden states of an encoder."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_name)
    model = AutoModel.from_pretrained(model_name).eval()
    out = []
    for start in range(0, len(texts), batch_size):
        batch = tokenizer(
            list(texts[start : start + batch_size]),
            padding=True,
            truncation=True,
            return_tensors="pt",
        )
        with torch.inference_mode():
            hidden = model(**batch).last_hidden_state
        mask = batch["attention_mask"][..., None]
        mean = (hidden * mask).sum(1) / mask.sum(1)
        out.append(torch.nn.functional.normalize(mean, dim=1).float().numpy())
    return np.concatenate(out)


def prompt_embeddings(texts, model_name, prompt):
    """[mean of the final hidden states ; final hidden state of the last position]."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_name)
    model = AutoModelForCausalLM.from_pretrained(model_name).eval()
    out = []
    for text in texts:
        message = [{"role": "user", "content": prompt.format(text=text)}]
        ids = tokenizer.apply_chat_template(
            message, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.inference_mode():
            hidden = model(**ids, output_hidden_states=True).hidden_states[-1][0]
        out.append(torch.cat([hidden.mean(0), hidden[-1]]).float().numpy())
    return np.stack(out)


def rows_of(table, arguments):
    """Embeddings of all rows of the table, cached or computed."""
    if arguments.embeddings:
        with np.load(arguments.embeddings) as archive:
            X = np.full((len(table), archive["X"].shape[1]), np.nan, dtype=np.float16)
            X[archive["row"] if "row" in archive else slice(None)] = archive["X"]
        return lambda rows: X[rows]
    texts = table["text"].to_numpy()
    if arguments.set == "intents":
        return lambda rows: sentence_embeddings(texts[rows], arguments.model)
    return lambda rows: prompt_embeddings(
        texts[rows], arguments.model, STATEMENT_PROMPT
    )


def block(texts):
    return np.frombuffer("\n".join(texts).encode(), dtype=np.uint8)


def build_intents(table, embed):
    rows = np.flatnonzero(table["domain"] == DOMAIN)
    ood = np.flatnonzero(table["split"] == "oos_test")
    names, target = np.unique(
        table["label_name"].iloc[rows].to_numpy(str), return_inverse=True
    )
    return {
        "data": embed(rows).astype(np.float16),
        "target": target.astype(np.uint8),
        "target_names": names,
        "texts": block(table["text"].iloc[rows]),
        "ood_data": embed(ood).astype(np.float16),
        "ood_texts": block(table["text"].iloc[ood]),
    }


def build_true_false(table, embed):
    test = np.flatnonzero(table["split"] == "test")
    label = table["label"].to_numpy()
    random = np.random.RandomState(0)
    fit = np.sort(
        np.concatenate(
            [
                random.choice(
                    np.flatnonzero((table["split"] != "test") & (label == value)),
                    N_FIT_STATEMENTS // 2,
                    replace=False,
                )
                for value in (0, 1)
            ]
        )
    )
    rows = np.concatenate([fit, test])
    return {
        "data": embed(rows).astype(np.float16),
        "target": label[rows].astype(np.uint8),
        "target_names": np.array([False, True]),
        "texts": block(table["text"].iloc[rows]),
        "split": np.repeat(["fit", "test"], [len(fit), len(test)]),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("set", choices=["intents", "true_false"])
    parser.add_argument("table", type=Path)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model")
    source.add_argument("--embeddings", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    table = read_table(arguments.table)
    build = build_intents if arguments.set == "intents" else build_true_false
    path = arguments.out / f"{arguments.set}.npz"
    np.savez_compressed(path, **build(table, rows_of(table, arguments)))
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
