"""Attention maps: which piece each piece attends to, in every layer and head, and proof of it.

report = inspect_attention(Translator.load("runs/m30k"), "A dog runs.")
report.capture.cross  # layer, head, target piece, source piece
write_report(report, Path("report"))
"""

from tfm.model.inspection.export import write_report
from tfm.model.inspection.report import AttentionReport, inspect_attention, inspect_pair

__all__ = ["AttentionReport", "inspect_attention", "inspect_pair", "write_report"]
