"""A small model, made on the spot of demonstrations and warm-started by them."""
