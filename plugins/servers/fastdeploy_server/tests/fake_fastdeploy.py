"""A stand-in for FastDeploy's server: its options, its health, its answers, and the ways in which it can go wrong.

Behavior by the variable FAKE: ``slow`` healthy after a second; ``crash`` ends while it starts; ``dies`` ends a second after it is
healthy; ``hangs`` falls silent then; ``busy`` answers completions with 429; ``refuses`` with 500; ``deaf`` ignores SIGTERM;
``odd`` puts a token behind every prompt; ``silent`` tells no tokens.
It starts a worker, as FastDeploy in a session of its own, whose process id it writes into the file FAKE_WORKER, and writes its
own words into FAKE_WORDS.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HOW, STARTED = os.environ.get("FAKE", ""), time.monotonic()


class Answers(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def reply(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def known(self):
        key = os.environ.get("FD_API_KEY", "")
        return not key or self.headers.get("Authorization") == f"Bearer {key}"

    def do_GET(self):
        age = time.monotonic() - STARTED
        if HOW == "hangs" and age > 2:
            time.sleep(600)
        if self.path == "/health":
            self.reply(404 if HOW == "slow" and age < 1 else 200, {})
        elif not self.known():
            self.reply(401, {"error": "Unauthorized"})
        else:
            self.reply(200, {"data": [{"id": "fake"}]})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if HOW == "refuses":
            self.reply(500, {"error": {"message": "no memory"}})
        elif HOW == "busy":
            self.reply(429, {"detail": "too many"})
        elif not self.known():
            self.reply(401, {"error": "Unauthorized"})
        elif self.path == "/v1/chat/completions":
            ids = prompt_of(asked)
            self.reply(200, {"choices": [{"message": {"content": " 2", "prompt_token_ids": ids}}]} if ids else {})
        else:
            self.reply(200, {"choices": [{"text": " 2"}], "model": asked["model"]})


def prompt_of(asked):
    """Token ids of a prompt by the tokenizer of the directory that is served; ``odd``: one more, ``silent``: none."""
    from erniecore_text import SentencePieceTokenizer

    from erniecore.api.data import Message
    from erniecore.api.model import Segment

    if HOW == "silent":
        return []
    directory = sys.argv[sys.argv.index("--model") + 1]
    tokenizer = SentencePieceTokenizer.from_directory(Path(directory))
    text = tokenizer.chat_template.render([Message(m["role"], m["content"]) for m in asked["messages"]])
    return tokenizer.encode_segments([Segment(text, True)])[0] + [5] * (HOW == "odd")


def main():
    words = sys.argv[1:]
    print("loading the model", flush=True)
    if os.environ.get("FAKE_WORDS"):
        with open(os.environ["FAKE_WORDS"], "w") as file:
            json.dump(words, file)
    if HOW == "crash":
        print("CUDA error: out of memory", file=sys.stderr, flush=True)
        sys.exit(7)
    if HOW == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    if os.environ.get("FAKE_WORKER"):
        with open(os.environ["FAKE_WORKER"], "w") as file:
            file.write(str(worker.pid))
    if HOW == "dies":
        threading.Timer(1.0, os._exit, [9]).start()
    host, port = (words[words.index(name) + 1] for name in ("--host", "--port"))
    ThreadingHTTPServer((host, int(port)), Answers).serve_forever()


main()
