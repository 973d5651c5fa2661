"""Tiny videos, made with PyAV."""

import io

import av
import numpy as np


def video(count=30, rate=10, size=(64, 48), codec="libx264", container="mp4", level=None):
    """Frames from black to white, or all of one grey ``level``, as the bytes of a file."""
    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        stream = file.add_stream(codec, rate=rate)
        stream.width, stream.height = size
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for i in range(count):
            shade = i * 255 // max(count - 1, 1) if level is None else level
            image = np.full((size[1], size[0], 3), shade, np.uint8)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        file.mux(stream.encode())
    return out.getvalue()
