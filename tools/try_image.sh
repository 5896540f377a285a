#!/usr/bin/env bash
# Builds the image of deploy/Dockerfile, has a container of it serve a model, asks it once, and ends it.
#
#   tools/try_image.sh [OPTION OF THE BUILD]...
#
# BUILDER is docker (the default) or podman.
set -euo pipefail
cd "$(dirname "$0")/.."
builder=${BUILDER:-docker}
"$builder" build -f deploy/Dockerfile -t ortmulti "$@" .

models=$(mktemp -d)
container=
end() {
  [[ -z $container ]] || "$builder" rm -f "$container" >/dev/null
  rm -rf "$models"
}
trap end EXIT
chmod 755 "$models"
# y = -x, of one dimension.
base64 -d >"$models/negative.onnx" <<'MODEL'
CAgSDm9ydG11bHRpIHRlc3RzOjoKDQoBeBIBeSIDTmVnOgASBWdyYXBoWhAKAXgSCwoJCAESBQoDEgFuYhAKAXkSCwoJCAESBQoDEgFuQgQKABAR
MODEL
chmod 644 "$models/negative.onnx"

container=$("$builder" run -d --read-only --tmpfs /tmp --cap-drop ALL -p 127.0.0.1:8000:8000 -v "$models:/models:ro" ortmulti)
if ! curl -fsS --retry 60 --retry-delay 1 --retry-all-errors http://127.0.0.1:8000/v2/health/ready; then
  "$builder" logs "$container"
  exit 1
fi
answer=$(curl -fsS http://127.0.0.1:8000/v2/models/negative/infer \
  -d '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, -2]}]}')
echo "$answer"
grep -qE '"data": ?\[-1(\.0)?, ?2(\.0)?\]' <<<"$answer"
"$builder" stop -t 40 "$container" >/dev/null
status=$("$builder" inspect --format '{{.State.ExitCode}}' "$container")
echo "the server ended with status $status"
[[ $status == 0 ]]
