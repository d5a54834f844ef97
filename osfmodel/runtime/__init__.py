"""What runs inside a training job, on every rank. Needs torch, which is imported when something runs."""
