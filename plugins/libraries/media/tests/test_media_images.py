"""Headers and pixels of images of every kind, and bombs."""

import io
import struct
import time
import tracemalloc
import zlib

import numpy as np
import pytest
from erniecore_media import Header, Limits, MediaError, decode, inspect, upright_size
from PIL import Image

LIMITS = Limits()


def saved(image, kind="PNG", **more):
    out = io.BytesIO()
    image.save(out, kind, **more)
    return out.getvalue()


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height):
    """A PNG file of any size whose pixels are a few bytes."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def exif(orientation):
    made = Image.Exif()
    made[0x0112] = orientation
    return made.tobytes()


RED = (255, 0, 0)
PLAIN = Image.new("RGB", (6, 4), RED)
CLEAR = Image.new("RGBA", (2, 1), (*RED, 0))
PALETTE = PLAIN.convert("P")
SIXTEEN = Image.fromarray(np.array([[0, 256, 65535]], np.uint16))


@pytest.mark.parametrize(
    ("data", "kind", "size", "first"),
    [
        (saved(PLAIN), "PNG", (6, 4), RED),
        (saved(PALETTE), "PNG", (6, 4), RED),
        (saved(CLEAR), "PNG", (2, 1), (255, 255, 255)),
        (saved(PALETTE, transparency=PALETTE.getpixel((0, 0))), "PNG", (6, 4), (255, 255, 255)),
        (saved(SIXTEEN.crop((1, 0, 3, 1))), "PNG", (2, 1), (1, 1, 1)),
        (saved(Image.new("L", (1, 1), 7)), "PNG", (1, 1), (7, 7, 7)),
        (saved(Image.new("1", (3, 3), 1)), "PNG", (3, 3), (255, 255, 255)),
        (saved(Image.new("CMYK", (4, 4), (0, 0, 0, 255)), "JPEG"), "JPEG", (4, 4), (0, 0, 0)),
        (saved(Image.new("RGB", (20_000, 3), RED)), "PNG", (20_000, 3), RED),
        (saved(PLAIN, "WEBP", lossless=True), "WEBP", (6, 4), RED),
        (saved(PLAIN, "BMP"), "BMP", (6, 4), RED),
        (saved(PLAIN, "GIF"), "GIF", (6, 4), RED),
        (saved(PLAIN, "PPM"), "PPM", (6, 4), RED),
    ],
)
def test_kinds_of_images(data, kind, size, first):
    assert inspect(data, LIMITS) == Header(kind, *size, False)
    image = decode(data, LIMITS)
    assert (image.mode, image.size) == ("RGB", size)
    assert image.getpixel((0, 0)) == first


def test_a_note_of_the_camera():
    wide = Image.new("RGB", (40, 8), RED)
    wide.paste((0, 0, 255), (0, 0, 20, 8))
    data = saved(wide, "JPEG", quality=100, exif=exif(6))
    header = inspect(data, LIMITS)
    assert header == Header("JPEG", 40, 8, True)
    assert decode(data, LIMITS).size == (40, 8)
    turned = decode(data, LIMITS, upright=True)
    assert turned.size == upright_size(header, data, LIMITS) == (8, 40)
    assert turned.getpixel((4, 2))[2] > 200 > 50 > turned.getpixel((4, 2))[0]
    assert turned.getpixel((4, 37))[0] > 200


def moving(kind="GIF"):
    return saved(PLAIN, kind, save_all=True, append_images=[Image.new("RGB", (6, 4))])


HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"/>'


@pytest.mark.parametrize(
    ("data", "message", "found"),
    [
        (SVG, "not an image that is read", "SVG"),
        (HEIC, "not an image that is read", "HEIC"),
        (saved(PLAIN, "TIFF"), "not an image that is read", "TIFF"),
        (b"", "not an image that is read", "an empty file"),
        (b"text of a page", "not an image that is read", "b'text of "),
        (moving(), "several images", "GIF"),
        (moving("PNG"), "several images", "PNG"),
        (moving("WEBP"), "several images", "WEBP"),
        (png(50_000, 50_000), "too many pixels", "50000"),
        (png(9000, 9000), "too many pixels", "9000 x 9000"),
    ],
)
def test_what_the_header_is_refused_for(data, message, found):
    for read in (inspect, decode):
        with pytest.raises(MediaError, match=message) as error:
            read(data, LIMITS)
        assert found in error.value.found


@pytest.mark.parametrize("data", [saved(PLAIN)[:-30], png(100, 100), saved(PLAIN, "JPEG")[:300]])
def test_damaged_pixels_are_an_error(data):
    with pytest.raises(MediaError, match="damaged"):
        decode(data, LIMITS)


def test_a_bomb_costs_neither_time_nor_memory():
    data = png(50_000, 50_000)
    inspect(saved(PLAIN), LIMITS)  # the formats are loaded
    tracemalloc.start()
    begin = time.process_time()
    with pytest.raises(MediaError, match="pixels"):
        decode(data, LIMITS)
    assert time.process_time() - begin < 1
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
