"""What each parameter means, what it is when it is left out, and whose it is. Types and ranges come from the wire types.

Keyed by the field's name; "Model.field" where one model's differs from the others'.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Origin = Literal["OpenAI", "vLLM", "Anthropic", "LangChain", "Cohort"]

_MODELS = "the model's"
"""From generation_config.json or --override-generation-config, else the neutral value."""


class Parameter(NamedTuple):
    """One field: `default` is a word or two for a person."""

    origin: Origin
    default: str
    meaning: str


PARAMETERS: dict[str, Parameter] = {
    # what to answer
    "model": Parameter("OpenAI", "the one served", "Name of the model, as GET /v1/models lists it."),
    "messages": Parameter("OpenAI", "", "The conversation so far."),
    "prompt": Parameter("OpenAI", "", "One prompt or several, as text or as token ids."),
    "TokenizeRequest.prompt": Parameter("vLLM", "", "A text; this or messages."),
    "TokenizeRequest.messages": Parameter("vLLM", "", "A conversation; this or prompt."),
    "suffix": Parameter("OpenAI", "none", "Text that follows the completion. Needs a model trained to fill in the middle."),
    "tools": Parameter("OpenAI", "none", "Functions the model may call."),
    "tool_choice": Parameter(
        "OpenAI", "auto", "auto, none, required, or one function by name; forced calls are held to by a grammar."
    ),
    "parallel_tool_calls": Parameter("OpenAI", "true", "Whether one answer may hold several calls."),
    "chat_template_kwargs": Parameter(
        "vLLM", "none", "Variables for the model's chat template, such as `enable_thinking`; those it does not read are told."
    ),
    "reasoning_effort": Parameter(
        "OpenAI", "the template's", "Handed to the chat template; where it does not read it, the answer's header says so."
    ),
    "verbosity": Parameter("OpenAI", "the template's", "Likewise."),
    "include_reasoning": Parameter("vLLM", "true", "Whether the answer shows the reasoning apart from the content."),
    "add_generation_prompt": Parameter(
        "vLLM", "true, unless continue_final_message", "Whether the prompt ends with the beginning of an answer."
    ),
    "continue_final_message": Parameter("vLLM", "false", "Go on with the last message instead of answering it."),
    "add_special_tokens": Parameter("vLLM", "true", "Whether the tokenizer adds its own, such as BOS, to a text."),
    "TokenizeRequest.add_special_tokens": Parameter(
        "vLLM", "true for prompt, false for messages", "Whether the tokenizer adds its own, such as BOS."
    ),
    "ChatRequest.add_special_tokens": Parameter(
        "vLLM", "false", "Whether the tokenizer adds its own to what the template wrote, which has them already."
    ),
    "truncate_prompt_tokens": Parameter(
        "vLLM", "none", "Keep the last so many tokens of a prompt; -1 keeps what fits the context."
    ),
    "truncation_side": Parameter("vLLM", "left", "Which side truncate_prompt_tokens cuts off."),
    # how much
    "max_tokens": Parameter("OpenAI", "what fits the context", "Most tokens to generate."),
    "CompletionRequest.max_tokens": Parameter("OpenAI", "16", "Most tokens to generate."),
    "CompletionRequest.max_completion_tokens": Parameter("OpenAI", "16", "The newer name of max_tokens; it wins."),
    "max_completion_tokens": Parameter("OpenAI", "what fits the context", "The newer name of max_tokens; it wins."),
    "min_tokens": Parameter("vLLM", "0", "Tokens before an end token or stop string may end the answer."),
    "n": Parameter("OpenAI", "1", "Choices per prompt."),
    "best_of": Parameter("OpenAI", "n", "Generate so many choices per prompt and return the n likeliest per token."),
    "stop": Parameter("OpenAI", "none", "Strings at which the answer ends, in calls too; not part of it."),
    "stop_token_ids": Parameter("vLLM", "none", "Token ids at which the answer ends."),
    "include_stop_str_in_output": Parameter("vLLM", "false", "Whether the stop string is part of the answer."),
    "ignore_eos": Parameter("vLLM", "false", "Go on past the model's end tokens."),
    # how to sample
    "temperature": Parameter("OpenAI", _MODELS, "0 takes the likeliest token each time."),
    "top_p": Parameter("OpenAI", _MODELS, "Sample from the likeliest tokens whose probabilities add up to this."),
    "top_k": Parameter("vLLM", _MODELS, "Sample from so many likeliest tokens; 0 and -1 mean all."),
    "min_p": Parameter("vLLM", _MODELS, "Leave out tokens less likely than this part of the likeliest."),
    "typical_p": Parameter("Cohort", _MODELS, "Locally typical sampling; 1 and 0 mean off."),
    "repetition_penalty": Parameter("vLLM", _MODELS, "Divides the logits of tokens that were in prompt or answer."),
    "presence_penalty": Parameter("OpenAI", "0", "Subtracted from the logits of tokens that were in the answer."),
    "frequency_penalty": Parameter("OpenAI", "0", "The same, times how often they were."),
    "logit_bias": Parameter("OpenAI", "none", "Added to the logits of tokens, by id."),
    "bad_words": Parameter(
        "vLLM", "none", "Words that must not come, spelled as they begin a text and after a space; inside other tokens they may."
    ),
    "allowed_token_ids": Parameter("vLLM", "all", "The only token ids that may come."),
    "seed": Parameter(
        "OpenAI", "random", "The same seed gives the same answer; equal prompts of a call differ. -1 is none. It is told back."
    ),
    "response_format": Parameter("OpenAI", "text", "Text, any JSON object, or JSON that follows a schema, always strictly."),
    "structured_outputs": Parameter(
        "vLLM", "none", "One of json, regex, choice, grammar (Lark or GBNF) and json_object that the answer follows."
    ),
    # what to tell
    "stream": Parameter("OpenAI", "false", "Send the answer in server-sent events as it is generated."),
    "stream_options": Parameter("OpenAI", "none", "What a stream tells besides."),
    "logprobs": Parameter("OpenAI", "none", "So many alternatives per token with their log probabilities."),
    "ChatRequest.logprobs": Parameter("OpenAI", "false", "Whether tokens come with their log probabilities."),
    "top_logprobs": Parameter("OpenAI", "0", "Alternatives per token; needs logprobs."),
    "prompt_logprobs": Parameter("vLLM", "none", "Log probabilities of the prompt's tokens with so many alternatives."),
    "echo": Parameter("OpenAI", "false", "Begin the answer with the prompt, logprobs included."),
    "skip_special_tokens": Parameter("vLLM", "true", "Whether special tokens are left out of text."),
    "DetokenizeRequest.skip_special_tokens": Parameter(
        "Cohort", "false", "Whether special tokens are left out of the text."
    ),
    "return_token_ids": Parameter("vLLM", "false", "Tell the token ids of prompt and answer."),
    "return_tokens_as_token_ids": Parameter("vLLM", "false", "Write tokens of logprobs as `token_id:N`."),
    "return_token_strs": Parameter("vLLM", "false", "Tell each token's text as well."),
    # how to run
    "priority": Parameter("vLLM", "0", "Lower comes first. An error unless the server runs with --scheduling-policy priority."),
    "deadline_ms": Parameter(
        "Cohort", "none", "Milliseconds until it must be started: 429 where the queue is longer, or when they are over."
    ),
    "cache_salt": Parameter(
        "vLLM", "none", "Only requests with the same salt share KV of a common prefix, so that times tell nobody else."
    ),
    # embeddings and tokens
    "input": Parameter("OpenAI", "", "One input or several, as text or as token ids."),
    "encoding_format": Parameter("OpenAI", "float", "float: a list of numbers; base64: little-endian float32."),
    "dimensions": Parameter("OpenAI", "all", "Keep so many first dimensions, at length 1 again."),
    "pooling": Parameter("Cohort", "the model's, else last", "last: the last token's state; mean: the mean of all."),
    "use_activation": Parameter("vLLM", "true", "Whether vectors are made to have length 1."),
    "tokens": Parameter("vLLM", "", "Token ids to turn into text."),
    # inside of objects
    "StreamOptions.include_usage": Parameter("OpenAI", "false", "A last chunk with the token counts and no choices."),
    "StreamOptions.continuous_usage_stats": Parameter("vLLM", "false", "Token counts so far in every chunk."),
    "ChatMessage.role": Parameter("OpenAI", "", "`developer` means `system`, unless the template names it."),
    "ChatMessage.content": Parameter("OpenAI", "", "Text, or parts of text. Null in an assistant's message with tool calls."),
    "ChatMessage.name": Parameter("OpenAI", "none", "Handed to the template."),
    "ChatMessage.tool_calls": Parameter("OpenAI", "none", "What the assistant called."),
    "ChatMessage.tool_call_id": Parameter("OpenAI", "none", "Which call a tool's message answers."),
    "ChatMessage.reasoning": Parameter("vLLM", "none", "Reasoning of an earlier answer, for templates that read it."),
    "ChatMessage.reasoning_content": Parameter("vLLM", "none", "The same by its other name."),
    "ContentPart.type": Parameter(
        "OpenAI",
        "",
        "`text`, also `input_text`, `output_text` and `refusal`; in an assistant's message also `thinking`, `reasoning`, "
        "`reasoning_text` and `redacted_thinking`.",
    ),
    "ContentPart.text": Parameter("OpenAI", "", "The text."),
    "ContentPart.refusal": Parameter("OpenAI", "none", "The text of a refusal."),
    "ContentPart.thinking": Parameter(
        "Anthropic", "none", "Reasoning of an earlier answer, a text or a list of texts, for templates that read it."
    ),
    "ContentPart.reasoning": Parameter("LangChain", "none", "The same by another name."),
    "ContentPart.summary": Parameter("OpenAI", "none", "The same, where nothing else tells of it."),
    "ToolCall.id": Parameter("OpenAI", "none", "The call's id."),
    "ToolCall.type": Parameter("OpenAI", "function", "There are functions only."),
    "ToolCall.function": Parameter("OpenAI", "", "What was called."),
    "FunctionCall.name": Parameter("OpenAI", "", "The function's name."),
    "FunctionCall.arguments": Parameter("OpenAI", "none", "A JSON object, as text."),
    "Tool.type": Parameter("OpenAI", "", "There are functions only."),
    "Tool.function": Parameter("OpenAI", "", "The function on offer."),
    "FunctionDefinition.name": Parameter("OpenAI", "", "Its name."),
    "FunctionDefinition.description": Parameter("OpenAI", "none", "What it does, for the model."),
    "FunctionDefinition.parameters": Parameter(
        "OpenAI",
        "none",
        "JSON schema of its arguments. Forced calls, and those of a `strict` function, add no names to objects whose "
        "`properties` are given, unless `additionalProperties` is too.",
    ),
    "FunctionDefinition.strict": Parameter("OpenAI", "false", "Whether arguments are held to the schema."),
    "ResponseFormat.type": Parameter("OpenAI", "", "text, json_object or json_schema."),
    "ResponseFormat.json_schema": Parameter("OpenAI", "none", "The schema, with its name."),
    "JsonSchemaFormat.name": Parameter("OpenAI", "", "A name for the schema."),
    "JsonSchemaFormat.description": Parameter("OpenAI", "none", "What it is for."),
    "JsonSchemaFormat.schema": Parameter("OpenAI", "", "The schema."),
    "JsonSchemaFormat.strict": Parameter("OpenAI", "true", "Answers follow the schema whatever this says."),
    "StructuredOutputs.json": Parameter("vLLM", "none", "A JSON schema, as an object or as text."),
    "StructuredOutputs.regex": Parameter("vLLM", "none", "A regular expression that the whole answer matches."),
    "StructuredOutputs.choice": Parameter("vLLM", "none", "Texts of which the answer is one."),
    "StructuredOutputs.grammar": Parameter("vLLM", "none", "A grammar, in Lark's notation or GBNF."),
    "StructuredOutputs.json_object": Parameter("vLLM", "none", "Any JSON object."),
    "StructuredOutputs.whitespace_pattern": Parameter("vLLM", "a blank or a line break", "Whitespace in JSON."),
    "StructuredOutputs.disable_any_whitespace": Parameter("vLLM", "false", "No whitespace in JSON."),
    "StructuredOutputs.disable_additional_properties": Parameter(
        "vLLM", "false", "Objects hold only the properties that the schema names."
    ),
    "StructuredOutputs.disable_fallback": Parameter("vLLM", "true", "There is one backend, and nothing to fall back to."),
}  # fmt: skip


def parameter(model: str, name: str) -> Parameter | None:
    """What is known of a field, by its name in the client's JSON."""
    return PARAMETERS.get(f"{model}.{name}") or PARAMETERS.get(name)
