#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes images.json: small JPEG files and what Pillow and torchvision make of them.

Needs Pillow, torchvision and NumPy (made with 13.0.0, 0.29.2 and any): generate_images.py > images.json
"""
import io
import json

import numpy
from PIL import Image
from torchvision.transforms import functional

WIDTH, HEIGHT, SHORT_SIDE, SIZE = 90, 70, 32, 28
CROP = {"top": 6, "left": 9, "height": 41, "width": 53}


def picture(mode):
    y, x = numpy.mgrid[0:HEIGHT, 0:WIDTH]
    channels = {"L": 1, "RGB": 3, "CMYK": 4}[mode]
    waves = [127 + 90 * numpy.sin(x / (5 + 3 * c) + c) * numpy.cos(y / (9 - c)) for c in range(channels)]
    grain = numpy.random.default_rng(1).normal(0, 6, (HEIGHT, WIDTH))
    pixels = numpy.stack([wave + grain for wave in waves], -1).clip(0, 255).astype(numpy.uint8)
    return Image.fromarray(pixels[..., 0] if mode == "L" else pixels, mode)


def as_hex(image):
    return numpy.asarray(image).tobytes().hex()


cases = []
for name, mode, options in (("colours", "RGB", {}), ("all colours kept", "RGB", {"subsampling": 0}),
                            ("progressive", "RGB", {"progressive": True}), ("grey", "L", {}), ("cmyk", "CMYK", {})):
    file = io.BytesIO()
    picture(mode).save(file, "JPEG", quality=90, **options)
    image = Image.open(file).convert("RGB")  # as torchvision's ImageFolder loads it
    cases.append({
        "name": name,
        "file": file.getvalue().hex(),
        "test": as_hex(functional.center_crop(functional.resize(image, SHORT_SIDE), [SIZE, SIZE])),
        "train": as_hex(functional.resized_crop(image, *CROP.values(), [SIZE, SIZE])),
    })
print(json.dumps({"short_side": SHORT_SIDE, "size": SIZE, "crop": CROP, "cases": cases}, indent=1))
