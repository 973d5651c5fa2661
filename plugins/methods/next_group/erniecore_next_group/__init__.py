"""Next group of tokens: text, images and audio, read and made by one model."""
