"""Stage 2: universal successor features over a basis."""
