"""Stage 1: representations phi. One file a basis, each with `init`, `update` and `phi`."""
