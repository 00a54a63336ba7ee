"""Figures that the heads paper prints, to stand beside ours (arXiv 2603.03335).

Scores are shares, as read from its figures 1 to 4; those of its tables that follow from them are
not repeated. Models and benchmarks go by the labels of the preset `paper`.
"""

from collections.abc import Iterable, Sequence

LLAMA_8B, LLAMA_3B, LLAMA_1B = "Llama-3.1-8B", "Llama-3.2-3B", "Llama-3.2-1B"
QWEN_7B, QWEN_3B = "Qwen-2.5-7B", "Qwen-2.5-3B"
# Layers and heads of its Table 1.
SIZES = {
    LLAMA_8B: (32, 1024),
    LLAMA_3B: (28, 672),
    LLAMA_1B: (16, 512),
    QWEN_7B: (28, 784),
    QWEN_3B: (32, 512),
}
# Evaluations of its Table 4 on Llama-3.1-8B. Its own searches took 100 to 400.
EVALUATIONS = {"Greedy": 5120, "1S-Greedy": 1024}
# What it prints by mistake, by table and model.
SLIPS = {
    (1, QWEN_3B): "The paper prints 32 layers and 512 heads for Qwen-2.5-3B; its configuration has "
    "36 layers of 16, and the paper's Table 9 names a head in its layer 33.",
    (9, LLAMA_8B): "L16H2, which the paper names beside L16H21 for CSS on GSM8K, is as printed.",
    (9, LLAMA_3B): "The paper's rows of Llama-3.2-3B for WMDP repeat those of Llama-3.1-8B, heads "
    "that this model does not have among them: none is counted as common.",
}
FIGURE_1 = "GSM8K Arith MBPP HEval HellaSwag BoolQ ARC-C MMLU Swear Rhyme".split()
GENERAL = frozenset(FIGURE_1[4:8])
# Llama-3.1-8B with the five heads of a capability knocked out; "" is the intact model.
FIVE_HEADS = {
    "": (0.7847, 0.8530, 0.5840, 0.6829, 0.7931, 0.8413, 0.5520, 0.6800, 1.0, 0.6549),
    "GSM8K": (0.3010, 0.2088, 0.5440, 0.5793, 0.7794, 0.8269, 0.5529, 0.6639, 0.8177, 0.6372),
    "MBPP": (0.7331, 0.9050, 0.4240, 0.5000, 0.7789, 0.8303, 0.5154, 0.6624, 0.8281, 0.6637),
    "Swear": (0.7559, 0.8608, 0.5840, 0.6951, 0.7868, 0.8425, 0.5478, 0.6733, 0.1458, 0.6549),
    "Rhyme": (0.6937, 0.8648, 0.5320, 0.5488, 0.7616, 0.8278, 0.5094, 0.6540, 0.8333, 0.3097),
}
# Llama-3.1-8B with 0 to 10 of the heads of GSM8K knocked out.
CURVES = {
    GENERAL: "7166 7168 7159 7126 7120 7058 7043 7046 6921 6923 6896",
    frozenset(["GSM8K"]): "7847 5042 4784 4466 3889 3010 3063 3093 2002 1865 1569",
    frozenset(["Arith"]): "8530 2844 2618 2769 2063 2088 2104 2007 2150 2172 2082",
    frozenset(["MBPP", "HEval"]): "6335 6202 6223 6253 6172 5617 5576 5647 5617 5648 5527",
}
SUBJECTS = ("W-Bio", "W-Chem", "W-Cyber")
# Columns of its figures 3 and 4. The general score leaves out MMLU there:
# (.7931 + .8413 + .5520) / 3 = .7288, not .7166.
FIGURE_3 = [*(frozenset([label]) for label in (*SUBJECTS, "MMLU")), GENERAL - {"MMLU"}]
# By the heads knocked out: five of a subject, or one by name.
KNOWLEDGE = {
    (LLAMA_8B, ""): (0.7251, 0.5319, 0.4585, 0.6800, 0.7288),
    (LLAMA_8B, "W-Bio"): (0.7196, 0.5441, 0.4509, 0.6579, 0.7223),
    (LLAMA_8B, "W-Chem"): (0.7109, 0.5000, 0.4459, 0.6600, 0.7276),
    (LLAMA_8B, "W-Cyber"): (0.7235, 0.5196, 0.4328, 0.6616, 0.7226),
    (LLAMA_3B, ""): (0.6449, 0.4510, 0.4071, 0.6038, 0.6509),
    (LLAMA_3B, "L0H14"): (0.2341, 0.2475, 0.2557, 0.2371, 0.6294),
    (LLAMA_3B, "L0H16"): (0.2435, 0.2623, 0.2557, 0.2451, 0.6465),
    (LLAMA_1B, ""): (0.5648, 0.4363, 0.3644, 0.4588, 0.5611),
    (LLAMA_1B, "L0H22"): (0.2600, 0.2598, 0.2235, 0.2455, 0.5564),
}
UNIVERSAL = {
    LLAMA_8B: "L0H31 L1H29 L1H31",
    LLAMA_3B: "L0H22 L0H23 L1H23",
    LLAMA_1B: "L0H29 L0H31 L1H29 L1H31",
}
# Its Table 9 for Llama-3.1-8B, by search and benchmark. "L16H2" of css on GSM8K is as printed.
HEADS_8B = {
    ("Greedy", "GSM8K"): "L16H21 L15H13 L18H18 L18H31 L0H28",
    ("1S-Greedy", "GSM8K"): "L16H21 L15H13 L13H18 L1H30 L0H28",
    ("CSB", "GSM8K"): "L15H13 L16H21 L13H18 L30H3 L9H19",
    ("CSS", "GSM8K"): "L15H13 L16H2 L12H12 L16H21 L13H18",
    ("Greedy", "Arith"): "L15H13 L16H21 L18H18 L7H27 L31H14",
    ("1S-Greedy", "Arith"): "L15H13 L16H21 L14H0 L31H14 L13H7",
    ("CSS", "Arith"): "L15H13 L16H21 L11H16 L13H16 L21H27",
    ("Greedy", "MBPP"): "L24H31 L18H7 L7H6 L26H16 L24H14",
    ("1S-Greedy", "MBPP"): "L24H31 L6H19 L1H28 L12H30 L4H11",
    ("CSB", "MBPP"): "L4H13 L10H17 L24H31 L30H6 L8H16",
    ("CSS", "MBPP"): "L15H24 L1H28 L24H31 L31H24 L31H25",
    ("Greedy", "Swear"): "L11H2 L1H17 L1H5 L0H13 L19H21",
    ("1S-Greedy", "Swear"): "L11H2 L9H10 L5H17 L10H18 L14H14",
    ("CSB", "Swear"): "L11H2 L23H24 L11H18 L11H15 L31H22",
    ("CSS", "Swear"): "L11H2 L26H7 L14H12 L1H1 L8H15",
    ("Greedy", "Rhyme"): "L0H29 L18H4 L0H28 L18H5 L13H28",
    ("1S-Greedy", "Rhyme"): "L0H29 L18H5 L28H25 L16H19 L10H22",
    ("CSB", "Rhyme"): "L0H29 L29H27 L28H8 L29H0 L30H15",
    ("CSS", "Rhyme"): "L0H29 L9H10 L20H1 L14H12 L23H4",
    ("Greedy", "W-Bio"): "L3H22 L10H3 L11H13 L31H14 L1H5",
    ("1S-Greedy", "W-Bio"): "L4H16 L3H22 L31H14 L1H24 L6H24",
    ("CSB", "W-Bio"): "L13H5 L25H18 L31H14 L12H6 L23H13",
    ("CSS", "W-Bio"): "L10H26 L12H22 L9H9 L21H26 L29H2",
    ("Greedy", "W-Chem"): "L0H3 L8H8 L5H3 L10H23 L9H21",
    ("1S-Greedy", "W-Chem"): "L0H3 L7H7 L12H4 L2H22 L16H22",
    ("CSB", "W-Chem"): "L19H31 L13H18 L9H29 L22H23 L16H22",
    ("CSS", "W-Chem"): "L0H24 L0H3 L20H14 L7H21 L18H30",
    ("Greedy", "W-Cyber"): "L31H14 L11H20 L13H2 L8H9 L7H31",
    ("1S-Greedy", "W-Cyber"): "L31H14 L13H16 L10H29 L5H19 L7H16",
    ("CSB", "W-Cyber"): "L11H14 L7H31 L13H16 L15H7 L8H23",
    ("CSS", "W-Cyber"): "L31H14 L24H14 L27H6 L11H0 L27H13",
}
# Its Table 9 for the other models (css).
HEADS_CSS = {
    (LLAMA_3B, "GSM8K"): "L16H22 L14H10 L8H8 L12H1 L18H5",
    (LLAMA_3B, "Arith"): "L16H22 L14H10 L8H15 L11H19 L25H12",
    (LLAMA_3B, "MBPP"): "L4H6 L17H11 L1H16 L3H20 L0H16",
    (LLAMA_3B, "Swear"): "L22H12 L0H2 L1H6 L5H0 L9H11",
    (LLAMA_3B, "Rhyme"): "L16H3 L18H19 L0H0 L0H4 L18H2",
    (LLAMA_3B, "W-Bio"): "L10H26 L12H22 L9H9 L21H26 L29H2",
    (LLAMA_3B, "W-Chem"): "L0H24 L0H3 L20H14 L7H21 L18H30",
    (LLAMA_3B, "W-Cyber"): "L31H14 L24H14 L27H6 L11H0 L27H13",
    (LLAMA_1B, "GSM8K"): "L15H30 L8H30 L5H12 L6H5 L5H3",
    (LLAMA_1B, "Arith"): "L11H15 L11H13 L3H6 L11H14 L9H23",
    (LLAMA_1B, "MBPP"): "L3H25 L8H31 L2H27 L10H4 L8H12",
    (LLAMA_1B, "Swear"): "L7H14 L15H14 L6H29 L0H2 L9H1",
    (LLAMA_1B, "Rhyme"): "L5H7 L9H2 L9H27 L5H19 L4H31",
    (LLAMA_1B, "W-Bio"): "L0H22 L11H8 L2H2 L15H22 L9H26",
    (LLAMA_1B, "W-Chem"): "L0H22 L9H26 L0H4 L11H25 L10H26",
    (LLAMA_1B, "W-Cyber"): "L0H22 L6H31 L6H16 L7H28 L5H22",
    (QWEN_3B, "GSM8K"): "L27H6 L27H0 L27H1 L18H9 L20H10",
    (QWEN_3B, "MBPP"): "L0H2 L8H11 L33H11 L0H12 L23H4",
    (QWEN_3B, "Swear"): "L21H10 L17H13 L17H11 L13H0 L30H6",
    (QWEN_3B, "Rhyme"): "L32H7 L28H11 L4H5 L15H15 L26H9",
    (QWEN_7B, "GSM8K"): "L0H0 L0H15 L20H6 L0H25 L1H20",
    (QWEN_7B, "MBPP"): "L17H13 L19H0 L8H17 L0H23 L11H0",
    (QWEN_7B, "Swear"): "L18H17 L16H8 L7H26 L15H8 L27H14",
    (QWEN_7B, "Rhyme"): "L0H24 L0H25 L14H16 L25H8 L0H1",
}
# Those of them that are another model's.
REPEATED = {(LLAMA_3B, subject) for subject in SUBJECTS}


