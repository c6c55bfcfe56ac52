"""Write the tasks: python prepare_tasks.py --config FILE --output tasks.jsonl [--max-tasks N] [--seed N]."""

from ors_clients.prepare_tasks import main

if __name__ == "__main__":
    raise SystemExit(main())
