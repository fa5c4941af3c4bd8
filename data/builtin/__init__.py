"""The built-in corpus: English-German pairs with gold word alignments from a small grammar.

A sentence starts as a meaning (`meaning.py`), drawn so that its words fit together (`draw_*.py`),
and is put into English (`english.py`) and German (`german.py`) independently; words that express
the same part of the meaning are aligned (`sentences.py`). `corpus.py` makes the splits.
"""

from tfm.data.builtin.corpus import builtin_pairs
from tfm.data.builtin.sentences import BuiltinPair

__all__ = ["BuiltinPair", "builtin_pairs"]