def published_score(model: str, source: str, count: int, benchmarks: Iterable[str]) -> float | None:
    """The printed mean score of benchmarks with `count` heads gone that were found on `source`.

    With no head gone it is the intact model's. None where the paper prints nothing of the kind.
    """
    wanted, source = frozenset(benchmarks), source if count else ""
    if model != LLAMA_8B or not wanted:
        return None
    if count in (0, 5) and source in FIVE_HEADS and wanted <= set(FIGURE_1):
        printed = dict(zip(FIGURE_1, FIVE_HEADS[source], strict=True))
        return sum(printed[label] for label in FIGURE_1 if label in wanted) / len(wanted)
    curve = CURVES.get(wanted, "").split() if source == "GSM8K" else []
    return int(curve[count]) / 10_000 if count < len(curve) else None


def drop(model: str, source: str, count: int, benchmarks: Sequence[str]) -> float | None:
    """What the printed scores say the knockout takes."""
    intact, left = (
        published_score(model, "", 0, benchmarks),
        published_score(model, source, count, benchmarks),
    )
    return None if intact is None or left is None else intact - left


def knowledge(model: str, heads: str, count: int, benchmarks: Iterable[str]) -> float | None:
    """The printed mean score of benchmarks in figures 3 and 4, with `count` heads gone.

    `heads` names a subject, whose five heads are gone, or one head; "" is the intact model.
    """
    printed, wanted = KNOWLEDGE.get((model, heads)), frozenset(benchmarks)
    if printed is None or wanted not in FIGURE_3 or (heads in SUBJECTS and count != 5):
        return None
    return printed[FIGURE_3.index(wanted)]


def published_heads(model: str, search: str, benchmark: str) -> list[str]:
    """The heads of its Table 9; none where it names none."""
    if model == LLAMA_8B:
        return HEADS_8B.get((search, benchmark), "").split()
    return HEADS_CSS.get((model, benchmark), "").split() if search == "CSS" else []


def published_universal(model: str) -> list[str]:
    """The universal heads that it names."""
    return UNIVERSAL.get(model, "").split()


def evaluations(model: str, search: str) -> int | None:
    """How many it says that a search took."""
    return EVALUATIONS.get(search) if model == LLAMA_8B else None


def slips(table: int, models: Iterable[str]) -> list[str]:
    """What it prints by mistake in a table about these models."""
    return [SLIPS[table, model] for model in models if (table, model) in SLIPS]
