#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes word_piece.json beside itself: what transformers' BertTokenizer makes of texts, for Fleet's to be held against.

The committed file was made with Python 3.11, transformers 5.22.2 and tokenizers 0.23.3:

    pip install transformers==5.22.2 tokenizers==0.23.3
    python tests/data/golden/generate.py

    vocab     the tokens of a small vocabulary, in order
    cases     [{text, lower_case, ids}]
    changed   [first, last] ranges of code points that the tokenizer takes for something else than Unicode 14 does; they are
              left out of
    sweep     [{first, last, lower_case, hash}]: for every other code point c of a block, the words of "Aa" + c + "bB", each
              with a line feed behind it; hash is FNV-1a, 64 bits, over the UTF-8 of them all
"""

import json
import pathlib
import tempfile
import unicodedata

import tokenizers
import transformers
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

TEXTS = [
    "",
    "   \t\r\n ",
    "Hello, world!",
    "UNAFFABLE, unwanted running runs; the quick brown fox's don't-care.",
    "Caf\u00e9 na\u00efve \u00c5ngstr\u00f6m Stra\u00dfe \u0130stanbul \u1ea4n",
    "Cafe\u0301 with a combining accent, a\u0308o\u0302 too",
    "\u5317\u4eac is \u4e2d\u56fd\u7684\u9996\u90fd\u3002\u4f60\u597d\uff0cworld\uff01",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30b9\u30c8 \u30ac\u30ae \ud55c\uad6d\uc5b4 \u1112\u1161\u11ab",
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440, \u0419\u043e\u0434; \u0391\u03b8\u03ae\u03bd\u03b1 \u039f\u0394\u039f\u03a3 \u039a\u03ac\u03c0\u03bf\u03b9\u03bf\u03c2",
    "zero\u200bwidth soft\u00adhyphen bom\ufeff bell\x07 nul\x00 bad\ufffd\ufffd end",
    "no\u00a0break\u2003em\u3000ideographic\u2028line\u2029par\x85nel\x0bvt\x0cff",
    "$100 + 5% = #1 ^_^ `code` |pipe| ~tilde~ <tag/> {a: [b]} a@b.c \\n",
    "\u201cquoted\u201d \u2018single\u2019 \u2013 \u2014 \u2026 \u00bfqu\u00e9? \u00a1ay! \u00ab\u00e0\u00bb \u037e \u0387",
    "emoji \U0001F600 \U0001F468\u200d\U0001F469\u200d\U0001F467 flag \U0001F1E9\U0001F1EA",
    "\u00bd \u00b2 \u2167 \ufb01ne \uff21\uff22\uff23 \u2460 \u212b \u2126 \u01c5 \ufb4f",
    "\ufa0e \uf900 \U0002f800 \U00020000 \U0002b81f \U0002b820 \U0002b91f \U0002b920",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u09cb \u0e44\u0e17\u0e22 \u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd \u0645\u064e\u0631\u062d\u0628\u0627",
    "x" * 100 + " " + "x" * 101 + " " + "\u00e9" * 100 + " " + "\u00e9" * 101,
    "unknownword \u16a0\u16a1 word\u16a2 abc\u4e2dabc",
    "[ MASK ] [unused1] ##ing # # i##ng",
    "1,234.56 2020-01-01T00:00:00Z 3rd 10km/h",
    "tab\tnew\nline\r\nmixed",
    "\ue000private\uf8ff \U000f0000 \U0010ffff",
    "\U00010400\U00010428 \U0001e900 \u1e9e \u0149 \u1fc3 \u03f4",
]

WORDS = """hello world un ##aff ##able ##want ##ed run ##ning runs ##s the quick brown fox don care cafe naive angstrom strasse
stra ##\u00dfe istanbul an is with a combining accent too ##ing ##ng i Hello World UN ##AFF Cafe caf caf\u00e9 zero ##width soft
##hyphen zerowidth bom bell nul bad end no break em ideographic line par nel vt ff code pipe tilde tag emoji flag
fine \ufb01ne ab abc ##abc word ##word mask MASK unused ##used x ##x ##xx ##xxxx e ##e \u00e9 ##\u00e9 rd ##rd km private mixed new tab
single quoted que ay""".split()
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def vocabulary():
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens += list(LETTERS) + ["##" + c for c in LETTERS] + [c.upper() for c in LETTERS[:26]] + ["##" + c.upper() for c in LETTERS[:26]]
    tokens += list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
    tokens += list("\u3002\uff0c\uff01\u201c\u201d\u2018\u2019\u2013\u2014\u2026\u00bf\u00a1\u00ab\u00bb\u00b7")
    for low, high in [(0x430, 0x450), (0x3B1, 0x3CA), (0x1100, 0x1113), (0x1161, 0x1176), (0x11A8, 0x11C3), (0x3041, 0x30FB), (0x410, 0x430)]:
        tokens += [p + chr(c) for c in range(low, high) for p in ("", "##")]
    tokens += list("\u5317\u4eac\u4e2d\u56fd\u7684\u9996\u4f60\u597d\u65e5\u672c\u8a9e\U00020000\u8c48\u4e3d\ufa0e")
    tokens += ["\ud55c", "##\uad6d", "\U00010428", "##\U00010428", "\u00e5ngstr\u00f6m", "##\u00ed"]
    return list(dict.fromkeys(tokens + WORDS))


def words_of(text, lower_case):
    clean = BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lower_case)
    return [w for w, _ in BertPreTokenizer().pre_tokenize_str(clean.normalize_str(text))]


def changed_since(code):
    """Whether the tokenizer has another category, mark or lower case for `code` than Unicode 14."""
    char = chr(code)
    category = unicodedata.category(char)
    clean = BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False).normalize_str(char)
    removed = category in ("Cc", "Cf", "Co") or code == 0xFFFD
    if char not in "\t\n\r" and (clean == "") != removed:
        return True
    if clean in ("", " "):
        return False
    punctuation = category[0] == "P" or (code < 0x80 and category[0] == "S")
    if (len(BertPreTokenizer().pre_tokenize_str("a" + char + "b")) == 3) != punctuation:
        return True
    bare = BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False).normalize_str(char)
    if (bare == "") != (category == "Mn"):
        return True
    parts = unicodedata.normalize("NFD", char)
    if len(parts) > 1 and (bare == char or any(changed_since(ord(c)) for c in parts)):
        return True
    low = BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=True).normalize_str(char)
    return low != char.lower()


def fnv(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def main():
    changed, sweep = [], []
    codes = [c for c in [*range(0x30000), *range(0xE0000, 0xE1000)] if not 0xD800 <= c < 0xE000]
    left_out = {c for c in codes if changed_since(c)}
    for code in sorted(left_out):
        if changed and changed[-1][1] == code - 1:
            changed[-1][1] = code
        else:
            changed.append([code, code])
    for first in sorted({c & ~0xFFF for c in codes}):
        block = [c for c in codes if c & ~0xFFF == first and c not in left_out]
        for lower_case in (True, False) if block else ():
            words = "".join(w + "\n" for c in block for w in words_of("Aa" + chr(c) + "bB", lower_case))
            sweep.append({"first": block[0], "last": block[-1], "lower_case": lower_case, "hash": f"{fnv(words):016x}"})

    vocab = vocabulary()
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "vocab.txt")
        path.write_text("".join(t + "\n" for t in vocab))
        for lower_case in (True, False):
            tokenizer = transformers.BertTokenizer(vocab=str(path), do_lower_case=lower_case)
            assert tokenizer.convert_ids_to_tokens(7) == vocab[7] and len(tokenizer) == len(vocab)
            for text in TEXTS:
                ids = tokenizer(text, add_special_tokens=False)["input_ids"]
                cases.append({"text": text, "lower_case": lower_case, "ids": ids})
    result = {
        "source": f"transformers {transformers.__version__}, tokenizers {tokenizers.__version__}",
        "vocab": vocab,
        "cases": cases,
        "changed": changed,
        "sweep": sweep,
    }
    lines = ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in result.items())
    pathlib.Path(__file__).with_name("word_piece.json").write_text("{\n" + lines + "\n}\n")
    print(f"{len(cases)} cases, {len(left_out)} code points left out")


main()
