"""Strings that show differences between tokenizers: many scripts, code, white space, digits, emoji, control characters, texts of
special tokens, and random characters. The same ones in every run: hashes of their ids are recorded."""

from __future__ import annotations

import random
from collections.abc import Sequence

SENTENCES = (
    "The quick brown fox jumps over the lazy dog, and they'll say it's what we've always DONE; I'd rather you'Re not.",
    "Ein Fuß im Fluß, Straßenbahn-Äußerungen über Öl: „Grüß Gott!“ sagte er – und ging.",
    "L'été dernier, nous avons mangé des crêpes à l'œuf, n'est-ce pas ? Ça coûtait 3,50 €.",
    "¿Dónde está la niña? ¡Mañana será otro día! El año 1998 fue difícil.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. ЭТО ВСЁ.",
    "Ο γρήγορος αλεπού πηδάει πάνω από το σκύλο· τι κάνεις;",
    "敏捷的棕色狐狸跳过了懒狗。今天是2024年3月15日，天气很好！",
    "いろはにほへと ちりぬるを。東京タワーは３３３メートルです。カタカナとひらがな。",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다. 100원",
    "صِف خَلقَ خَودِ كَمِثلِ الشَمسِ إِذ بَزَغَت ١٢٣٤٥",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का १२३",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน ๑๒๓",
    "Zażółć gęślą jaźń. Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Pijamalı hasta yağız şoföre çabucak güvendi. İSTANBUL'da ı ve i",
    "Tiếng Việt có dấu: Trăm năm trong cõi người ta, chữ tài chữ mệnh khéo là ghét nhau.",
    "გთხოვთ ახლავე გაიაროთ რეგისტრაცია. Հայերեն լեզու",
    "বাংলা ভাষা ১২৩, தமிழ் மொழி, తెలుగు, ಕನ್ನಡ, മലയാളം, ગુજરાતી",
    "አማርኛ ሰላም ነው። ᏣᎳᎩ ᐃᓄᒃᑎᑐᑦ မြန်မာ ភាសាខ្មែរ ລາວ བོད་",
    "👩‍👩‍👧‍👦 family 🏳️‍🌈 flag 👍🏽 skin 🇩🇪🇫🇷 ☃️ ❤️‍🔥 🤖🤖🤖",
    'def f(x: int) -> dict[str, list[int]]:\n    """Docstring."""\n\treturn {k: v**2 for k, v in x.items() if v != 0}\n',
    "#include <vector>\r\nint main(int argc, char **argv) { std::vector<int> v{1,2,3}; return v[0] << 2; }\r\n",
    "SELECT a.id, COUNT(*) AS n FROM t1 a JOIN t2 b ON a.id=b.id WHERE a.x >= 1.5e-3 GROUP BY 1;",
    "<html><body class='x'><a href=\"https://example.com/?q=1&r=%20\">link</a></body></html>",
    '{"key": [1, 2.5, -3e10, true, null], "nested": {"a": "\\u00e9\\n"}}',
    "2024-02-29T23:59:59Z 192.168.0.1 +49 (0)30 1234567 $1,234,567.89 0xDEADBEEF 1e-10 007",
    "é vs e\u0301, Å vs A\u030a vs \u212b, ﬁ ligature, ½ ² ① Ⅷ, ｆｕｌｌｗｉｄｔｈ １２３, 가 vs \u1100\u1161",
    "CamelCaseIdentifier snake_case_name SCREAMING_SNAKE kebab-case dotted.name path/to/file.txt C:\\dir\\x",
    "…—–‘’“”«»•·†‡§¶©®™°±×÷≠≤≥∞∑∏√∫∂∆πΩµ",
    "zero\u200bwidth\u200djoin\u2060er\ufeff nbsp\u00a0x thin\u2009y ideographic\u3000z line\u2028sep para\u2029end nel\u0085.",
)
SPACES = (
    " ",
    "  ",
    "   ",
    "    ",
    " " * 7,
    " " * 16,
    " " * 40,
    "\t",
    "\t\t",
    "\n",
    "\n\n",
    "\n\n\n",
    "\r\n",
    " \n",
    "\n ",
    "\t \n",
    "\u00a0",
)
SPECIAL = (
    "<s>", "</s>", "<unk>", "<pad>", "<bos>", "<eos>", "<mask>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>",
    "<|begin_of_text|>", "<|start_header_id|>", "<start_of_turn>", "<end_of_turn>", "<unused7>", "<0x0A>", "<0x41>", "[INST]",
    "[/INST]", "<think>", "</think>", "<tool_call>", "<|fim_prefix|>", "<|end|>", "<｜begin▁of▁sentence｜>", "<｜User｜>",
    "<｜tool▁calls▁begin｜>", "<table>", "</h1>", "▁", "▁▁", "▁the", "Ġ", "Ċ", "[CLS]", "[MASK]", "##ing",
)  # fmt: skip


