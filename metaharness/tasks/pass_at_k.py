"""pass@k: the chance that at least one of k samples of a problem is right."""

import math


def pass_at_k(num_samples: int, num_passed: int, k: int) -> float:
    """Unbiased estimate of pass@k for one problem (Chen et al. 2021, equation 1).

    The share of all choices of k of the n samples that hold one of the c right ones:
    1 - C(n - c, k) / C(n, k) = 1 - product over i = n - c + 1 to n of (1 - k / i), as a
    sum of logarithms, so that small chances keep their digits. The score of a task is
    the mean over its problems.

    Raises ValueError unless 0 <= num_passed <= num_samples and 1 <= k <= num_samples.
    """
    if not 0 <= num_passed <= num_samples:
        raise ValueError(
            f"pass@k: expected 0 to {num_samples} passes, got {num_passed}; count "
            "passes among the samples."
        )
    if not 1 <= k <= num_samples:
        raise ValueError(
            f"pass@k: expected k from 1 to {num_samples} (the samples drawn), got {k}; "
            "draw more samples or lower k."
        )
    num_wrong = num_samples - num_passed
    if num_wrong < k:
        return 1.0
    all_wrong = math.fsum(
        math.log1p(-k / i) for i in range(num_wrong + 1, num_samples + 1)
    )
    return 0.0 - math.expm1(all_wrong)
