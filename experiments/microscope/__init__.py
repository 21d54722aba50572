"""What each gradient estimator does on problems whose exact gradient is known."""