def strings(count: int) -> Sequence[str]:
    """`count` strings of up to about 400 characters: first every sentence, then drawn ones."""
    draw = random.Random(20240229)
    made = [
        "",
        " ",
        "a",
        " a",
        "a ",
        *SENTENCES,
        *SPACES,
        *SPECIAL,
        *(" ".join(SENTENCES[i::6]) for i in range(6)),
    ]
    makers = (_shuffled, _spaced, _digits, _random_characters, _with_special, _piece, _blocks)
    while len(made) < count:
        made.append(makers[len(made) % len(makers)](draw))
    return made[:count]


def _words(draw: random.Random, count: int) -> list[str]:
    return [draw.choice(draw.choice(SENTENCES).split(" ")) for _ in range(count)]


def _shuffled(draw: random.Random) -> str:
    return " ".join(
        draw.choice((w, w.upper(), w.title(), w.lower())) for w in _words(draw, draw.randint(1, 30))
    )


def _spaced(draw: random.Random) -> str:
    parts = [
        w + "".join(draw.choices(SPACES, k=draw.randint(0, 3))) for w in _words(draw, draw.randint(1, 15))
    ]
    return "".join(draw.choices(SPACES, k=draw.randint(0, 2))) + "".join(parts)


def _digits(draw: random.Random) -> str:
    digits = draw.choice(("0123456789", "0123456789", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "０１２３４５６７８９"))
    runs = ["".join(draw.choices(digits, k=draw.randint(1, 14))) for _ in range(draw.randint(1, 8))]
    return draw.choice((" ", ",", ".", "-", "", "x", "\n")).join(runs)


def _random_characters(draw: random.Random) -> str:
    limits = (
        (0x20, 0x7E),
        (0, 0x24F),
        (0x250, 0x1FFF),
        (0x2000, 0x33FF),
        (0x3400, 0xD7FF),
        (0xE000, 0x10FFFF),
    )
    low, high = draw.choice(limits)
    return "".join(chr(draw.randint(low, high)) for _ in range(draw.randint(1, 40)))


def _with_special(draw: random.Random) -> str:
    parts = [draw.choice((draw.choice(SPECIAL), *_words(draw, 2))) for _ in range(draw.randint(2, 12))]
    return "".join(part + draw.choice(("", "", " ", "\n", "  ")) for part in parts)


def _piece(draw: random.Random) -> str:
    text = "\n".join(draw.sample(SENTENCES, 3))
    start = draw.randrange(len(text))
    return text[start : start + draw.randint(1, 200)]


def _blocks(draw: random.Random) -> str:
    characters = "aA1.,!?'\"()[]{}<>/\\|_-+=*&^%$#@~` \n\t\r"
    return "".join(
        draw.choice(characters) * draw.choice((1, 1, 1, 2, 3, 8, 33)) for _ in range(draw.randint(1, 25))
    )
