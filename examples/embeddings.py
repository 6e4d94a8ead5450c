"""Compare texts by their embeddings: python examples/embeddings.py [http://127.0.0.1:8000/v1]

Needs `pip install openai` and a running server. Any model gives vectors; a model that was trained for embeddings gives good
ones.
"""

import sys

from openai import OpenAI

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
client = OpenAI(base_url=url, api_key="unused")
model = client.models.list().data[0].id

texts = ["Count from 3 to 9.", "Count from 2 to 8.", "What is the capital of Peru?"]
vectors = [entry.embedding for entry in client.embeddings.create(model=model, input=texts).data]
print(f"{len(vectors)} vectors of {len(vectors[0])} numbers")

for text, vector in zip(texts, vectors, strict=True):
    # The vectors have length 1: their dot product is the cosine of the angle between them.
    similarity = sum(a * b for a, b in zip(vectors[0], vector, strict=True))
    print(f"{similarity:.3f}  {text}")
