"""MTEB's harness on two small tasks: the scores of a tiny model through the API are those of the
same model in sentence-transformers. The texts are sequences of words drawn at random; two texts are
as similar as the words that they share."""

import json
import logging
import math
import os
import pathlib
import random
import urllib.request

from check import URL, check, end

MODEL = pathlib.Path(os.environ["SHOAL_MODELS"]) / "qwen3_embedding"


def through_api(texts):
    body = json.dumps({"model": "qwen3_embedding", "input": texts}).encode()
    request = urllib.request.Request(URL + "/v1/embeddings", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return [d["embedding"] for d in json.load(answer)["data"]]


def encoder(vectors):
    import numpy
    from mteb.models.abs_encoder import AbsEncoder
    from mteb.models.model_meta import ModelMeta

    class Encoder(AbsEncoder):
        mteb_model_meta = ModelMeta.create_empty(overwrites={"name": "shoal/qwen3_embedding"})

        def __init__(self):
            pass

        def encode(self, inputs, **_):
            return numpy.asarray([v for batch in inputs for v in vectors(list(batch["text"]))], dtype="float32")

    return Encoder()


WORDS = "river stone glass paper winter market engine letter garden music copper village ocean bread mirror".split()


def texts(n):
    draw = random.Random(5)
    return [" ".join(draw.sample(WORDS, 6)) for _ in range(n)]


def shared(a, b):
    return len(set(a.split()) & set(b.split()))


def similarity_task():
    from datasets import Dataset, DatasetDict
    from mteb.mocks import mock_tasks

    class Similarity(mock_tasks.MockSTSTask):
        def load_data(self, **_):
            first, second = texts(200)[:100], texts(200)[100:]
            rows = {"sentence1": first, "sentence2": second, "score": [shared(a, b) / 6 for a, b in zip(first, second)]}
            self.dataset, self.data_loaded = DatasetDict({"test": Dataset.from_dict(rows)}), True

    return Similarity()


def retrieval_task():
    from datasets import Dataset
    from mteb.mocks import mock_tasks

    class Retrieval(mock_tasks.MockRetrievalTask):
        def load_data(self, **_):
            documents, queries = texts(140)[:100], texts(140)[100:]
            split = {"corpus": Dataset.from_list([{"id": f"d{i}", "text": t, "title": ""} for i, t in enumerate(documents)]),
                     "queries": Dataset.from_list([{"id": f"q{i}", "text": t} for i, t in enumerate(queries)]),
                     "relevant_docs": {f"q{i}": {f"d{j}": 1 for j, d in enumerate(documents) if shared(q, d) > 3} for i, q in enumerate(queries)},
                     "top_ranked": None}
            self.dataset, self.data_loaded = {"default": {"test": split, "val": split}}, True

    return Retrieval()


def scores(task):
    import mteb
    import torch
    from sentence_transformers import SentenceTransformer

    logging.disable(logging.WARNING)
    local = SentenceTransformer(str(MODEL), device="cpu", model_kwargs={"dtype": torch.float32})
    ours, theirs = (mteb.evaluate(encoder(v), task(), cache=None, show_progress_bar=False).task_results[0].get_score()
                    for v in (through_api, lambda texts: local.encode(texts, show_progress_bar=False)))
    print(f"     {task.__name__}: {ours:.4f}, sentence-transformers {theirs:.4f}", flush=True)
    assert math.isfinite(ours) and abs(ours - theirs) < 1e-4, (ours, theirs)


for task in (similarity_task, retrieval_task):
    check("mteb", "mteb", f"{task.__name__.replace('_', ' ')}: the score of sentence-transformers", lambda task=task: scores(task))
end()
