"""The kinds of layers that a decoder is made of, a file each."""
