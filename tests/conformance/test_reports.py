"""33 public reports of things that went wrong elsewhere, and what holds each kind here.

Twelve of them are edits or inputs that silently did not apply, or applied elsewhere. Tests that
were there before stand where they are; the others are in this folder.
"""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parents[1]


class Report(NamedTuple):
    """Where it is told, what went wrong there, and the tests without which it could here."""

    address: str
    wrong: str
    tests: str


REPORTS = [
    Report(
        "ndif-team/nnsight/issues/672",
        "shorter rows of a padded batch are read at wrong positions",
        "test_rows_of_a_family_are_those_of_zeroed_weights "
        "test_rows_of_all_other_families_are_those_of_zeroed_weights",
    ),
    Report(
        "TransformerLensOrg/TransformerLens/issues/1005",
        "a batch that writes text attends to its padding",
        "test_forty_tokens_after_prompts_of_unlike_lengths_are_those_of_each_prompt_alone",
    ),
    Report(
        "ProjectDMX/DMI/issues/67",
        "values come back under another request's label",
        "test_of_64_requests_each_under_its_own_mask_every_answer_is_that_of_its_own",
    ),
    Report(
        "ndif-team/nnsight/pull/662",
        "tokens from a prefix cache are not edited",
        "test_a_prompt_asked_again_under_another_mask_is_answered_as_by_a_fresh_engine "
        "test_without_salts_answers_of_masks_mix",
    ),
    Report(
        "huggingface/transformers/issues/41184",
        "sliding windows are forgotten in mixed batches",
        "test_a_window_of_five_reads_five_tokens",
    ),
    Report(
        "NVIDIA-NeMo/Megatron-Bridge/issues/2656",
        "windows are off by one",
        "test_a_window_of_five_reads_five_tokens",
    ),
    Report(
        "unslothai/unsloth/issues/9708",
        "text depends on the batch, and masked rows are no numbers",
        "test_short_rows_beside_long_ones_are_numbers_in_half_precision "
        "test_heads_that_do_no_more_than_rounding_are_not_named",
    ),
    Report(
        "Skhaki18/optin-transformer-pruning/issues/6",
        "the mask never reaches the model",
        "test_a_cut_that_misses_its_row_fails test_attention_that_reaches_no_logit_fails",
    ),
    Report(
        "p-e-w/heretic/pull/206",
        "experts in one stacked parameter are skipped without a word",
        "test_models_with_routed_experts_are_refused",
    ),
    Report(
        "p-e-w/heretic/pull/241",
        "layers of hybrid models are skipped, or one alone is looked at",
        "test_the_grid_is_right test_what_no_mask_reaches_is_told_and_written_down",
    ),
    Report(
        "goodfire-ai/causalab/pull/71",
        "behind a gate another tensor is taken for the head",
        "test_rows_of_a_family_are_those_of_zeroed_weights test_it_is_the_knocked_out_model",
    ),
    Report(
        "decoderesearch/SAELens/issues/163",
        "one head is asked for and all are ablated",
        "test_of_one_layer_one_head_is_cut_and_all_others_hand_on_the_same_bits",
    ),
    Report(
        "ArthurConmy/Automatic-Circuit-Discovery/pull/52",
        "biases are zeroed with the heads",
        "test_a_layer_without_heads_says_its_bias_and_nothing_else "
        "test_an_edited_checkpoint_keeps_every_bias",
    ),
    Report(
        "apple/ml-hypercloning/issues/1",
        "queries read the keys of another head",
        "test_a_group_of_heads_is_what_reads_one_key_value_head",
    ),
    Report(
        "princeton-pli/QRHead/issues/6",
        "masked heads change nothing, as decoding goes another way",
        "test_text_with_kept_keys_is_that_without_under_twenty_masks "
        "test_attention_that_goes_another_way_for_single_tokens_fails",
    ),
    Report(
        "CR400AF-A/SparseMM/issues/10",
        "the cache is not handed on while decoding",
        "test_text_with_kept_keys_is_that_without_under_twenty_masks",
    ),
    Report(
        "nightdessert/Retrieval_Head/issues/2",
        "other examples name other heads, and nobody says so",
        "test_huge_effects_are_stable_and_alike_ones_are_not",
    ),
    Report(
        "yossigandelsman/clip_text_span/issues/14",
        "a task that the intact model cannot do is searched all the same",
        "test_a_task_that_the_model_cannot_do_names_no_head",
    ),
    Report(
        "yossigandelsman/clip_text_span/issues/5",
        "random heads are the best of several draws",
        "test_random_controls_have_as_many_heads_in_each_layer_and_none_of_the_chosen",
    ),
    Report(
        "EleutherAI/lm-evaluation-harness/issues/4055",
        "a token spans prompt and choice, and nothing is left to score",
        "test_the_whole_text_is_read_and_the_answer_is_in_what_is_scored",
    ),
    Report(
        "allenai/open-instruct/issues/62",
        "a choice is scored without the blank that the model would write",
        "test_a_run_says_beforehand_what_it_asks_at_most_and_again_when_its_search_ends",
    ),
    Report(
        "lang-uk/ukrainian-llm-leaderboard/issues/5",
        "template and tokenizer both add a start token",
        "test_a_chats_text_begins_with_one_start_token",
    ),
    Report(
        "EleutherAI/lm-evaluation-harness/pull/1465",
        "a model reads no start token and writes nonsense",
        "test_a_gemma_reads_its_start_token_once_before_every_plain_text",
    ),
    Report(
        "huggingface/lighteval/issues/649",
        "a stop string ends every answer before it is given",
        "test_a_task_that_the_model_cannot_do_names_no_head",
    ),
    Report(
        "EleutherAI/lm-evaluation-harness/issues/2648",
        "programs end at their fence, and none is right",
        "test_right_programs_pass_and_wrong_ones_do_not",
    ),
    Report(
        "p-e-w/heretic/issues/365",
        "answers that are cut short are counted as if they were whole",
        "test_an_answer_says_what_ended_it test_what_stands_in_the_place_of_an_answer_is_told",
    ),
    Report(
        "p-e-w/heretic/issues/253",
        "a model that loops or says nothing counts as changed as wished",
        "test_what_stands_in_the_place_of_an_answer_is_told test_loops_as_models_write_them",
    ),
    Report(
        "huggingface/transformers/issues/45127",
        "a flag ties two unlike matrices on reload",
        "test_an_edited_checkpoint_reads_and_writes_with_the_matrices_of_the_model",
    ),
    Report(
        "huggingface/transformers/issues/31766",
        "rows of a GGUF file are permuted, and its words are split otherwise",
        "test_a_gguf_file_is_the_model_that_it_was_made_from test_text_survives_the_tokenizer",
    ),
    Report(
        "hannamw/EAP-IG/issues/7",
        "clean and corrupted prompt differ in length and are patched askew",
        "test_counterparts_are_counted_and_measured_before_the_model_is_loaded",
    ),
    Report(
        "zjunlp/KnowledgeCircuits/issues/5",
        "hooks leave tensors on another device than the layer's",
        "test_layers_that_wait_on_disk_answer_as_those_in_memory "
        "test_masks_keys_and_residuals_go_where_the_layer_is",
    ),
    Report(
        "EleutherAI/lm-evaluation-harness/issues/1723",
        "without a network a command hangs or fails in a long traceback",
        "test_without_a_network_the_cache_serves test_the_hub_says_no_in_one_sentence "
        "test_before_it_is_fetched_the_command_is_named",
    ),
    Report(
        "event4u-app/agent-config/issues/762",
        "a run that is killed loses all that it measured",
        "test_the_driver_is_killed test_a_run_killed_in_its_curve_goes_on_there",
    ),
]


@pytest.fixture(scope="module")
def written():
    """Every test's name."""
    texts = (path.read_text() for path in TESTS.rglob("test_*.py"))
    return {name for text in texts for name in re.findall(r"def (test_\w+)\(", text)}


@pytest.mark.parametrize("report", REPORTS, ids=[each.address for each in REPORTS])
def test_every_kind_of_fault_has_its_tests(report, written):
    assert report.tests and set(report.tests.split()) <= written


def test_no_report_stands_twice():
    assert len({each.address for each in REPORTS}) == len(REPORTS) == 33
