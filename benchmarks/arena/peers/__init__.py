"""Scripts that run a peer in its own environment: `python SCRIPT JOB`, with the job's JSON file as the only argument.

A job has `base_url`, `limit`, `seed`, `variant`, `task` (name, instruction, labels, rows) and `out`. A script writes a
JSON file to `out`: its prompt in words, the chats that it would send for every row, the beginning of the model's answer
after which a label stands, and a note. Nothing here imports pinprompt, and no script is imported by it.
"""
