"""`python -m pinprompt.cli` runs the command line."""

from pinprompt.cli import main

main()
