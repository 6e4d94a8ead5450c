"""One model on several ranks: executor processes that each have a part of it.

ranks.py     what ranks tell each other: sums, parts of rows, hidden states of stages
shard.py     which heads, inner columns, tokens and layers a rank has
rank_decoder.py  the decoder of a rank; share.py: what its layers get from other ranks
stages.py    a step on a rank: all agree to compute it, rank 0 samples
"""
