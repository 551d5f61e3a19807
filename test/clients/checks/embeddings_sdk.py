"""Clients of embeddings and reranking, against tiny models whose vectors sentence-transformers computed."""

import json
import math
import os
import pathlib
import tempfile
import urllib.request

from check import URL, check, end

RERANKER = os.environ["SHOAL_RERANK_URL"]
MODELS = pathlib.Path(os.environ["SHOAL_MODELS"])
GOLDENS = json.loads((MODELS / "qwen3_embedding/goldens.json").read_text())["items"]
PAIRS = json.loads((MODELS / "qwen3_reranker/goldens.json").read_text())
TEXTS = [g["text"] for g in GOLDENS]


def near(got, want):
    assert len(got) == len(want), (len(got), len(want))
    cosine = sum(a * b for a, b in zip(got, want)) / math.sqrt(sum(a * a for a in got) * sum(b * b for b in want))
    assert cosine > 1 - 1e-5, cosine


def all_near(vectors, field="vector"):
    vectors = list(vectors)
    assert len(vectors) == len(GOLDENS)
    for v, g in zip(vectors, GOLDENS):
        near(v, g[field])


def openai_embeddings():
    from openai import OpenAI

    client = OpenAI(base_url=URL + "/v1", api_key="none")
    answer = client.embeddings.create(model="qwen3_embedding", input=TEXTS)  # requests base64
    all_near(d.embedding for d in answer.data)
    assert answer.usage.prompt_tokens == sum(len(g["ids"]) for g in GOLDENS)
    all_near((d.embedding for d in client.embeddings.create(model="qwen3_embedding", input=TEXTS, dimensions=16, encoding_format="float").data), "cut")
    all_near(d.embedding for d in client.embeddings.create(model="qwen3_embedding", input=[g["ids"] for g in GOLDENS]).data)


def openai_batch():
    from openai import OpenAI

    client = OpenAI(base_url=URL + "/v1", api_key="none")
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        for i, text in enumerate(TEXTS):
            f.write(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/embeddings", "body": {"input": text}}) + "\n")
        f.flush()
        file = client.files.create(file=pathlib.Path(f.name), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed", batch
    lines = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    by_id = {line["custom_id"]: line["response"]["body"]["data"][0]["embedding"] for line in lines}
    all_near(by_id[str(i)] for i in range(len(TEXTS)))


def ollama_embed():
    import ollama

    client = ollama.Client(URL)
    all_near(client.embed("qwen3_embedding", TEXTS).embeddings)
    all_near([client.embed("qwen3_embedding", t, dimensions=16).embeddings[0] for t in TEXTS], "cut")
    all_near([client.embeddings("qwen3_embedding", t).embedding for t in TEXTS])
    assert "embedding" in client.show("qwen3_embedding").capabilities


def langchain_embeddings():
    from langchain_openai import OpenAIEmbeddings

    model = OpenAIEmbeddings(model="qwen3_embedding", base_url=URL + "/v1", api_key="none", check_embedding_ctx_length=False)
    all_near(model.embed_documents(TEXTS))
    near(model.embed_query(TEXTS[1]), GOLDENS[1]["vector"])


def llama_index_embeddings():
    from llama_index.embeddings.ollama import OllamaEmbedding
    from llama_index.embeddings.openai import OpenAIEmbedding

    model = OpenAIEmbedding(model_name="qwen3_embedding", api_base=URL + "/v1", api_key="none")
    stripped = [g for g in GOLDENS if g["text"] == g["text"].strip()]  # llama-index strips texts
    for model in (model, OllamaEmbedding(model_name="qwen3_embedding", base_url=URL)):
        for v, g in zip(model.get_text_embedding_batch([g["text"] for g in stripped]), stripped, strict=True):
            near(v, g["vector"])


def cohere_rerank():
    import cohere

    query, documents = PAIRS["items"][0]["query"], [p["document"] for p in PAIRS["items"][:2]]
    want = PAIRS["relevance"][:2]
    for client in (cohere.ClientV2(api_key="none", base_url=RERANKER), cohere.Client(api_key="none", base_url=RERANKER)):
        answer = client.rerank(model="qwen3_reranker", query=query, documents=documents, top_n=2)
        assert [r.index for r in answer.results] == sorted(range(2), key=lambda i: -want[i])
        for r in answer.results:
            assert abs(r.relevance_score - want[r.index]) < 5e-3, (r, want)  # the cache is bf16


def plain_score():
    pairs = PAIRS["items"]
    body = {"text_1": [p["query"] for p in pairs], "text_2": [p["document"] for p in pairs]}
    r = urllib.request.Request(RERANKER + "/score", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(r, timeout=60) as answer:
        scores = [d["score"] for d in json.load(answer)["data"]]
    assert all(abs(a - b) < 5e-3 for a, b in zip(scores, PAIRS["relevance"])), (scores, PAIRS["relevance"])


for package, name, f in [
    ("openai", "embeddings: texts, ids, base64, dimensions", openai_embeddings),
    ("openai", "a batch file of embeddings", openai_batch),
    ("ollama", "embed, embeddings, show", ollama_embed),
    ("langchain-openai", "embed_documents, embed_query", langchain_embeddings),
    ("llama-index-embeddings-openai", "batches, also by Ollama's API", llama_index_embeddings),
    ("cohere", "rerank of both clients", cohere_rerank),
    ("openai", "scores as vLLM has them", plain_score),
]:
    check("embeddings", package, f"{package}: {name}", f)
end()
