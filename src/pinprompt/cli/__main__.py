"""`python -m pinprompt.cli` is the same door."""

from pinprompt.cli import main

main()
