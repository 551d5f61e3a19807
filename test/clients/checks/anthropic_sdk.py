"""The anthropic package: messages, streams, tools, token counts."""

import anthropic

from check import KEY, MODEL, QUESTION, URL, WEATHER, check, end

client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
TOOL = {"name": "get_weather", "description": "The weather in a city.", "input_schema": WEATHER}
ASK = [{"role": "user", "content": QUESTION}]


def messages():
    m = client.messages.create(model=MODEL, max_tokens=16, messages=[{"role": "user", "content": "Say hello."}])
    return bool(m.content[0].text) and m.stop_reason in ("end_turn", "max_tokens") and m.usage.output_tokens > 0


def stream():
    with client.messages.stream(model=MODEL, max_tokens=16, messages=[{"role": "user", "content": "Say hello."}]) as s:
        text = "".join(s.text_stream)
        return bool(text) and s.get_final_message().content[0].text == text


def tools():
    m = client.messages.create(model=MODEL, max_tokens=200, tools=[TOOL], messages=ASK)
    use = next(b for b in m.content if b.type == "tool_use")
    assert (use.name, use.input, m.stop_reason) == ("get_weather", {"city": "Oslo"}, "tool_use"), m
    result = {"type": "tool_result", "tool_use_id": use.id, "content": '{"sky": "rain", "degrees": 3}'}
    turn = ASK + [{"role": "assistant", "content": m.content}, {"role": "user", "content": [result]}]
    m = client.messages.create(model=MODEL, max_tokens=64, tools=[TOOL], messages=turn)
    return m.stop_reason == "end_turn" and "rain" in m.content[0].text


def streamed_tools():
    with client.messages.stream(model=MODEL, max_tokens=200, tools=[TOOL], messages=ASK) as s:
        m = s.get_final_message()
    use = next(b for b in m.content if b.type == "tool_use")
    return (use.name, use.input, m.stop_reason) == ("get_weather", {"city": "Oslo"}, "tool_use")


def any_tool():
    m = client.messages.create(
        model=MODEL, max_tokens=300, tools=[TOOL], tool_choice={"type": "any"}, messages=[{"role": "user", "content": "Say hello."}]
    )
    use = next(b for b in m.content if b.type == "tool_use")
    return list(use.input) == ["city"] and m.stop_reason == "tool_use"


def count():
    return client.messages.count_tokens(model=MODEL, messages=ASK).input_tokens > 5


def cache_control():
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    m = client.messages.create(model=MODEL, max_tokens=8, system=system, thinking={"type": "disabled"}, messages=ASK)
    return bool(m.content[0].text)


def models():
    return [m.id for m in client.models.list()] == [MODEL]


for name, do in [
    ("models", models), ("messages", messages), ("stream", stream), ("tools and their result", tools), ("tools, streamed", streamed_tools),
    ("tool_choice any", any_tool), ("count_tokens", count), ("cache_control, thinking", cache_control),
]:
    check("anthropic", "anthropic", name, do)
end()
