"""pydantic-ai: text, a tool, structured output, by OpenAI's and Ollama's models.

Its Anthropic model of this version does not start with anthropic 2.14.
"""

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.ollama import OllamaProvider
from pydantic_ai.providers.openai import OpenAIProvider

from check import KEY, MODEL, QUESTION, URL, check, end

openai = OpenAIProvider(base_url=URL + "/v1", api_key=KEY)
MODELS = {
    "chat": OpenAIChatModel(MODEL, provider=openai),
    "responses": OpenAIResponsesModel(MODEL, provider=openai),
    "ollama": OpenAIChatModel(MODEL, provider=OllamaProvider(base_url=URL + "/v1")),
}
SETTINGS = {"max_tokens": 300}


class Person(BaseModel):
    name: str
    age: int


def text(m):
    return bool(Agent(m, model_settings=SETTINGS).run_sync("Say hello.").output)


def stream(m):
    return bool("".join(Agent(m, model_settings=SETTINGS).run_stream_sync("Say hello.").stream_text(delta=True)))


def tool(m):
    agent, asked = Agent(m, model_settings=SETTINGS), []

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return '{"sky": "rain", "degrees": 3}'

    return "rain" in agent.run_sync(QUESTION).output and asked == ["Oslo"]


def structured(m):
    return isinstance(Agent(m, output_type=Person, model_settings=SETTINGS, retries=0).run_sync("name: John; age: 30").output, Person)


for name, m in MODELS.items():
    for what, do in {"text": text, "stream": stream, "tool": tool, "structured": structured}.items():
        check("pydantic-ai", "pydantic-ai-slim", f"{name} {what}", lambda do=do, m=m: do(m))
end()
