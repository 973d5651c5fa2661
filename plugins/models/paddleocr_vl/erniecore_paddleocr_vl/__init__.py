"""PaddleOCR-VL: a vision-language model that reads documents."""
