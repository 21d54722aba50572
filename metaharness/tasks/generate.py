"""Worker that generates reasoning-gym items; run as a script, one per family.

Reads a seed and an index a line, answers one JSON object a line: `{"entry": ...}` or
`{"error": ...}`. It runs in a process of its own because some families iterate over
sets of strings: only a process started with PYTHONHASHSEED=0 gives the same items every
time. It imports nothing of ours, so it starts without loading the rest.

reasoning-gym draws item i of a data set from seed + i: data sets of neighbouring seeds
share nearly all their items, so seeds must lie far apart.
"""

import json
import signal
import sys
from fractions import Fraction

# CPU seconds for one item; the slowest families take about one.
LIMIT_S = 20.0


def encode(value):
    """JSON for nested tuples, fractions and dictionaries of any key, with tags."""
    if value is None or isinstance(value, bool | int | float):
        return value if type(value).__module__ == "builtins" else value.item()
    if isinstance(value, str):
        return str(value)
    if isinstance(value, tuple):
        return {"!tuple": [encode(v) for v in value]}
    if isinstance(value, list):
        return [encode(v) for v in value]
    if isinstance(value, Fraction):
        return {"!fraction": [value.numerator, value.denominator]}
    if isinstance(value, dict):
        if all(type(k) is str and not k.startswith("!") for k in value):
            return {k: encode(v) for k, v in value.items()}
        return {"!dict": [[encode(k), encode(v)] for k, v in value.items()]}
    if hasattr(value, "tolist"):
        return encode(value.tolist())
    raise TypeError(f"cannot store {type(value).__name__}")


def shorten_number_sequence():
    """Make the generator drop a sequence at its first term beyond 1,000.

    It computes all terms before it rejects such a sequence; repeated squares then have
    millions of digits and take seconds to hours. Its own rejection follows an
    OverflowError in the same way, without another draw, so the items stay the same.
    """
    from reasoning_gym.cognition import number_sequences as module

    original = module.PatternRule.apply

    def apply(self, sequence, position):
        term = original(self, sequence, position)
        if abs(term) > 1000:
            raise OverflowError
        return term

    module.PatternRule.apply = apply


def out_of_time(signum, frame):
    raise TimeoutError(f"one item took over {LIMIT_S:.0f} s")


def main(family):
    answers = sys.stdout
    # some families print while they generate
    sys.stdout = sys.stderr
    import reasoning_gym

    if family == "number_sequence":
        shorten_number_sequence()
    timed = hasattr(signal, "setitimer")
    if timed:
        signal.signal(signal.SIGVTALRM, out_of_time)
    data, data_seed = None, None
    for line in sys.stdin:
        seed, index = map(int, line.split())
        try:
            if timed:
                signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
            if data is None or seed != data_seed:
                data, data_seed = reasoning_gym.create_dataset(family, seed=seed), seed
            reply = {"entry": encode(dict(data[index]))}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        finally:
            if timed:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        print(json.dumps(reply), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
