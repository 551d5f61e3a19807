"""The litellm package through each of its providers that fits."""

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is fetched

import litellm

from check import KEY, MODEL, QUESTION, URL, WEATHER, check, end

litellm.suppress_debug_info = True
litellm.telemetry = False
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather in a city.", "parameters": WEATHER}}
ASK = [{"role": "user", "content": QUESTION}]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"]}


def ask(provider, **more):
    base = URL + "/v1" if provider in ("openai", "hosted_vllm") else URL
    more = {"max_tokens": 100, "temperature": 0, "messages": ASK, **more}
    return litellm.completion(model=f"{provider}/{MODEL}", api_base=base, api_key=KEY, num_retries=0, **more)


def chat(provider):
    c = ask(provider, max_tokens=16).choices[0]
    return bool(c.message.content) and c.finish_reason in ("stop", "length")


def stream(provider):
    text, finish = "", None
    for chunk in ask(provider, max_tokens=16, stream=True):
        text += chunk.choices[0].delta.content or ""
        finish = chunk.choices[0].finish_reason or finish
    return bool(text) and finish in ("stop", "length")


def tools(provider):
    c = ask(provider, tools=[TOOL]).choices[0]
    call = c.message.tool_calls[0].function
    return (call.name, json.loads(call.arguments), c.finish_reason) == ("get_weather", {"city": "Oslo"}, "tool_calls")


def schema(provider):
    form = {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA}}
    c = ask(provider, messages=[{"role": "user", "content": "John is 30 years old."}], response_format=form, max_tokens=300).choices[0]
    return list(json.loads(c.message.content)) == ["name", "age"]


for provider in ("openai", "hosted_vllm", "anthropic", "ollama", "ollama_chat"):
    checks = {"chat": chat, "stream": stream, "tools": tools, "schema": schema}
    if provider == "ollama":  # /api/generate has no tools: litellm requests JSON in the prompt
        del checks["tools"]
    for name, do in checks.items():
        check("litellm", "litellm", f"{provider}/ {name}", lambda do=do, provider=provider: do(provider))
end()
