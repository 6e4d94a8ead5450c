#!/bin/sh
# Calls of a running server with curl: sh examples/curl.sh [http://127.0.0.1:8000]
set -eu
url=${1:-http://127.0.0.1:8000}

echo "Models:"
curl -sS --fail-with-body "$url/v1/models"

echo; echo "A chat:"
curl -sS --fail-with-body "$url/v1/chat/completions" -H 'Content-Type: application/json' \
  -d '{"messages": [{"role": "user", "content": "What is the capital of Peru?"}], "temperature": 0}'

echo; echo "The same as a stream of events:"
curl -sS --fail-with-body -N "$url/v1/chat/completions" -H 'Content-Type: application/json' \
  -d '{"messages": [{"role": "user", "content": "What is the capital of Peru?"}], "temperature": 0, "stream": true}'

echo "A completion of a text:"
curl -sS --fail-with-body "$url/v1/completions" -H 'Content-Type: application/json' \
  -d '{"prompt": "Count from 3 to", "max_tokens": 8, "temperature": 0}'
echo
