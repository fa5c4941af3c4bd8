"""The command line: one file per verb. Verbs import torch only when they run."""
