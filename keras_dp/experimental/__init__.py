"""Parts that no two programs use yet: they may change or go at any time.

They stand on top of the other packages, and none of these imports them. The
page `docs/experimental.md` says of each part why it is here, and what would
promote it.
"""
