"""The rollouts of TRL's ``AsyncGRPOTrainer``: its own worker process, our factories, a scripted vLLM.

    python use_async_trainer.py URL REPORT.json

URL serves the environments of tests/clients/trl_environments.py. TRL's worker pickles the factories into the process it
starts, plays groups of four rollouts there and scores them; the report has the items of the trainer's queue. The
trainer itself needs a GPU (FlashAttention). Asserts nothing: tests/long/test_trl_mixture.py checks the report.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import trl.experimental.async_grpo.async_rollout_worker as worker_module
from accelerate import PartialState
from ors_clients.trainers.trl import EnvironmentMixture, EnvironmentSpec
from tiny_model import make_tokenizer, play

GROUPS, GENERATIONS = 3, 4
#: The first turns of rollouts, in rotation; four successive rollouts begin differently.
OPENINGS = ("right", "wrong", "nothing", "lost")


class Engine(ThreadingHTTPServer):
    """``/v1/completions`` of vLLM with token ids."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(("127.0.0.1", 0), _Completions)
        self.tokenizer = tokenizer
        self._number = count()
        self._lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def answer(self, prompt: list[int]) -> dict[str, Any]:
        text = self.tokenizer.decode(prompt)
        ids = self.tokenizer.encode(f"{self._words(text)}<|im_end|>", add_special_tokens=False)
        logprobs = [-0.001 * (place + 1) for place in range(len(ids))]
        choice = {"token_ids": ids, "logprobs": {"token_logprobs": logprobs}, "finish_reason": "stop", "text": ""}
        return {"choices": [choice]}

    def _words(self, prompt: str) -> str:
        if "<tool_response>" in prompt:
            return "That is all."
        with self._lock:
            opening = OPENINGS[next(self._number) % len(OPENINGS)]
        right = int(re.findall(r"Say (\d+)\.", prompt)[-1])
        calls = {"right": ("say", {"number": right}), "wrong": ("say", {"number": right + 1}), "lost": ("lose", {})}
        if opening not in calls:
            return "I say nothing."
        name, arguments = calls[opening]
        return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class _Completions(BaseHTTPRequestHandler):
    server: Engine

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = json.dumps(self.server.answer(body["prompt"])).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def main() -> None:
    url, report_path = sys.argv[1], Path(sys.argv[2])
    PartialState()  # TRL logs through accelerate, which needs its state; the trainer would create it
    specs = [EnvironmentSpec("awkwardenvironment", indices=[1, 2, 3])]
    with EnvironmentMixture(specs, url=url) as mixture:
        rows = mixture.train_dataset.to_list()
        slot = mixture.environment_factory["awkwardenvironment"]()
        tokenizer = make_tokenizer([play(slot, row, "say", {"number": row["task_index"]}) for row in rows])
        engine = Engine(tokenizer)
        worker_module.is_vllm_available = lambda *args, **options: True  # it is used over HTTP only
        worker = worker_module.AsyncRolloutWorker(
            model_name="tiny",
            dataset=mixture.train_dataset,
            reward_funcs=[],
            processing_class=tokenizer,
            eos_token_ids=[tokenizer.eos_token_id],
            environment_factory=mixture.async_environment_factory,
            num_generations=GENERATIONS,
            max_inflight_tasks=GENERATIONS,
            vllm_server_url=f"http://127.0.0.1:{engine.server_address[1]}",
            max_tokens=64,
            max_tool_calling_iterations=4,
        )
        worker.start()
        try:
            samples = [worker.rollout_buffer.get(timeout=120) for _ in range(GROUPS * GENERATIONS)]
            worker.check_health(stale_after_s=300)
        finally:
            worker.stop()
            engine.shutdown()
    reported = [
        {
            "group": sample.group_id,
            "prompt": sample.prompt,
            "completion": sample.completion,
            "advantage": sample.advantage,
            "reward": sample.metrics["reward"],
            "trained": tokenizer.decode(
                [token for token, on in zip(sample.input_ids, sample.completion_mask, strict=True) if on]
            ),
            "logprobs": [
                float(logprob) for logprob, on in zip(sample.old_log_probs, sample.completion_mask, strict=True) if on
            ],
        }
        for sample in samples
    ]
    report_path.write_text(json.dumps({"samples": reported}, indent=1))


if __name__ == "__main__":
    main()
