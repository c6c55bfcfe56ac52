"""Play one episode of the echo environment over HTTP.

ors-server serve echo                                    in one shell
python examples/play_episode.py http://127.0.0.1:8080    in another
"""

import sys

from ors_clients import Client, InfrastructureFailure

from ors_server import TextBlock


def main(url: str) -> None:
    """Open a session, list its tools, call one, print the reward."""
    with Client(url) as client:
        environment = client.environment("echoenvironment")
        task = environment.task("train", 0)
        with environment.session(task=task) as session:
            texts = [block.text for block in session.prompt() if isinstance(block, TextBlock)]
            print("prompt:", *texts)
            print("tools:", ", ".join(tool.name for tool in session.tools()))
            try:
                result = session.call("echo", {"text": task.spec["target"]})
            except InfrastructureFailure as failure:
                # The server or its machine failed. A trainer leaves this episode out; it is not a reward of 0.
                sys.exit(f"no reward: {failure}")
            print("answer:", result.text)
            print("reward:", result.reward, "finished:", result.finished)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080")
