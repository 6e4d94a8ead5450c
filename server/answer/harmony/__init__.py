"""Harmony, the format of gpt-oss: an answer is a sequence of messages, each with a header and on a channel.

    <|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>                              reasoning
    <|start|>assistant<|channel|>commentary<|message|>I look.<|end|>                        text before a call, for the user
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>     a call
    <|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>        the same, as the template writes it
    <|start|>assistant<|channel|>final<|message|>Yes.<|return|>                             text

The prompt ends with `<|start|>assistant`, so an answer begins within a header. Description: OpenAI's "harmony response format".

marks.py      the seven literals, and one character for each that no text contains
header.py     what a header says, and what to do with a header that lacks its end
reader.py     an answer as messages, however it is cut; `server/answer/tools/harmony_parser.py` makes parts of an answer of them
tokens.py     number of reasoning tokens
stops.py      where stop strings count
history.py    messages and tools of a prompt, in the form that the template of gpt-oss reads
"""
