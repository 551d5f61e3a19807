"""The ollama package: chat, generate, tools, format, and its other requests to a server."""

import json

import ollama
from pydantic import BaseModel

from check import MODEL, QUESTION, URL, WEATHER, check, end

client = ollama.Client(host=URL)
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather in a city.", "parameters": WEATHER}}
ASK = [{"role": "user", "content": QUESTION}]
SHORT = {"num_predict": 16}
STATED = "John is 30 years old."


class Person(BaseModel):
    name: str
    age: int


def listed():
    return [m.model for m in client.list().models] == [MODEL]


def chat():
    r = client.chat(MODEL, ASK, options=SHORT)
    return bool(r.message.content) and r.done_reason in ("stop", "length") and r.eval_count > 0


def stream():
    parts = list(client.chat(MODEL + ":latest", ASK, options=SHORT, stream=True))
    return bool("".join(p.message.content or "" for p in parts)) and parts[-1].done


def tools():
    call = client.chat(MODEL, ASK, tools=[TOOL], options={"temperature": 0}).message.tool_calls[0].function
    return (call.name, call.arguments) == ("get_weather", {"city": "Oslo"})


def streamed_tools():
    calls = [c.function for p in client.chat(MODEL, ASK, tools=[TOOL], options={"temperature": 0}, stream=True) for c in p.message.tool_calls or []]
    return [(c.name, c.arguments) for c in calls] == [("get_weather", {"city": "Oslo"})]


def generate():
    return bool(client.generate(MODEL, "Say hello.", options=SHORT).response)


def chat_format():
    r = client.chat(MODEL, [{"role": "user", "content": STATED}], format=Person.model_json_schema(), options={"num_predict": 300})
    return r.done_reason == "stop" and isinstance(Person.model_validate_json(r.message.content), Person)


def generate_format():
    r = client.generate(MODEL, STATED, format=Person.model_json_schema(), options={"num_predict": 300})
    return r.done_reason == "stop" and isinstance(Person.model_validate_json(r.response), Person)


def json_format():
    r = client.chat(MODEL, [{"role": "user", "content": STATED}], format="json", options={"num_predict": 500})
    return r.done_reason == "length" or isinstance(json.loads(r.message.content), dict)


def show():
    return bool(client.show(MODEL).modelinfo is not None)


def ps():
    return isinstance(client.ps().models, list) or None


for name, do in [
    ("list", listed), ("chat", chat), ("chat, streamed", stream), ("tools", tools), ("tools, streamed", streamed_tools), ("generate", generate),
    ("chat with format", chat_format), ("generate with format", generate_format), ("format json", json_format), ("show", show), ("ps", ps),
]:
    check("ollama", "ollama", name, do)
end()
