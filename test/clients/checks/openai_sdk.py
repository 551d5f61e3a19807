"""The openai package: chats, tools, structured output, responses, completions, batches."""

import io
import json
import time

import openai
from pydantic import BaseModel

from check import KEY, MODEL, QUESTION, URL, WEATHER, check, end

client = openai.OpenAI(base_url=URL + "/v1", api_key=KEY, max_retries=0)
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather in a city.", "parameters": WEATHER}}
ASK = [{"role": "user", "content": QUESTION}]


class Person(BaseModel):
    name: str
    age: int


def models():
    return [m.id for m in client.models.list()] == [MODEL]


def chat():
    c = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Say hello."}], max_tokens=16).choices[0]
    return bool(c.message.content) and c.finish_reason in ("stop", "length")


def stream():
    text, usage, finish = "", None, None
    for chunk in client.chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=16, stream=True, stream_options={"include_usage": True}
    ):
        usage = chunk.usage or usage
        for c in chunk.choices:
            text += c.delta.content or ""
            finish = c.finish_reason or finish
    return bool(text) and finish in ("stop", "length") and usage.completion_tokens > 0


def called(message, finish):
    call = message.tool_calls[0].function
    assert call.name == "get_weather" and json.loads(call.arguments) == {"city": "Oslo"}, call
    assert finish == "tool_calls", finish


def tools():
    c = client.chat.completions.create(model=MODEL, messages=ASK, tools=[TOOL], temperature=0).choices[0]
    called(c.message, c.finish_reason)
    turn = ASK + [c.message, {"role": "tool", "tool_call_id": c.message.tool_calls[0].id, "content": json.dumps({"weather": "rain"})}]
    c = client.chat.completions.create(model=MODEL, messages=turn, tools=[TOOL], temperature=0, max_tokens=64).choices[0]
    return c.finish_reason == "stop" and "rain" in c.message.content


def streamed_tools():
    name, arguments, finish = "", "", None
    for chunk in client.chat.completions.create(model=MODEL, messages=ASK, tools=[TOOL], temperature=0, stream=True):
        for c in chunk.choices:
            finish = c.finish_reason or finish
            for d in c.delta.tool_calls or []:
                name += d.function.name or ""
                arguments += d.function.arguments or ""
    return (name, json.loads(arguments), finish) == ("get_weather", {"city": "Oslo"}, "tool_calls")


def required(strict):
    def do():
        tool = {"type": "function", "function": {**TOOL["function"], "strict": strict}}
        c = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Say hello."}], tools=[tool], tool_choice="required", max_tokens=300
        ).choices[0]
        got = json.loads(c.message.tool_calls[0].function.arguments)
        return c.finish_reason == "tool_calls" and list(got) == ["city"] and isinstance(got["city"], str)

    return do


def parse():
    c = client.chat.completions.parse(
        model=MODEL, messages=[{"role": "user", "content": "John is 30 years old."}], response_format=Person, max_tokens=300
    ).choices[0]
    return c.finish_reason == "stop" and isinstance(c.message.parsed, Person)


def plain_schema():
    schema = Person.model_json_schema()  # no strict, no additionalProperties
    c = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "John is 30 years old."}],
        response_format={"type": "json_schema", "json_schema": {"name": "p", "schema": schema}},
        max_tokens=300,
    ).choices[0]
    return c.finish_reason == "stop" and list(json.loads(c.message.content)) == ["name", "age"]


def responses():
    r = client.responses.create(model=MODEL, input="Say hello.", max_output_tokens=16)
    assert r.output_text, r
    more = client.responses.create(model=MODEL, input="Again.", previous_response_id=r.id, max_output_tokens=16)
    return bool(more.output_text)


def responses_stream():
    text, kinds = "", []
    for event in client.responses.create(model=MODEL, input="Say hello.", max_output_tokens=16, stream=True):
        kinds.append(event.type)
        if event.type == "response.output_text.delta":
            text += event.delta
    return bool(text) and kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete")


def responses_tools():
    tool = {"type": "function", "name": "get_weather", "description": "The weather in a city.", "parameters": WEATHER}
    r = client.responses.create(model=MODEL, input=QUESTION, tools=[tool], temperature=0)
    call = next(i for i in r.output if i.type == "function_call")
    return call.name == "get_weather" and json.loads(call.arguments) == {"city": "Oslo"}


def responses_parse():
    r = client.responses.parse(model=MODEL, input="John is 30 years old.", text_format=Person, max_output_tokens=300)
    return isinstance(r.output_parsed, Person)


def completions():
    r = client.completions.create(model=MODEL, prompt="The sky is", max_tokens=8, n=2, logprobs=1)
    return len(r.choices) == 2 and all(len(c.logprobs.tokens) == 8 for c in r.choices)


def batch():
    lines = [
        {"custom_id": f"r{i}", "method": "POST", "url": "/v1/chat/completions", "body": {"model": MODEL, "messages": ASK, "max_tokens": 4}}
        for i in range(3)
    ]
    data = io.BytesIO("\n".join(json.dumps(x) for x in lines).encode())
    f = client.files.create(file=("batch.jsonl", data), purpose="batch")
    b = client.batches.create(input_file_id=f.id, endpoint="/v1/chat/completions", completion_window="24h")
    until = time.monotonic() + 120
    while b.status not in ("completed", "failed", "expired", "cancelled") and time.monotonic() < until:
        time.sleep(0.5)
        b = client.batches.retrieve(b.id)
    out = client.files.content(b.output_file_id).text.splitlines()
    return b.status == "completed" and {json.loads(x)["custom_id"] for x in out} == {"r0", "r1", "r2"}


def reasoning_effort():
    c = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=4, reasoning_effort="low", store=False).choices[0]
    return bool(c.message.content)


for name, do in [
    ("models", models), ("chat", chat), ("stream with usage", stream), ("tools and their result", tools), ("tools, streamed", streamed_tools),
    ("tool required", required(False)), ("tool required, strict", required(True)), ("chat.parse", parse), ("schema without strict", plain_schema),
    ("responses and previous_response_id", responses), ("responses, streamed", responses_stream), ("responses with tools", responses_tools),
    ("responses.parse", responses_parse), ("completions", completions), ("files and batches", batch), ("reasoning_effort", reasoning_effort),
]:
    check("openai", "openai", name, do)
end()
