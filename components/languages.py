"""The language of a text by a simple rule: its script, then its most common words.

Exact for scripts that one language of `LANGUAGES` has to itself. Where several share a
script, a few dozen words that are common in one and absent or rare in the others
decide, so that a sentence or two are needed. Not a general detector: a language that is
not listed is taken for its nearest neighbour, or for none.
"""

import re
import unicodedata
from collections import Counter

# First word of a letter's Unicode name, by script.
_SCRIPTS = {
    "ARABIC": ("ar", "fa", "ur"),
    "BENGALI": ("bn",),
    "CYRILLIC": ("bg", "ru"),
    "DEVANAGARI": ("hi", "mr", "ne"),
    "GUJARATI": ("gu",),
    "GURMUKHI": ("pa",),
    "HANGUL": ("ko",),
    "KANNADA": ("kn",),
    "LATIN": ("de", "en", "es", "fi", "fr", "it", "pt", "sw", "vi"),
    "TAMIL": ("ta",),
    "TELUGU": ("te",),
    "THAI": ("th",),
}
_WORDS = {
    "ar": "في من على إلى أن هذا هذه التي الذي كان كانت عن مع هو هي لا ما لم قد ثم أو "
    "بعد قبل كل بين ذلك يمكن يكون أنا نحن",
    "bg": "и на за да се от с в е са че по не ще като до при или но си това този тази "
    "който която които беше има много може само във със след ли ми",
    "de": "der die das und ist nicht ein eine einen einem ich du er sie wir ihr zu mit "
    "auf für von den dem des im wird sind war hat haben auch wie aber oder nach bei",
    "en": "the and is of to in that it was for you with are this as be have on not "
    "your but they from by he she his her we my will can which there their if would at "
    "i what has were been all when who an",
    "es": "el la los las de que y en un una es por con para no se del al lo como más "
    "pero su sus este esta está son fue muy también",
    "fa": "در از به که این را با است برای آن یک خود تا بر های شده می شود کرد بود هم یا "
    "ما من شما او اما نیز هر ها هستند دارد",
    "fi": "ja on ei se että hän ovat oli olen mutta kun niin myös joka tai kuin minä "
    "sinä hänen tämä sen mitä ole voi jos vain nyt kuitenkin",
    "fr": "le la les des et est un une que qui dans pour pas vous nous ce cette il "
    "elle je du au avec sur sont plus mais ou être",
    "hi": "है हैं का की के में और से को पर यह वह नहीं था थी थे ने हो कि लिए एक भी साथ "
    "करने करते अपने मैं हम आप तो कर गया रहा",
    "it": "il lo la gli le di che e è un una in per non con si del della dei delle "
    "sono come più ma anche questo questa nel nella al alla ho ha",
    "mr": "आहे आहेत आणि च्या मध्ये नाही होते होता होती हे हा ही ते तो ती त्या या एक मी "
    "आम्ही तुम्ही साठी असे पण किंवा करून केले झाले आपल्या त्यांच्या",
    "ne": "छ छन् हो र को मा का लाई ले यो त्यो थियो थिए गर्न गरेको भएको पनि हुन् हुन्छ "
    "तर एक म हामी तपाईं छैन गर्छ भने लागि सँग",
    "pt": "o a os as de que e é em um uma para não com se do da dos das no na por mais "
    "como mas ao sua seu você são está foi também muito",
    "ru": "и в не на что он я с как это а то все она так его но да ты к у же вы за бы "
    "по ее мне было от меня о из ему для мы или был если они есть",
    "sw": "na ya wa kwa ni katika la za kuwa hii hiyo huyo cha yake wake kama lakini "
    "au watu mtu sana pia bila yangu yako wangu wao sisi mimi hapa si kila",
    "ur": "ہے ہیں کا کی کے میں اور سے کو پر یہ وہ نہیں تھا تھی تھے نے ہو کہ لیے ایک "
    "بھی ساتھ اپنے آپ ہم تو کر گیا رہا",
    "vi": "là và của có không cho một những được trong các với người này để đã khi tôi "
    "bạn đó từ cũng như vào nhiều sẽ đến về rất anh em",
}
LANGUAGES = tuple(sorted({code for codes in _SCRIPTS.values() for code in codes}))

_COMMON: dict[str, frozenset[str]] = {
    code: frozenset(unicodedata.normalize("NFC", words).split())
    for code, words in _WORDS.items()
}
# Runs of letters and the marks that belong to them (vowel signs are no letters).
_GAP = re.compile(r"[\s\d!-/:-@\[-`{-~،؛؟۔।…“”‘’«»–—]+")


def detect_language(text: str) -> str | None:
    """Code of the language (one of `LANGUAGES`), None where nothing decides.

    The script of most letters; of the languages that share it the one of which most
    words are in the text. None without letters, with most of them in another script,
    with none of the words, and where two languages are equal.
    """
    codes = _SCRIPTS.get(_script(text), ())
    if len(codes) < 2:
        return codes[0] if codes else None
    words = Counter(_GAP.split(unicodedata.normalize("NFC", text).lower()))
    counts = {
        code: sum(num for word, num in words.items() if word in _COMMON[code])
        for code in codes
    }
    first, second = sorted(codes, key=lambda code: -counts[code])[:2]
    return first if counts[first] > counts[second] else None


def may_be_english(text: str) -> bool:
    """Whether most letters are Latin and no other language is found in them."""
    return _script(text) == "LATIN" and detect_language(text) in ("en", None)


def _script(text: str) -> str:
    letters = Counter(sign for sign in text if sign.isalpha())
    scripts: Counter[str] = Counter()
    for letter, num in letters.items():
        scripts[unicodedata.name(letter, "").split(" ")[0]] += num
    if not scripts:
        return ""
    name, num = scripts.most_common(1)[0]
    return name if 2 * num > sum(scripts.values()) else ""
