"""instructor in each of its modes for a server of OpenAI's kind."""

import json
from typing import Iterable

import instructor
import openai
from pydantic import BaseModel

from check import KEY, MODEL, URL, check, end


class Person(BaseModel):
    name: str
    age: int


class create_person(BaseModel):  # noqa: N801 - the style of names that fry-tools was trained on
    """Creates a person."""

    name: str
    age: int


# The words that fry-tools was trained on: the modes JSON and MD_JSON leave the members to it.
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"]}
STATED = f"Answer in JSON of this schema: {json.dumps(SCHEMA)}\nage: 30; name: John"


def extract(mode, model, text=STATED):
    client = instructor.from_openai(openai.OpenAI(base_url=URL + "/v1", api_key=KEY, max_retries=0), mode=mode)
    got = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": text}],
        response_model=model,
        max_retries=0,
        max_tokens=300,
        temperature=0,
    )
    return got


def one(mode):
    got = extract(mode, Person)
    return (got.name, got.age) == ("John", 30)


def several(mode):
    people = list(extract(mode, Iterable[create_person], "Please create person, name John and age 30."))
    return [(p.name, p.age) for p in people] == [("John", 30)]


for mode in ("TOOLS", "TOOLS_STRICT", "JSON", "JSON_SCHEMA", "MD_JSON", "RESPONSES_TOOLS", "PARALLEL_TOOLS"):
    do = several if mode == "PARALLEL_TOOLS" else one
    check("instructor", "instructor", f"Mode.{mode}", lambda do=do, mode=mode: do(getattr(instructor.Mode, mode)))
end()
