"""How often is a certificate wrong? Draws from populations whose accuracies are known.

A population is a finite list of rows with a prediction, a true class and a score; rows
are drawn from it with replacement, so that every conditional accuracy is known exactly.
A draw is wrong if thresholds are certified whose accuracy is below alpha, in any class
that is answered, by prediction or by true class::

    python benchmarks/certificate_coverage.py --draws 1000
"""

import argparse

import numpy as np

from sdm_sklearn._certify import certify_thresholds
from sdm_sklearn._evidence import Scored, count_accepted


def make_population(n_classes, imbalance, kind, alpha, size=20000, seed=0):
    """Return rows of classes whose sizes fall from `imbalance` to 1.

    "edge": predictions of the first class are right with a chance just below alpha,
    whatever their score, and all others nearly always: only the first class may be
    certified wrongly. "ranked": the chance rises with the score, and differs between
    classes. "mixed": every second class is on the edge, the others are ranked.
    """
    random = np.random.RandomState(seed)
    weight = np.geomspace(imbalance, 1, n_classes)
    codes = random.choice(n_classes, size=size, p=weight / weight.sum())
    score = random.uniform(alpha, 1, size)
    rank = (score - alpha) / (1 - alpha)
    edge = np.full(size, alpha - 0.01)
    # The sure half of a class's rows is right more often than alpha, the rest less.
    ranked = np.clip(alpha - 0.1 + 0.2 * rank + 0.05 * (codes % 2), 0, 1)
    chance = {
        "edge": np.where(codes == 0, edge, 0.995),
        "ranked": ranked,
        "mixed": np.where(codes % 2 == 0, edge, np.minimum(ranked + 0.05, 1)),
    }[kind]
    wrong = random.rand(size) >= chance
    # Errors come from the classes in proportion to their sizes.
    shift = random.choice(n_classes, size=size, p=weight / weight.sum())
    shift = np.where(shift == codes, (codes + 1) % n_classes, shift)
    return Scored(codes, np.where(wrong, shift, codes), score)


def rate_of_wrong(population, n_classes, n_rows, draws, alpha, confidence, per_class):
    """Return the share of draws that certify something false, and the mean share."""
    random = np.random.RandomState(0)
    size = len(population.y)
    n_wrong_draws, accepted_shares = 0, []
    for _ in range(draws):
        planning, certify = (
            Scored(*(values[rows] for values in population))
            for rows in random.randint(size, size=(2, n_rows))
        )
        thresholds, _ = certify_thresholds(
            planning, certify, n_classes, alpha, confidence, per_class
        )
        accepted = population.score >= thresholds[population.codes]
        answered = np.isfinite(thresholds)
        n, wrong = count_accepted(population.codes, population.y, accepted, n_classes)
        false = answered & (n > 0) & (wrong > (1 - alpha) * n + 1e-9)
        n_wrong_draws += bool(false.any())
        accepted_shares.append(accepted.mean())
    return n_wrong_draws / draws, float(np.mean(accepted_shares))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--classes", type=int, nargs="+", default=[2, 10])
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--alpha", type=float, default=0.9)
    parser.add_argument("--confidence", type=float, default=0.9)
    arguments = parser.parse_args()
    print(
        f"{arguments.draws} draws of {arguments.rows} + {arguments.rows} rows, "
        f"alpha = {arguments.alpha:g}, confidence {arguments.confidence:g}"
    )
    print("population  classes  imbalance  region      false certificates  accepted")
    for n_classes in arguments.classes:
        for imbalance in (1, 20):
            for kind in ("edge", "ranked", "mixed"):
                population = make_population(
                    n_classes, imbalance, kind, arguments.alpha
                )
                for per_class in (False, True):
                    rate, share = rate_of_wrong(
                        population,
                        n_classes,
                        arguments.rows,
                        arguments.draws,
                        arguments.alpha,
                        arguments.confidence,
                        per_class,
                    )
                    region = "per_class" if per_class else "joint"
                    print(
                        f"{kind:10}{n_classes:9}{f'1:{imbalance}':>11}  {region:12}"
                        f"{rate:18.3f}{share:10.3f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
