"""LangChain's chat models of OpenAI, Anthropic and Ollama."""

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from check import KEY, MODEL, QUESTION, URL, check, end


class Person(BaseModel):
    name: str
    age: int


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return '{"sky": "rain", "degrees": 3}'


MODELS = {
    "langchain-openai": ChatOpenAI(model=MODEL, base_url=URL + "/v1", api_key=KEY, temperature=0, max_tokens=300, max_retries=0),
    "langchain-openai responses": ChatOpenAI(
        model=MODEL, base_url=URL + "/v1", api_key=KEY, temperature=0, max_tokens=300, max_retries=0, use_responses_api=True
    ),
    "langchain-anthropic": ChatAnthropic(model=MODEL, base_url=URL, api_key=KEY, max_tokens=300, max_retries=0),
    "langchain-ollama": ChatOllama(model=MODEL, base_url=URL, temperature=0, num_predict=300),
}


def invoke(m):
    return bool(m.invoke("Say hello.").text)


def stream(m):
    return bool("".join(part.text for part in m.stream("Say hello.")))


def tools(m):
    bound = m.bind_tools([get_weather])
    turns = [HumanMessage(QUESTION)]
    answer = bound.invoke(turns)
    call = answer.tool_calls[0]
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Oslo"}), call
    turns += [answer, ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])]
    return "rain" in bound.invoke(turns).text


def structured(how):
    def do(m):
        got = m.with_structured_output(Person, **({"method": how} if how else {})).invoke("John is 30 years old.")
        return isinstance(got, Person)

    return do


for name, m in MODELS.items():
    package = name.split()[0]
    checks = {"invoke": invoke, "stream": stream, "tools and their result": tools, "structured output": structured(None)}
    if package == "langchain-openai":  # the others have one method, or no tool_choice
        checks |= {"structured, " + how: structured(how) for how in ("function_calling", "json_schema")}
    for what, do in checks.items():
        check("langchain", package, f"{name} {what}", lambda do=do, m=m: do(m))
end()
