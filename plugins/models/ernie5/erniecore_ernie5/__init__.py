"""ERNIE 5.0: text, images and audio in one mixture of experts."""
